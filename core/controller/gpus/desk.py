"""GPUs: the view, and ending what holds their memory, with proof.

One view and one proof serve the pane, `kvctl gpus`, the kill dialog and every stop.
"""

import signal
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from kvctl.core.controller.commands import ClearGpus, KillProcesses, Outcome
from kvctl.core.controller.gpus.history import GpuHistory
from kvctl.core.controller.gpus.kill_targets import KillTargets, chosen, named
from kvctl.core.controller.host import Host
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.domain.gpus.cleanness import proven
from kvctl.core.domain.gpus.devices import (
    GpuView,
    Holder,
    HolderKind,
    ProcessFacts,
    ProcessIdentity,
)
from kvctl.core.domain.gpus.holding import describe, identity_of, learn_idle
from kvctl.core.domain.gpus.membership import KnownServer
from kvctl.core.probes.gpu_view import GpuViewProbe, read_within
from kvctl.core.servers.processes.clean import CleanProof, prove_clean
from kvctl.core.servers.processes.ending import EndReport, end_group, end_processes

PERIOD_S = 2.0
READ_LIMIT_S = 10.0
MOST_READINGS = 2
MOST_READINGS = 2
FIRST_READ_S = 3.0
"""How long a new kvctld waits for the driver before it looks at anything else."""
PROOF_S = 60.0
HOPELESS_PROOF_S = 3.0
RESPAWN_S = 2.0
"""How long a kill looks whether a supervisor starts the process again."""
SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL, "INT": signal.SIGINT}
SIGNALS["QUIT"] = signal.SIGQUIT


@dataclass(frozen=True, slots=True)
class _Kill:
    """A kill that was guarded and may go ahead."""

    targets: tuple[ProcessIdentity, ...]
    rows: Sequence[Holder]
    first: signal.Signals
    wait_s: float
    escalate: bool
    group: bool


