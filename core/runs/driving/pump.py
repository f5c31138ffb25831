"""The loop that keeps slots filled, and what it looks after: servers that are down, the disk."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from kvctl.core.clock import Clock, within
from kvctl.core.runs.driving.gate import Gate
from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.opening.schedule import Job
from kvctl.core.runs.outputs.folder import ManifestDiffers, settle_manifest
from kvctl.core.runs.outputs.journal import Journal, Offload
from kvctl.core.runs.sending.sending import Sender
from kvctl.core.runs.sending.slots import NOT_REACHED, Flight, ServerFacts, ServerSlots

_WATCH_S, _DISK_S, _LONG_S = 1.0, 5.0, 3600.0
_FLOOR_BYTES, _FLOOR_RATIO = 2_000_000_000, 0.05


@dataclass(frozen=True, slots=True)
class RunHooks:
    """What a run asks and tells the outside."""

    facts: Callable[[str], Awaitable[ServerFacts | None]] | None = None
    """What a server is, asked whenever it is reached (again); None: not now, ask later."""
    event: Callable[[str, str], None] = lambda kind, text: None
    """Something happened: one word and one line."""


@dataclass(slots=True)
class Pump:
    """Sends whatever may be sent; woken by everything that changes that."""

    opened: OpenedRun
    journal: Journal
    sender: Sender
    servers: list[ServerSlots]
    gate: Gate
    clock: Clock
    hooks: RunHooks
    offload: Offload
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at every change; for waiting until something is so."""
    disk_free_bytes: int | None = None
    _disk_at: float | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: "asyncio.Task[None] | None" = None
    _timer_at: float = 0.0
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _reconnecting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Let the order of partitions follow the lengths of their answers."""
        pairs = zip(self.opened.counters.partitions, self.opened.schedule.lanes, strict=True)
        for counters, lane in pairs:
            lane.mean_tokens = counters.mean_tokens

    def start(self) -> None:
        """Begin; every server is asked first who it is."""
        for slots in self.servers:
            slots.down, slots.probe_at = NOT_REACHED, self.clock.monotonic()
        self._spawn(self._run())
        self._spawn(self._watch())

    def wake(self) -> None:
        """Look again at what may be sent."""
        self._wake.set()
        self.changed.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is so, looked at whenever anything changes; False: time ran out."""

        async def is_so() -> None:
            while not condition():
                self.changed.clear()
                await self.changed.wait()

        try:
            await within(self.clock, timeout_s, is_so())
        except TimeoutError:
            return condition()
        return True

    async def until_ever(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, however long."""
        while not await self.until(condition, _LONG_S):
            pass

    async def stop(self) -> None:
        """End every task, requests in flight included."""
        tasks = list(self._tasks)
        if self._timer is not None:
            tasks.append(self._timer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.gate.failure = f"kvctl itself failed: {type(error).__name__}: {error}"
            self.hooks.event("failed", self.gate.failure)
            self.wake()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            self._note_servers()
            self._reconnect_due()
            self._send_what_fits()
            self._note_finished()
            await self._wake.wait()

    def _send_what_fits(self) -> None:
        while self.gate.is_open:
            slots = max(self.servers, key=lambda s: s.headroom, default=None)
            if slots is None or not slots.headroom:
                return
            job = self.opened.schedule.next(self.clock.monotonic(), slots.facts.numerics)
            if job is None:
                self._arm_timer()
                return
            self._launch(slots, job)

    def _launch(self, slots: ServerSlots, job: Job) -> None:
        flight = Flight(job, self.sender.rid(job), self.clock.monotonic())
        slots.flights[flight.rid] = flight
        flight.task = asyncio.create_task(self.sender.fly(slots, flight))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(self._ended)

    async def drop_flight(self, slots: ServerSlots, flight: Flight) -> None:
        """Give up a request that the server does not give back; its row starts again."""
        if flight.task is None or flight.task.done():
            return
        flight.task.cancel()
        await asyncio.gather(flight.task, return_exceptions=True)
        slots.orphans.append(flight.rid)
        self.opened.schedule.requeue(flight.job)

    def _arm_timer(self) -> None:
        at = self.opened.schedule.wake_at()
        if at is None:
            return
        if self._timer is not None and not self._timer.done():
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.create_task(self._wake_later(at - self.clock.monotonic()))

    async def _wake_later(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        self.wake()

    def _note_finished(self) -> None:
        busy = any(slots.flights for slots in self.servers) or self.journal.pending
        writing = any(p.writing for p in self.opened.counters.partitions)
        finished = not busy and not writing and self.opened.schedule.is_empty
        if finished and self.gate.is_started and not self.gate.is_finished:
            self.gate.is_finished = True
            self.hooks.event("finished", self._summary())
            self.changed.set()

    def _summary(self) -> str:
        parts = self.opened.counters.partitions
        done, failed = sum(p.done for p in parts), sum(p.failed for p in parts)
        return f"{done:,} answers on disk, {failed:,} rows failed"

    # -- servers ------------------------------------------------------------------------------

    def _note_servers(self) -> None:
        down = [slots.down for slots in self.servers] or ["the run has no server"]
        self.gate.servers_down = (down[0] or "") if all(down) else ""

    def _reconnect_due(self) -> None:
        now = self.clock.monotonic()
        for slots in self.servers:
            is_due = slots.down is not None and slots.probe_at is not None and slots.probe_at <= now
            if is_due and slots.url not in self._reconnecting:
                self._reconnecting.add(slots.url)
                self._spawn(self._reconnect(slots))

    async def _reconnect(self, slots: ServerSlots) -> None:
        was = slots.down
        try:
            if not await slots.probe():
                return
            if not await self._ask_facts(slots):
                slots.down = "the server does not say yet what it serves"
                slots.probe_at = self.clock.monotonic() + _WATCH_S
                return
            slots.is_known = True
            self.restart_foreign_partials()
            await slots.abort_orphans()
            again = "" if was in (None, NOT_REACHED) else f" again ({was})"
            self.hooks.event("reached", f"{slots.url} answers{again}")
        finally:
            self._reconnecting.discard(slots.url)
            self.wake()

    async def _ask_facts(self, slots: ServerSlots) -> bool:
        if self.hooks.facts is None:
            return True
        facts = await self.hooks.facts(slots.url)
        if facts is None:
            return False
        await self.set_facts(slots, facts)
        return True

    async def set_facts(self, slots: ServerSlots, facts: ServerFacts) -> None:
        """Take what a server is: another model holds the run, other numerics restart partials."""
        slots.facts = facts
        known = {"model": facts.model, "weight_version": facts.weight_version}
        try:
            await self.offload(lambda: settle_manifest(self.opened.folder, known, force=False))
        except ManifestDiffers as error:
            self.sender.hold("model", f"{slots.url}: {error}")
        if slots.is_known:
            self.restart_foreign_partials()

    def restart_foreign_partials(self) -> None:
        """Start rows again whose prefix no server may continue."""
        if not all(slots.is_known for slots in self.servers):
            return
        known = {slots.facts.numerics for slots in self.servers}
        dropped = tokens = 0
        for job in self.opened.schedule.take_partials():
            if job.partial is not None and job.partial.numerics not in known:
                dropped, tokens = dropped + 1, tokens + job.partial.tokens
                self.sender.drop_partial(job, job.partial.tokens)
            self.opened.schedule.requeue(job)
        if dropped:
            text = f"{dropped} partial answers start again ({tokens:,} tokens): other numerics"
            self.hooks.event("restarted", text)

    # -- disk ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await self._read_disk()
            self._reconnect_due()
            await self.clock.sleep(_WATCH_S)

    async def _read_disk(self) -> None:
        now = self.clock.monotonic()
        if self._disk_at is not None and now - self._disk_at < _DISK_S:
            return
        self._disk_at = now
        try:
            usage = await self.offload(lambda: shutil.disk_usage(self.opened.folder))
        except OSError as error:
            self.sender.hold("disk", f"{self.opened.folder}: {error.strerror}")
            return
        self.disk_free_bytes = usage.free
        floor = min(_FLOOR_BYTES, int(usage.total * _FLOOR_RATIO))
        if usage.free < floor:
            text = f"{self.opened.folder}: {usage.free / 1e9:.1f} GB free, below {floor / 1e9:.1f}"
            self.sender.hold("disk space", text)
        elif usage.free > floor * 1.1:
            self.gate.holds.pop("disk space", None)
            self.wake()
