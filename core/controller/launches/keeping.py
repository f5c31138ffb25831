"""Writes into the ledger what a launch shows of itself: prediction, resolved flags, memory, points.

`Sequences` writes that a launch began, serves and ended. What only shows later, or again after
kvctld was away, is noticed here once a second.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvctl.core.controller.host import Host
from kvctl.core.controller.launches.operating import OperatingLog
from kvctl.core.controller.launches.planner import Planner
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.capacity.calibration import observed_launch
from kvctl.core.domain.gpus.devices import GpuView, HolderKind
from kvctl.core.domain.launches.launch import model_key
from kvctl.core.domain.presets.serving_flags import pool_flags, serving_flags
from kvctl.core.domain.servers.server import ServerState, StageState
from kvctl.core.domain.telemetry.readings import ServerInfo
from kvctl.core.servers.ledger import Ledger, LedgerUnwritable

CAUSE_WITHIN_S = 5.0
"""The ranks of a server that died write their errors until then."""


@dataclass(slots=True, eq=False)
class LaunchKeeper:
    """Notices what is to be kept of the launches that are watched."""

    host: Host
    feed: EventFeed
    ledger: Ledger
    planner: Planner
    _predicted: set[str] = field(default_factory=set)
    _measured: set[str] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _problem: str = ""

    def tick(self, watches: Iterable[ServerWatch], gpus: GpuView, points: OperatingLog) -> None:
        """Look at every launch of kvctl's own, and keep the windows that are due."""
        for watch in watches:
            id = watch.record.launch_id
            if id is None or not watch.record.is_managed:
                continue
            self._predict(id, watch)
            self._end(id, watch)
            if watch.record.ready_seen and watch.info is not None and id not in self._measured:
                self._measured.add(id)
                task = asyncio.create_task(self._measure(id, watch, watch.info, gpus))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self.keep(points)

    def keep(self, points: OperatingLog) -> None:
        """Write the windows that are due."""
        for point in points.take_fresh():
            if point.launch is not None:
                self._write(partial(self.ledger.point, point.launch, point))

    async def close(self) -> None:
        """Wait for what is being measured."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _predict(self, id: str, watch: ServerWatch) -> None:
        """Keep what was expected, as long as the launch has not told its pool."""
        is_open = watch.state is ServerState.STARTING and watch.startup.pool_tokens is None
        if id in self._predicted or not is_open or watch.record.preset is None:
            return
        planned = self.planner.of(watch.record.preset)
        if planned is None or planned.pool is None:
            return
        self._predicted.add(id)
        pool = planned.pool.times(1 / planned.pools)
        self._write(lambda: self.ledger.predicted(id, pool, planned.calibrated_by))

    def _end(self, id: str, watch: ServerWatch) -> None:
        """Keep how a launch ended that nobody ended, once its log had time to tell the cause."""
        record, now = watch.record, self.host.clock.monotonic()
        is_told = watch.is_lost and now - watch.state_since >= CAUSE_WITHIN_S
        if id in self._ended or record.is_ended or record.ended_wall is None or not is_told:
            return
        self._ended.add(id)
        wall, code, cause = record.ended_wall, watch.exit_code(), watch.state_reason
        self._write(lambda: self.ledger.ended(id, wall, code, cause))

    async def _measure(self, id: str, watch: ServerWatch, info: ServerInfo, gpus: GpuView) -> None:
        known = self.ledger.record_of(id)
        if known is None or known.flags:
            return  # not of this ledger, or an earlier kvctld has written it
        records = await asyncio.to_thread(watch.tail.startup_records) if watch.tail else ()
        flags = pool_flags(info.flags)
        model = model_key(watch.record.model_path)
        seen = observed_launch(model, serving_flags(flags, info.version), records)
        facts: dict[str, Any] = {
            "server": watch.record.name,
            "model": model,
            "flags": list(flags.items()),
            "version": info.version,
            "pool_tokens": info.pool_tokens,
            "max_running": info.max_running,
            "stages": _stage_times(watch),
            "gpus": _held(watch, gpus),
        }
        if seen is not None:
            facts |= {"before_bytes": seen.before_bytes, "after_bytes": seen.after_bytes}
            facts |= {"pool_tokens": seen.pool_tokens, "max_running": seen.max_running}
        self._write(lambda: self.ledger.measured(id, facts))
        self.planner.outdated.set()

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except LedgerUnwritable as problem:
            if str(problem) != self._problem:
                self._problem = str(problem)
                self.feed.emit("ledger", self._problem)


def _stage_times(watch: ServerWatch) -> list[tuple[str, float]]:
    """Return the seconds of each step of the start; none where another kvctld saw it."""
    return [
        (stage.name, round(stage.ended_at - stage.started_at, 3))
        for stage in watch.stages.items
        if stage.state is StageState.DONE
        and stage.started_at is not None
        and stage.ended_at is not None
    ]


def _held(watch: ServerWatch, gpus: GpuView) -> list[tuple[str, int]]:
    """Return the index of each GPU and the bytes that the server's ranks hold on it."""
    held: dict[str, int] = {}
    for holder in gpus.holders:
        is_own = holder.server == watch.record.name and holder.kind is HolderKind.RANK
        if is_own and holder.memory_bytes:
            index = str(holder.gpu_index)
            held[index] = held.get(index, 0) + holder.memory_bytes
    return sorted(held.items())