@dataclass(slots=True)
class GpuDesk:
    """Keeps the view of devices and holders, and carries out kills."""

    host: Host
    feed: EventFeed
    known: Callable[[], Sequence[KnownServer]]
    """Servers that kvctl launched or watches, for telling whose a process is."""
    view: GpuView = field(default_factory=GpuView)
    idle_bytes: dict[str, int] = field(default_factory=dict)
    """Lowest use seen per UUID while nothing held the device."""
    history: GpuHistory = field(default_factory=GpuHistory)
    _under_way: set[object] = field(default_factory=set)
    """Readings whose thread has not come back."""
    _probe: GpuViewProbe = field(init=False)
    _targets: KillTargets = field(init=False)

    def __post_init__(self) -> None:
        """Build the probe over the host's sources."""
        self._probe = GpuViewProbe(self.host.gpus, self.host.processes, self.host.me)
        self._targets = KillTargets(self.host, self.known)

    async def read(self, *, fresh: bool = False, limit_s: float = READ_LIMIT_S) -> GpuView:
        """Take a new reading; a driver that hangs or breaks leaves the old one, marked."""
        if len(self._under_way) >= MOST_READINGS:
            return self.view  # each would be one more thread that the driver keeps
        now, known, token = self.host.clock.monotonic(), self.known(), object()
        self._under_way.add(token)

        def work() -> GpuView:
            try:
                return self._probe.read(now, known, fresh=fresh)
            finally:
                self._under_way.discard(token)

        try:
            view = await read_within(self.host.clock, limit_s * self.host.pace, work)
        except TimeoutError:
            return self._unread(f"the driver has not answered for {limit_s:.0f} s: it may be stuck")
        except Exception as error:  # the probe boundary: a source that breaks ends nothing
            traceback.print_exception(error)
            return self._unread(" ".join(f"not readable: {type(error).__name__}: {error}".split()))
        self.idle_bytes = learn_idle(self.idle_bytes, view)
        self.view = proven(view, self.view, self.idle_bytes)
        self.history.take(self.view)
        return self.view

    def _unread(self, problem: str) -> GpuView:
        self.view = replace(self.view, problem=problem, proofs=())
        return self.view

    async def kill(self, command: KillProcesses, id: str) -> Outcome:
        """End the named processes (and their launches), then prove their GPUs clean."""
        number = _signal(command.signal)
        if not command.targets:
            raise UsageError("no process named: give a pid, --gpu N or --leftovers")
        view = await self.read(fresh=True)
        targets = command.targets
        if command.group:
            group = self._targets.group(targets)
            targets = tuple(dict.fromkeys((*targets, *(p.identity for p in group))))
        holders = self._rows(view, targets)
        self._targets.guard(targets, holders, confirmed=command.confirmed)
        kill = _Kill(targets, holders, number, command.wait_s, command.escalate, command.group)
        return await self._end(kill, id)

    async def clear(self, command: ClearGpus, id: str) -> Outcome:
        """End leftovers (or, asked for, every holder of one GPU) and prove clean."""
        number = _signal(command.signal or "TERM")
        view = await self.read(fresh=True)
        _require_gpu(view, command.gpu)
        rows = chosen(view, command)
        hidden = next((row for row in rows if identity_of(row) is None), None)
        if hidden is not None:
            raise CommandRefused(f"{describe(hidden)}: it cannot be signalled from here")
        if not rows:
            where = "any GPU, nor off the GPUs" if command.gpu is None else f"GPU {command.gpu}"
            whose = f" of {command.server}" if command.server else ""
            return Outcome(0, f"no leftover{whose} on {where}: nothing to kill")
        targets = tuple(dict.fromkeys(i for row in rows if (i := identity_of(row)) is not None))
        seen = command.named
        unseen = [row for row in rows if seen is not None and identity_of(row) not in seen]
        self._targets.guard(targets, unseen, confirmed=False)
        self._targets.guard(targets, rows, confirmed=command.confirmed)
        kill = _Kill(targets, rows, number, command.wait_s, command.signal is None, False)
        outcome = await self._end(kill, id)
        if command.gpu is not None or not outcome.is_done:
            return outcome
        return self._none_left(await self.read(fresh=True), command, outcome)

    def _none_left(self, view: GpuView, command: ClearGpus, outcome: Outcome) -> Outcome:
        """Say of an action on every leftover whether one is there (again)."""
        left = chosen(view, command)
        if not left:
            return outcome
        lines = tuple(describe(row) for row in left)
        return Outcome(1, f"a leftover is still there: {lines[0]}", (*outcome.observed, *lines))

    def _rows(self, view: GpuView, targets: Collection[ProcessIdentity]) -> list[Holder]:
        """Return what is known of each target, whether it holds a GPU or not."""
        rows = named(view, targets)
        found = {identity_of(row) for row in rows}
        others = [target.pid for target in targets if target not in found]
        seen = self._probe.look_up(others, self.known())
        return [*rows, *(row for row in seen if identity_of(row) in targets)]

    async def prove_clean(
        self,
        gpus: Collection[str] | None,
        tolerate: Collection[ProcessIdentity] = (),
        timeout_s: float | None = None,
    ) -> CleanProof:
        """Poll until these GPUs (None: all) are clean, or say what still holds them."""
        return await prove_clean(
            lambda: self.read(fresh=True),
            self.host.clock,
            idle_bytes=self.idle_bytes,
            gpus=gpus,
            timeout_s=PROOF_S if timeout_s is None else timeout_s,
            tolerate=tolerate,
        )

    async def _end(self, kill: _Kill, id: str) -> Outcome:
        before = {facts.identity for facts in self.host.processes.all_facts()}
        report = await self._send(kill)
        for line in report.lines():
            self.feed.emit("kill", line, id)
        held = {row.gpu_uuid for row in kill.rows if row.gpu_uuid}
        proof = await self._proof_after(held, kill.rows, report, id)
        report = await self._with_respawned(kill, report, before)
        lines = (*report.lines(), *(proof.lines() if proof else ()))
        return _outcome(report, proof, lines)

    async def _send(self, kill: _Kill) -> EndReport:
        host = self.host
        if not kill.group:
            return await end_processes(
                host.processes,
                host.clock,
                kill.targets,
                first=kill.first,
                wait_s=kill.wait_s,
                escalate=kill.escalate,
            )
        rounds = 0

        def collect() -> Sequence[ProcessFacts]:
            nonlocal rounds
            rounds += 1
            found = self._targets.group(kill.targets)
            # What joined after the guard has looked is ours only as a child of what it allowed.
            return found if rounds > 1 else [f for f in found if f.identity in kill.targets]

        return await end_group(
            host.processes,
            host.clock,
            collect,
            first=kill.first,
            wait_s=kill.wait_s,
            escalate=kill.escalate,
        )

    async def _with_respawned(
        self, kill: _Kill, report: EndReport, before: Collection[ProcessIdentity]
    ) -> EndReport:
        """Look for a moment whether what started the killed starts them again."""
        if not any(row.owner_pid for row in kill.rows) or not report.are_all_gone:
            return report
        deadline = self.host.clock.monotonic() + RESPAWN_S
        while True:
            came_back = self._targets.respawned(kill.rows, before)
            if came_back or self.host.clock.monotonic() >= deadline:
                return replace(report, respawned=(*report.respawned, *came_back))
            await self.host.clock.sleep(RESPAWN_S / 8)

    async def _proof_after(
        self, held: set[str], killed: Sequence[Holder], report: EndReport, id: str
    ) -> CleanProof | None:
        """Prove the GPUs of the killed clean, beside whoever else is allowed to stay there."""
        if not held or not report.are_all_gone:
            return None
        gone = {target.identity for target in report.targets}
        others = [holder for holder in self.view.holders if identity_of(holder) not in gone]
        stay = {
            identity
            for holder in others
            if holder.kind is not HolderKind.LEFTOVER
            and (identity := identity_of(holder)) is not None
        }
        # A leftover that nobody asked to end keeps its GPU from being clean, however long we wait.
        in_the_way = any(h.kind is HolderKind.LEFTOVER and h.gpu_uuid in held for h in others)
        proof = await self.prove_clean(held, stay, HOPELESS_PROOF_S if in_the_way else None)
        self.feed.emit("clean" if proof.is_clean else "not clean", proof.summary(), id)
        return proof


