"""Ending processes: a signal to exactly the ones that were named, and what became of each.

Waits by looking, on the clock. Never says "gone" of a process that it did not see gone. Whom to
end is the caller's choice: nothing here selects by name, except what belongs to one launch.
"""

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvctl.core.clock import Clock
from kvctl.core.domain.gpus.devices import ProcessFacts, ProcessIdentity, short_title
from kvctl.core.domain.gpus.launch_groups import members_of
from kvctl.core.domain.gpus.membership import KnownServer
from kvctl.core.ports import Processes

POLL_S = 0.1
KILL_WAIT_S = 10.0
"""How long KILL is given: the driver unpins host memory meanwhile."""
MOST_ROUNDS = 3
_STUCK_STATES = frozenset("D")


class EndOutcome(StrEnum):
    """What became of one target."""

    GONE = "gone"
    ALREADY_GONE = "already gone"
    IGNORED = "ignored"
    """It still runs after the last signal."""
    REFUSED = "refused"
    """The kernel does not permit the signal."""
    REUSED = "reused"
    """The pid belongs to another process now; nothing was sent to that."""
    STUCK = "stuck"
    """KILL waits: the kernel does not let go of it."""


@dataclass(frozen=True, slots=True)
class SentSignal:
    """One signal and when it was sent."""

    name: str
    """"TERM", "KILL" …"""
    at: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class TargetEnd:
    """One target and what became of it."""

    identity: ProcessIdentity
    title: str
    outcome: EndOutcome
    signals: tuple[SentSignal, ...]
    at: float
    """Monotonic seconds when that was seen."""
    detail: str

    @property
    def is_gone(self) -> bool:
        """Whether this very process does not run any more."""
        return self.outcome in (EndOutcome.GONE, EndOutcome.ALREADY_GONE, EndOutcome.REUSED)

    def line(self) -> str:
        """Return one line: "41822 sglang::scheduler_TP4: gone 0.4 s after KILL"."""
        title = f" {short_title(self.title)}" if self.title else ""
        return f"{self.identity.pid}{title}: {self.detail}"


@dataclass(frozen=True, slots=True)
class EndReport:
    """All targets, in the order they were given."""

    targets: tuple[TargetEnd, ...]
    started_at: float
    took_s: float
    respawned: tuple[ProcessFacts, ...] = ()
    """Processes that appeared in the group again and again while it was ended."""

    @property
    def are_all_gone(self) -> bool:
        """Whether none of them runs any more and none came back."""
        return not self.respawned and all(target.is_gone for target in self.targets)

    def lines(self) -> tuple[str, ...]:
        """Return what became of each, and what came back."""
        came_back = tuple(
            f"{facts.identity.pid} {short_title(facts.title)}: something starts it again (parent"
            f" {facts.parent_pid}); stop that first"
            for facts in self.respawned
        )
        return tuple(target.line() for target in self.targets) + came_back


@dataclass(slots=True)
class _Target:
    identity: ProcessIdentity
    title: str
    signals: list[SentSignal] = field(default_factory=list)
    end: TargetEnd | None = None

    def close(self, outcome: EndOutcome, at: float, detail: str) -> TargetEnd:
        self.end = TargetEnd(self.identity, self.title, outcome, tuple(self.signals), at, detail)
        return self.end


async def end_processes(
    processes: Processes,
    clock: Clock,
    targets: Sequence[ProcessIdentity],
    *,
    first: signal.Signals,
    wait_s: float,
    escalate: bool,
) -> EndReport:
    """Send `first` to each target, wait, and (if `escalate`) KILL what is left.

    Units: `wait_s` in seconds of the clock.
    """
    started = clock.monotonic()
    unique = dict.fromkeys(targets)
    work = [_Target(identity, _title(processes, identity)) for identity in unique]
    _send_all(processes, clock, work, first)
    await _wait(processes, clock, work, wait_s)
    if escalate and first is not signal.SIGKILL and _open(work):
        _send_all(processes, clock, work, signal.SIGKILL)
        await _wait(processes, clock, work, KILL_WAIT_S)
    ends = tuple(_verdict(processes, clock, target) for target in work)
    return EndReport(ends, started, clock.monotonic() - started)


