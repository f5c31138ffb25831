"""The automatic restart of a server that served and died: off unless configured, and limited.

Never while the operator holds: a paused run, a start or stop in progress or a server that was
stopped is left alone. Each step is an event; the failure card says what comes next.
"""

import asyncio
import traceback
from dataclasses import dataclass, field
from functools import partial

from kvctl.core.controller.commands import RestartServer
from kvctl.core.controller.sequences.sequences import Sequences
from kvctl.core.controller.servers.records import is_of_this_boot
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.servers.server import ServerState
from kvctl.core.domain.units import clock_time, duration
from kvctl.core.servers.limits import CrashRestart

LOOK_S = 1.0


@dataclass(slots=True, eq=False)
class CrashRestarts:
    """Looks once a second for a server that crashed."""

    sequences: Sequences
    _waiting: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    """By server."""
    _given_up: set[str] = field(default_factory=set)
    """Launches that stay down."""

    @property
    def rule(self) -> CrashRestart:
        """What config.toml says."""
        return self.sequences.desk.host.config.crash

    def tick(self) -> None:
        """Begin to wait for the restart of each server that has just crashed."""
        for watch in list(self.sequences.desk.watches.values()):
            name = watch.record.name
            if name not in self._waiting and self._is_wanted(watch):
                task = asyncio.get_running_loop().create_task(self._bring_back(name))
                self._waiting[name] = task
                task.add_done_callback(partial(self._no_longer, name))

    def _no_longer(self, name: str, task: "asyncio.Task[None]") -> None:
        self._waiting.pop(name, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            traceback.print_exception(fault)

    async def close(self) -> None:
        """Stop waiting; the next kvctld looks again."""
        for task in self._waiting.values():
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)

    def _is_wanted(self, watch: ServerWatch) -> bool:
        """Return whether a server served, died, and is to be started again."""
        record, clock = watch.record, self.sequences.desk.host.clock
        asked = record.restarts_after_crash
        return (
            watch.state is ServerState.FAILED
            and record.ready_seen
            and record.is_managed
            and record.preset is not None
            and record.launch_id not in self._given_up
            and (self.rule.restart if asked is None else asked)
            and is_of_this_boot(record, clock.wall() - clock.monotonic())
        )

    async def _bring_back(self, name: str) -> None:
        """Wait, restart, and wait longer after each restart that failed."""
        desk = self.sequences.desk
        while (watch := self._crashed(name)) is not None:
            number = len(self._recent(name)) + 1
            if number > self.rule.most_restarts:
                self._give_up(watch)
                return
            if not await self._wait_turn(watch, number):
                return  # the operator has acted
            desk.remembered.crash_restarts[name] = [*self._recent(name), desk.host.clock.wall()]
            desk.save()
            await self._restart(watch, number)

    async def _wait_turn(self, watch: ServerWatch, number: int) -> bool:
        """Wait until it is time and the operator holds nothing; False if it is not wanted then."""
        clock = self.sequences.desk.host.clock
        wait_s = self.rule.wait_s * 2 ** (number - 1)
        at = clock.monotonic() + wait_s
        which = f"{number} of {self.rule.most_restarts} within {duration(self.rule.within_s)}"
        watch.next_step = f"it restarts by itself at {clock_time(clock.wall() + wait_s)} ({which})"
        self._tell(watch, f"crashed: {watch.next_step}; p holds it, R or S acts now")
        is_held = False
        while clock.monotonic() < at or self._is_held():
            if self._is_held() and not is_held:
                is_held = True
                watch.next_step = f"it restarts by itself once you send again, p ({which})"
                self._tell(watch, "waits with its restart: you hold the run")
            await clock.sleep(LOOK_S)
            if self._crashed(watch.record.name) is not watch:
                return False
        return self.sequences.busy is None

    def _is_held(self) -> bool:
        """Return whether the operator keeps things still."""
        run = self.sequences.run.view()
        return run is not None and run.state is RunState.PAUSED

    async def _restart(self, watch: ServerWatch, number: int) -> None:
        record = watch.record
        id = f"crash-{record.launch_id}-{number}"
        self._tell(watch, f"is restarted with {record.preset} after its crash ({number})", id)
        try:
            command = RestartServer(record.preset, record.name, cut_foreign=True)
            outcome = await self.sequences.restart(command, id)
            said = outcome.message
        except KvctlError as error:
            said = "; ".join(str(error).splitlines())
        self._tell(watch, f"after its crash: {said}", id)

    def _crashed(self, name: str) -> ServerWatch | None:
        """Return a server that is down and is to come back; None otherwise."""
        watch = self.sequences.desk.watches.get(name)
        if watch is None or self.sequences.busy is not None:
            return None
        is_retry = watch.state is ServerState.FAILED and bool(self._recent(name))
        return watch if is_retry or self._is_wanted(watch) else None

    def _recent(self, name: str) -> list[float]:
        """Return when it was restarted by itself within the time that counts."""
        desk = self.sequences.desk
        oldest = desk.host.clock.wall() - self.rule.within_s
        return [at for at in desk.remembered.crash_restarts.get(name, []) if at > oldest]

    def _give_up(self, watch: ServerWatch) -> None:
        self._given_up.add(watch.record.launch_id or "")
        span = duration(self.rule.within_s)
        watch.next_step = f"it stays down: {self.rule.most_restarts} restarts within {span}"
        self._tell(watch, f"{watch.next_step}; R starts it again")

    def _tell(self, watch: ServerWatch, said: str, id: str | None = None) -> None:
        self.sequences.desk.feed.emit("crash restart", f"{watch.record.name}: {said}", id)