def _outcome(report: EndReport, proof: CleanProof | None, lines: tuple[str, ...]) -> Outcome:
    if not report.are_all_gone:
        first = (
            next(t.line() for t in report.targets if not t.is_gone)
            if not (report.respawned)
            else report.lines()[-1]
        )
        return Outcome(1, first, lines)
    if proof is not None and not proof.is_satisfied:
        return Outcome(1, proof.summary(), lines)
    count = len(report.targets)
    said = f"{count} process{'es' if count != 1 else ''} gone"
    return Outcome(0, f"{said}; {proof.summary()}" if proof else said, lines)


def _signal(name: str) -> signal.Signals:
    number = SIGNALS.get(name.removeprefix("SIG").upper())
    if number is None:
        raise UsageError(f"unknown signal {name}: use {', '.join(SIGNALS)}")
    return number


def _require_gpu(view: GpuView, gpu: int | None) -> None:
    """Raise UsageError for a GPU that is not there."""
    indices = {device.index for device in view.devices}
    if gpu is not None and gpu not in indices:
        there = ", ".join(map(str, sorted(indices))) or view.problem or "none"
        raise UsageError(f"there is no GPU {gpu} here: {there}")


def require_clean(proof: CleanProof) -> str:
    """Return the proof in one line. Raises KvctlError if something still holds a GPU."""
    if not proof.is_satisfied:
        raise KvctlError(proof.summary())
    return proof.summary()
