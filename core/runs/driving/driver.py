"""Drives one run: keeps every server's slots filled with rows until each has its answer.

It knows servers only as `Generator`s and nothing of the controller, which sets targets, holds and
pauses. No verb ever loses a row; only `harvest`, `abandon` and `close` cut requests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvctl.core.clock import Clock
from kvctl.core.domain.errors import CommandRefused
from kvctl.core.domain.runs.pace import PaceTrack
from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.domain.runs.run_file import RunSpec
from kvctl.core.ports import Generator
from kvctl.core.runs.driving import fleet
from kvctl.core.runs.driving.closing import close_all
from kvctl.core.runs.driving.cutting import cut, drained
from kvctl.core.runs.driving.gate import OPERATOR, Gate
from kvctl.core.runs.driving.levers import retry_failed, set_weights
from kvctl.core.runs.driving.pump import Pump, RunHooks
from kvctl.core.runs.driving.viewing import Standing, unopened, view_run
from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.opening.opening import OpenOptions, open_run
from kvctl.core.runs.outputs.folder import Settings
from kvctl.core.runs.outputs.journal import DiskTrouble, Journal, Offload, in_thread
from kvctl.core.runs.sending.harvest import HarvestReport
from kvctl.core.runs.sending.sending import Sender
from kvctl.core.runs.sending.slots import ServerSlots

START_TARGET = 16
_NO_HOOKS, _NO_OPTIONS = RunHooks(), OpenOptions()


class RunDriver:
    """One run over one or several servers."""

    def __init__(
        self,
        spec: RunSpec,
        clock: Clock,
        generators: Sequence[Callable[[], Generator]],
        hooks: RunHooks = _NO_HOOKS,
        *,
        options: OpenOptions = _NO_OPTIONS,
        offload: Offload = in_thread,
    ) -> None:
        """Prepare; nothing is read or sent before `open`."""
        self.spec = spec
        self.auto_target: int | None = None
        """What AUTO says, for the view."""
        self.pace = PaceTrack()
        """The servers' own figures while sending; empty: estimated from what was completed."""
        self.pool_tokens: int | None = None
        self.held: tuple[float, float] | None = None
        """Tokens in the servers' pools and the running requests that hold them."""
        self.gate = Gate(clock.monotonic)
        self._clock, self._hooks, self._options, self._offload = clock, hooks, options, offload
        self._factories = tuple(generators)
        self._pump: Pump | None = None
        self._started_at = clock.monotonic()
        self._generation: float | None = None

    # -- life ---------------------------------------------------------------------------------

    async def open(self) -> OpenedRun:
        """Lock the folder, check every input, read back the journal; sends nothing.

        Raises:
            KvctlError: As `kvctl.core.runs.opening.opening.open_run`.
        """
        wall = self._clock.wall()
        opened = await self._offload(lambda: open_run(self.spec, self._options, wall))
        journal = Journal(opened.folder, self._clock, self._offload, on_trouble=self._note_disk)
        sender = Sender(opened, journal, self._clock, self.hold, self._wake, self._offload)
        servers = [ServerSlots(make(), self._clock) for make in self._factories]
        self._pump = Pump(
            opened, journal, sender, servers, self.gate, self._clock, self._hooks, self._offload
        )
        self._restore(opened.settings)
        for torn in opened.notes.torn:
            text = f"{torn.file}: {torn.bytes} torn bytes moved to {torn.kept_as}"
            self._hooks.event("torn", text)
        return opened

    def found(self) -> tuple[str, ...]:
        """Return what the inputs and the journal hold, a line a partition."""
        return self._need().opened.lines()

    def start(self) -> None:
        """Begin to send, as far as holds and pauses allow."""
        pump = self._need()
        self._started_at = self._clock.monotonic()
        pump.journal.start()
        self.gate.is_started = True
        pump.start()
        pump.wake()

    async def close(self, *, keep: bool = True, timeout_s: float = 20.0) -> None:
        """Stop for good; what is in flight is harvested, or abandoned without `keep`.

        Raises:
            DiskTrouble: Records could not be written; their rows are made again.
        """
        pump = self._need()
        self.hold("closing", "the run is being closed")
        try:
            await close_all(pump, keep=keep, timeout_s=timeout_s)
        finally:
            self.gate.is_started = False
            self._pump = None

    def _need(self) -> Pump:
        if self._pump is None:
            raise CommandRefused(f"run {self.spec.name} is not open: start it first")
        return self._pump

    def _restore(self, settings: Settings) -> None:
        self.gate.pauses.update(settings.pauses)
        if settings.weights:
            self._need().opened.schedule.set_weights(settings.weights)
        self.set_target(START_TARGET if settings.manual is None else settings.manual)

    def _keep_settings(self) -> None:
        """Write what the operator has set; a disk that refuses is the journal's concern."""
        pump = self._need()
        pump.opened.settings.pauses = dict(self.gate.pauses)
        try:
            pump.opened.settings.save()
        except DiskTrouble as error:
            self._hooks.event("disk", str(error))

    @property
    def manual(self) -> int | None:
        """The operator's number of slots; None is AUTO."""
        if self._pump is None:
            return self.spec.concurrency
        return self._pump.opened.settings.manual

    @property
    def generation_tokens_per_s(self) -> float | None:
        """The servers' own figure, last told; None where they do not tell."""
        return self._generation

    @generation_tokens_per_s.setter
    def generation_tokens_per_s(self, figure: float | None) -> None:
        self._generation = figure
        if figure is None or not self.gate.is_open:
            self.pace.clear()
            return
        used, running = self.held or (0.0, float(self.in_flight()))
        self.pace.add(self._clock.monotonic(), figure, running, used)

    # -- sending ------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._pump is not None:
            self._pump.wake()

    def hold(self, cause: str, reason: str) -> None:
        """Stop sending for a cause of kvctl's own; several causes stand side by side."""
        if self.gate.holds.get(cause) != reason:
            self.gate.holds[cause] = reason
            self._hooks.event("hold", reason)
        self._wake()

    def release(self, cause: str) -> None:
        """End one cause; sending goes on when none is left and nobody has paused."""
        if self.gate.holds.pop(cause, None) is not None:
            self._hooks.event("released", cause)
        self._wake()

    def pause(self, reason: str = "paused by you", *, by: str = OPERATOR) -> None:
        """Stop sending because the operator or the policy says so; nothing in flight is cut."""
        self.gate.pauses[by] = reason
        self._keep_settings()
        self._wake()

    def resume(self, *, by: str = OPERATOR) -> None:
        """Send again; the operator's word also ends the policy's pause and refusals."""
        self.gate.end_pause(by)
        if by == OPERATOR:
            self._need().sender.attempts.refused_in_a_row = 0
        self._keep_settings()
        self._wake()

    def set_manual(self, target: int | None) -> None:
        """Keep the operator's number (None: AUTO); the caller sets the target itself."""
        self._need().opened.settings.manual = target
        self._keep_settings()

    def set_target(
        self, target: int, server: str | None = None, *, is_held: bool = False, note: str = ""
    ) -> None:
        """Set how many requests may be in flight, over all servers or at one.

        Lowering it, and `is_held`, only stop sending; nothing is aborted. A throttle law's
        `Decision` fits: target, is_held and its reason as `note`.
        """
        pump = self._need()
        if server is None:
            fleet.share_target(pump, target, is_held=is_held, note=note)
        else:
            fleet.set_target(pump, self._at(server), target, is_held=is_held, note=note)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the slots among partitions in proportion. Raises CommandRefused."""
        set_weights(self._need(), weights)
        self._keep_settings()
        self._wake()

    def retry_failed(self) -> int:
        """Queue the rows that had failed for good again; return how many."""
        return retry_failed(self._need())

    # -- cutting ------------------------------------------------------------------------------

    async def harvest(
        self, server: str | None = None, *, timeout_s: float = 30.0
    ) -> HarvestReport | None:
        """Abort every own request at a server and keep its answers; None: nothing was in flight.

        Hold or pause first, else sending goes on at once.
        """
        return await cut(self._need(), self._at(server), keep=True, timeout_s=timeout_s)

    async def abandon(
        self, server: str | None = None, *, timeout_s: float = 30.0
    ) -> HarvestReport | None:
        """Abort every own request at a server; its rows start again."""
        return await cut(self._need(), self._at(server), keep=False, timeout_s=timeout_s)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight and all of it is durable; False: time ran out."""
        return await drained(self._need(), timeout_s)

    def _at(self, server: str | None) -> ServerSlots:
        return fleet.server_at(self._need(), server)

    def add_server(self, make: Callable[[], Generator]) -> str:
        """Send to one more server once it answers and has a target; return its URL."""
        url = fleet.add_server(self._need(), make).url
        self._follow_servers()
        return url

    async def remove_server(self, server: str, *, keep: bool | None) -> HarvestReport | None:
        """Stop using a server; its answers in flight end (None), are kept (True) or start again."""
        report = await fleet.remove_server(self._need(), self._at(server), keep=keep)
        self._follow_servers()
        return report

    def keep_servers(self, named: Sequence[str]) -> None:
        """Remember the servers of now over kvctld's death, and what the run file names."""
        settings = self._need().opened.settings
        settings.servers, settings.servers_named = list(self.spec.servers), list(named)
        self._keep_settings()

    def _follow_servers(self) -> None:
        self.spec = replace(self.spec, servers=tuple(s.url for s in self._need().servers))

    # -- seeing -------------------------------------------------------------------------------

    def _note_disk(self, trouble: str | None) -> None:
        if trouble is None:
            self.release("disk")
        else:
            self.hold("disk", trouble)

    def meet(self, server: str, launch: str) -> None:
        """Note which start of a server serves; a new one is asked what it is, then sent to."""
        if self._at(server).meet(launch):
            self._wake()

    def in_flight(self, server: str | None = None) -> int:
        """Return this run's own requests at one server, or at all."""
        return sum(len(s.flights) for s in self._need().servers if server in (None, s.url))

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is so, looked at whenever anything changes; False: time ran out."""
        return await self._need().until(condition, timeout_s)

    async def finished(self) -> None:
        """Wait until every row has its answer or has failed, or the run itself failed."""
        ends = (RunState.FINISHED, RunState.FAILED)
        await self._need().until_ever(lambda: self.gate.state in ends)

    def view(self, now: float) -> Run:
        """Return the run as frontends show it; while it opens, only what its file says."""
        if self._pump is None:
            return unopened(self.spec, self.gate.state, self.gate.since)
        standing = Standing(
            self.manual,
            self.auto_target,
            self._started_at,
            self.pace,
            self.pool_tokens,
            self.held,
            now,
        )
        return view_run(self._pump, standing)
