"""GPUs: the view, and ending what holds their memory, with proof.

One view and one proof serve the pane, `kvctl gpus`, the kill dialog and every stop.
"""

import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvctl.core.controller.commands import ClearGpus, KillProcesses, Outcome
from kvctl.core.controller.host import Host
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.domain.gpus import GpuView, Holder, HolderKind, ProcessIdentity
from kvctl.core.domain.holding import (
    confirmation_text,
    describe,
    is_left_behind,
    learn_idle,
    signal_refusal,
)
from kvctl.core.domain.membership import KnownServer
from kvctl.core.probes.gpu_view import GpuViewProbe, read_within
from kvctl.core.servers.clean import CleanProof, prove_clean
from kvctl.core.servers.ending import EndReport, end_processes

PERIOD_S = 2.0
READ_LIMIT_S = 10.0
PROOF_S = 60.0
SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL, "INT": signal.SIGINT}
SIGNALS["QUIT"] = signal.SIGQUIT


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
    _probe: GpuViewProbe = field(init=False)

    def __post_init__(self) -> None:
        """Build the probe over the host's sources."""
        self._probe = GpuViewProbe(self.host.gpus, self.host.processes, self.host.me)

    async def read(self, *, fresh: bool = False) -> GpuView:
        """Take a new reading; a driver that hangs leaves the old one, marked."""
        now, known = self.host.clock.monotonic(), self.known()
        try:
            view = await read_within(
                self.host.clock,
                READ_LIMIT_S,
                lambda: self._probe.read(now, known, fresh=fresh),
            )
        except TimeoutError:
            self.view = replace(self.view, problem="the driver has not answered for 10 s")
            return self.view
        self.view = view
        self.idle_bytes = learn_idle(self.idle_bytes, view)
        return view

    async def kill(self, command: KillProcesses, id: str) -> Outcome:
        """End the named processes, then prove their GPUs clean."""
        view = await self.read(fresh=True)
        number = SIGNALS.get(command.signal.removeprefix("SIG").upper())
        if number is None:
            raise UsageError(f"unknown signal {command.signal}: use {', '.join(SIGNALS)}")
        if not command.targets:
            raise UsageError("no process named: give a pid, --gpu N or --leftovers")
        holders = [h for h in view.holders if _identity(h) in command.targets]
        for target in command.targets:
            self._guard(target, [h for h in holders if h.pid == target.pid], command.confirmed)
        return await self._end(
            command.targets, holders, number, command.wait_s, command.escalate, id
        )

    async def clear(self, command: ClearGpus, id: str) -> Outcome:
        """End leftovers (or, asked for, every holder of one GPU) and prove clean."""
        view = await self.read(fresh=True)
        chosen = self._chosen(view, command)
        for holder in chosen:
            identity = _identity(holder)
            if identity is None:
                raise CommandRefused(f"{describe(holder)}: it cannot be signalled from here")
            self._guard(identity, [holder], command.confirmed)
        if not chosen:
            where = "any GPU" if command.gpu is None else f"GPU {command.gpu}"
            return Outcome(0, f"no leftover on {where}: nothing to kill")
        targets = tuple(dict.fromkeys(i for h in chosen if (i := _identity(h)) is not None))
        number = SIGNALS.get((command.signal or "TERM").removeprefix("SIG").upper())
        if number is None:
            raise UsageError(f"unknown signal {command.signal}: use {', '.join(SIGNALS)}")
        escalate = command.signal is None
        return await self._end(targets, chosen, number, command.wait_s, escalate, id)

    async def prove_clean(
        self, gpus: Collection[str] | None, tolerate: Collection[ProcessIdentity] = ()
    ) -> CleanProof:
        """Poll until these GPUs (None: all) are clean, or say what still holds them."""
        return await prove_clean(
            lambda: self.read(fresh=True),
            self.host.clock,
            idle_bytes=self.idle_bytes,
            gpus=gpus,
            timeout_s=PROOF_S,
            tolerate=tolerate,
        )

    def _chosen(self, view: GpuView, command: ClearGpus) -> list[Holder]:
        indices = {device.index for device in view.devices}
        if command.gpu is not None and command.gpu not in indices:
            there = ", ".join(map(str, sorted(indices))) or view.problem or "none"
            raise UsageError(f"there is no GPU {command.gpu} here: {there}")
        return [
            holder
            for holder in view.holders
            if (command.gpu is None or holder.gpu_index == command.gpu)
            and (is_left_behind(holder) or (command.every_holder and command.gpu is not None))
        ]

    def _guard(self, target: ProcessIdentity, holders: Sequence[Holder], confirmed: bool) -> None:
        """Refuse what must never be signalled, and what needs a yes that was not given."""
        if target.pid in (1, self.host.me.pid):
            raise CommandRefused(f"pid {target.pid} is {_sacred(target.pid)}: never signalled")
        for holder in holders:
            if (why := signal_refusal(holder)) is not None:
                raise CommandRefused(f"{holder.pid}: {why}")
            text = confirmation_text(holder)
            if text is not None and not confirmed:
                raise CommandRefused(f"needs an explicit yes: {text}")
        facts = self.host.processes.facts(target.pid)
        if holders or confirmed or facts is None or facts.identity != target:
            return  # one that has ended gets no signal: there is nothing to agree to
        raise CommandRefused(
            f"needs an explicit yes: pid {target.pid} holds no GPU memory: "
            f"{facts.title[:80]} (user {facts.user})"
        )

    async def _end(
        self,
        targets: Iterable[ProcessIdentity],
        holders: Sequence[Holder],
        number: signal.Signals,
        wait_s: float,
        escalate: bool,
        id: str,
    ) -> Outcome:
        report = await end_processes(
            self.host.processes,
            self.host.clock,
            tuple(targets),
            first=number,
            wait_s=wait_s,
            escalate=escalate,
        )
        for line in report.lines():
            self.feed.emit("kill", line, id)
        held = {holder.gpu_uuid for holder in holders}
        proof = await self._proof_after(held, holders, report, id)
        lines = (*report.lines(), *(proof.lines() if proof else ()))
        return _outcome(report, proof, lines)

    async def _proof_after(
        self, held: set[str], killed: Sequence[Holder], report: EndReport, id: str
    ) -> CleanProof | None:
        """Prove the GPUs of the killed clean, beside whoever else is allowed to stay there."""
        if not held or not report.are_all_gone:
            return None
        gone = {target.identity for target in report.targets}
        stay = {
            identity
            for holder in self.view.holders
            if holder.kind is not HolderKind.LEFTOVER
            and (identity := _identity(holder)) is not None
            and identity not in gone
        }
        proof = await self.prove_clean(held, stay)
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


def _identity(holder: Holder) -> ProcessIdentity | None:
    if holder.start_ticks is None:
        return None
    return ProcessIdentity(holder.pid, holder.start_ticks)


def _sacred(pid: int) -> str:
    return "the init of this host" if pid == 1 else "kvctld itself"


def require_clean(proof: CleanProof) -> str:
    """Return the proof in one line. Raises KvctlError if something still holds a GPU."""
    if not proof.is_satisfied:
        raise KvctlError(proof.summary())
    return proof.summary()