async def end_group(
    processes: Processes,
    clock: Clock,
    collect: Callable[[], Sequence[ProcessFacts]],
    *,
    first: signal.Signals,
    wait_s: float,
    escalate: bool,
) -> EndReport:
    """End a group that is collected anew after each round, as a dying tree can still fork."""
    started = clock.monotonic()
    ends: dict[ProcessIdentity, TargetEnd] = {}
    members: Sequence[ProcessFacts] = ()
    for _ in range(MOST_ROUNDS):
        members = [facts for facts in collect() if facts.identity not in ends]
        if not members:
            break
        report = await end_processes(
            processes,
            clock,
            [facts.identity for facts in members],
            first=first,
            wait_s=wait_s,
            escalate=escalate,
        )
        ends.update((target.identity, target) for target in report.targets)
    came_back = tuple(facts for facts in collect() if facts.identity not in ends) if members else ()
    return EndReport(tuple(ends.values()), started, clock.monotonic() - started, came_back)


def launch_group(processes: Processes, server: KnownServer) -> tuple[ProcessFacts, ...]:
    """Return every living process of a launch, its main first.

    Its main, what was recorded, what carries its mark, its own session, and all children of
    those, also where they opened sessions of their own or lost their parent.
    """
    facts = {process.identity.pid: process for process in processes.all_facts()}
    return living(processes, members_of(server, facts))


def living(processes: Processes, found: Iterable[ProcessFacts]) -> tuple[ProcessFacts, ...]:
    """Return those that still run, in their order."""
    return tuple(process for process in found if processes.is_alive(process.identity))


def _title(processes: Processes, identity: ProcessIdentity) -> str:
    facts = processes.facts(identity.pid)
    return facts.title if facts is not None and facts.identity == identity else ""


def _open(work: Iterable[_Target]) -> list[_Target]:
    return [target for target in work if target.end is None]


def _send_all(
    processes: Processes, clock: Clock, work: Iterable[_Target], number: signal.Signals
) -> None:
    for target in _open(work):
        try:
            processes.send(target.identity, number)
        except ProcessLookupError:
            _close_missing(processes, clock, target)
        except PermissionError as error:
            why = error.strerror or str(error)
            target.close(EndOutcome.REFUSED, clock.monotonic(), f"not permitted: {why}")
        else:
            name = number.name.removeprefix("SIG")
            target.signals.append(SentSignal(name, clock.monotonic()))


def _close_missing(processes: Processes, clock: Clock, target: _Target) -> None:
    """Say of a target that cannot be found whether it ended or its pid was taken over."""
    now = clock.monotonic()
    other = processes.facts(target.identity.pid)
    if target.signals:
        target.close(EndOutcome.GONE, now, _gone_text(target, now))
    elif other is not None and other.identity != target.identity:
        who = f"{other.title[:40]} (user {other.user})"
        target.close(
            EndOutcome.REUSED, now, f"had ended; its pid is {who} now, which got no signal"
        )
    else:
        target.close(EndOutcome.ALREADY_GONE, now, "had ended before any signal")


async def _wait(processes: Processes, clock: Clock, work: Sequence[_Target], wait_s: float) -> None:
    """Look until all have ended or the time is over."""
    deadline = clock.monotonic() + wait_s
    while True:
        for target in _open(work):
            if not processes.is_alive(target.identity):
                now = clock.monotonic()
                target.close(EndOutcome.GONE, now, _gone_text(target, now))
        left = deadline - clock.monotonic()
        if not _open(work) or left <= 0:
            return
        await clock.sleep(min(POLL_S, left))


def _gone_text(target: _Target, now: float) -> str:
    last = target.signals[-1]
    before = "".join(f"{sent.name} ignored, " for sent in target.signals[:-1])
    return f"{before}gone {now - last.at:.1f} s after {last.name}"


def _verdict(processes: Processes, clock: Clock, target: _Target) -> TargetEnd:
    """Judge what is left after the last wait."""
    if target.end is not None:
        return target.end
    now = clock.monotonic()
    last = target.signals[-1]
    waited = f"{now - last.at:.0f} s after {last.name}"
    facts = processes.facts(target.identity.pid)
    if not processes.is_alive(target.identity) or facts is None:
        return target.close(EndOutcome.GONE, now, _gone_text(target, now))
    if facts.state in _STUCK_STATES or (facts.is_kill_pending and last.name == "KILL"):
        return target.close(
            EndOutcome.STUCK,
            now,
            f"still there {waited}, uninterruptible ({facts.state}): KILL cannot work until the"
            " kernel lets go; wait, reset the GPU, or reboot",
        )
    return target.close(EndOutcome.IGNORED, now, f"still runs {waited} (state {facts.state})")
