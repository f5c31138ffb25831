"""Drives one run: keeps every server's slots filled with rows until each has its answer.

It knows servers only as `Generator`s and nothing of the controller, which sets targets, holds and
pauses. No verb ever loses a row; only `harvest`, `abandon` and `close` cut requests.
"""

from collections.abc import Callable, Mapping, Sequence

from kvctl.core.clock import Clock, within
from kvctl.core.domain.errors import CommandRefused
from kvctl.core.domain.run import Run, RunState
from kvctl.core.domain.runfile import RunSpec
from kvctl.core.ports import Generator
from kvctl.core.runs.folder import Settings
from kvctl.core.runs.gate import OPERATOR, Gate
from kvctl.core.runs.harvest import HarvestCount, HarvestReport, cut_all
from kvctl.core.runs.journal import DiskTrouble, Journal, Offload, in_thread
from kvctl.core.runs.opened import OpenedRun
from kvctl.core.runs.opening import OpenOptions, open_run
from kvctl.core.runs.pump import Pump, RunHooks
from kvctl.core.runs.sending import Sender
from kvctl.core.runs.slots import ServerSlots
from kvctl.core.runs.viewing import Standing, unopened, view_run

START_TARGET = 16
_LONG_S = 3600.0
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
        self.generation_tokens_per_s: float | None = None
        """The servers' own figure, for the ETA; None: estimated from what was completed."""
        self.pool_tokens: int | None = None
        self.held: tuple[float, float] | None = None
        """Tokens in the servers' pools and the running requests that hold them."""
        self.gate = Gate(clock.monotonic)
        self._clock, self._hooks, self._options, self._offload = clock, hooks, options, offload
        self._factories = tuple(generators)
        self._pump: Pump | None = None
        self._started_at = clock.monotonic()

    # -- life ---------------------------------------------------------------------------------

    async def open(self) -> OpenedRun:
        """Lock the folder, check every input, read back the journal; sends nothing.

        Raises:
            KvctlError: As `kvctl.core.runs.opening.open_run`.
        """
        wall = self._clock.wall()
        opened = await self._offload(lambda: open_run(self.spec, self._options, wall))
        journal = Journal(opened.folder, self._clock, self._offload, on_trouble=self._note_disk)
        sender = Sender(opened, journal, self._clock, self.hold, self._wake, self._offload)
        servers = [ServerSlots(make(), self._clock) for make in self._factories]
        self._pump = Pump(
            opened, journal, sender, servers, self.gate, self._clock, self._hooks, self._offload
        )
        for counters, lane in zip(opened.counters.partitions, opened.schedule.lanes, strict=True):
            lane.mean_tokens = counters.mean_tokens
        self._restore(opened.settings)
        for torn in opened.notes.torn:
            text = f"{torn.file}: {torn.bytes} torn bytes moved to {torn.kept_as}"
            self._hooks.event("torn", text)
        return opened

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
        if self.gate.is_started:
            for slots in pump.servers:
                if slots.flights and slots.down is None:
                    await self._cut(slots, keep=keep, timeout_s=timeout_s)
        await pump.stop()
        try:
            await pump.journal.close()
        finally:
            for slots in pump.servers:
                await slots.generator.close()
            for index in pump.opened.indexes:
                index.close()
            pump.opened.lock.release()
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
        settings = self._need().opened.settings
        settings.pauses = dict(self.gate.pauses)
        try:
            settings.save()
        except DiskTrouble as error:
            self._hooks.event("disk", str(error))

    @property
    def manual(self) -> int | None:
        """The operator's number of slots; None is AUTO."""
        if self._pump is None:
            return self.spec.concurrency
        return self._pump.opened.settings.manual

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
        if by == OPERATOR:
            self.gate.pauses.clear()
            for cause in ("denied", "refused", "input", "model"):
                self.gate.holds.pop(cause, None)
            self._need().sender.refused_in_a_row = 0
        else:
            self.gate.pauses.pop(by, None)
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
        servers = self._need().servers
        if server is not None:
            slots = self._at(server)
            slots.target, slots.is_held, slots.note = max(0, target), is_held, note
        elif servers:
            share, rest = divmod(max(0, target), len(servers))
            for number, slots in enumerate(servers):
                slots.target = share + (number < rest)
                slots.is_held, slots.note = is_held, note
        self._wake()

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the slots among partitions in proportion; 0 stops a partition.

        Raises:
            CommandRefused: A name is not a partition, or a weight is negative.
        """
        pump = self._need()
        names = [lane.name for lane in pump.opened.schedule.lanes]
        if unknown := sorted(set(weights) - set(names)):
            raise CommandRefused(f"no partition {unknown[0]}: there are {', '.join(names)}")
        if any(weight < 0 for weight in weights.values()):
            raise CommandRefused("a weight is 0 or more")
        pump.opened.schedule.set_weights(weights)
        pump.opened.settings.weights.update(weights)
        self._keep_settings()
        self._wake()

    def retry_failed(self) -> int:
        """Queue the rows that had failed for good again; return how many."""
        pump = self._need()
        jobs = [pump.opened.failed[place] for place in sorted(pump.opened.failed)]
        pump.opened.failed.clear()
        for job in jobs:
            pump.sender.retry_again(job)
        pump.opened.schedule.add_failed(jobs)
        if jobs:
            self.gate.is_finished = False
        self._wake()
        return len(jobs)

    # -- cutting ------------------------------------------------------------------------------

    async def harvest(
        self, server: str | None = None, *, timeout_s: float = 30.0
    ) -> HarvestReport | None:
        """Abort every own request at a server and keep what is there of each answer.

        Hold or pause first, else sending goes on at once. None: nothing was in flight.
        """
        return await self._cut(self._at(server), keep=True, timeout_s=timeout_s)

    async def abandon(
        self, server: str | None = None, *, timeout_s: float = 30.0
    ) -> HarvestReport | None:
        """Abort every own request at a server; its rows start again."""
        return await self._cut(self._at(server), keep=False, timeout_s=timeout_s)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight and all of it is durable; False: time ran out."""
        pump = self._need()
        return await self.until(lambda: self._is_quiet(pump), timeout_s)

    def _is_quiet(self, pump: Pump) -> bool:
        writing = any(p.writing for p in pump.opened.counters.partitions)
        return not writing and not any(slots.flights for slots in pump.servers)

    async def _settled(self, pump: Pump, slots: ServerSlots, timeout_s: float) -> None:
        """Wait until what came back from one server is durable; others may go on sending."""
        if len(pump.servers) == 1:
            await self.drain(timeout_s)
            return
        await self.until(lambda: not slots.flights, timeout_s)
        try:
            await within(self._clock, timeout_s, pump.journal.flush())
        except TimeoutError:
            return  # the disk refuses: the journal holds the run and keeps the lines

    async def _cut(
        self, slots: ServerSlots, *, keep: bool, timeout_s: float
    ) -> HarvestReport | None:
        if not slots.flights:
            return None
        pump = self._need()
        asked, begun = len(slots.flights), self._clock.monotonic()
        count = pump.sender.counting[slots.url] = HarvestCount()
        slots.is_cutting = True
        try:
            left = await cut_all(slots, self._clock, timeout_s=timeout_s, keep=keep)
            for flight in left:
                await pump.drop_flight(slots, flight)
            await self._settled(pump, slots, timeout_s)
        finally:
            slots.is_cutting = False
            pump.sender.counting.pop(slots.url, None)
            self._wake()
        took = self._clock.monotonic() - begun
        return count.report(slots.url, asked, len(left), took)

    def _at(self, server: str | None) -> ServerSlots:
        servers = self._need().servers
        wanted = None if server is None else server.rstrip("/")
        found = [s for s in servers if wanted in (None, s.url)]
        if len(found) != 1:
            names = ", ".join(s.url for s in servers)
            raise CommandRefused(f"name one server of this run: {names}")
        return found[0]

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
        pump = self._need()

        async def is_so() -> None:
            while not condition():
                pump.changed.clear()
                await pump.changed.wait()

        try:
            await within(self._clock, timeout_s, is_so())
        except TimeoutError:
            return condition()
        return True

    async def finished(self) -> None:
        """Wait until every row has its answer or has failed, or the run itself failed."""
        ends = (RunState.FINISHED, RunState.FAILED)
        while not await self.until(lambda: self.gate.state in ends, _LONG_S):
            pass

    def view(self, now: float) -> Run:
        """Return the run as frontends show it; while it opens, only what its file says."""
        if self._pump is None:
            return unopened(self.spec, self.gate.state, self.gate.since)
        pump = self._pump
        notes = [slots.note for slots in pump.servers if slots.note]
        standing = Standing(
            state=self.gate.state,
            state_since=self.gate.since,
            reason=self.gate.reason or "; ".join(notes),
            is_auto=self.manual is None,
            auto_target=self.auto_target,
            started_at=self._started_at,
            generation_tokens_per_s=self.generation_tokens_per_s,
            pool_tokens=self.pool_tokens,
            held=self.held,
            disk_free_bytes=pump.disk_free_bytes,
            now=now,
            wall=self._clock.wall(),
        )
        return view_run(pump.opened, pump.journal, pump.servers, standing)
