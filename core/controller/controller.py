"""The one place of state and action: commands in, snapshots out.

`submit` routes each command to the desk that carries it out and turns every failure into an
outcome; `run` keeps the sources read and the snapshot current. No rule of the domain lives here.
"""

import asyncio
import itertools
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kvctl.core.clock import within
from kvctl.core.controller import commands as c
from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.controller.gpus.desk import FIRST_READ_S, PERIOD_S, GpuDesk
from kvctl.core.controller.host import Host
from kvctl.core.controller.launches.keeping import LaunchKeeper
from kvctl.core.controller.launches.planner import Planner, plan_document
from kvctl.core.controller.picture import Picture
from kvctl.core.controller.preset_desk import PresetDesk
from kvctl.core.controller.runs.desk import RunDesk
from kvctl.core.controller.runs.levers import RunLevers
from kvctl.core.controller.runs.servers import RunServers
from kvctl.core.controller.sequences.broken_off import BrokenOff
from kvctl.core.controller.sequences.crash_restarts import CrashRestarts
from kvctl.core.controller.sequences.sequences import Sequences
from kvctl.core.controller.servers.desk import ServerDesk
from kvctl.core.controller.servers.live_cap import LiveCaps
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.state import StateFile
from kvctl.core.controller.store import EventFeed, Store
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.servers.flags.asking import CatalogueCache
from kvctl.core.servers.ledger import Ledger

Route = Callable[[Any, str], Awaitable[Outcome]]
"""A command and its id to its outcome."""

TICK_S = 1.0
FIND_S = 10.0
PLAN_S = 30.0
FIRST_PLAN_S = 1.0
_LOOKS = (c.CheckPreset, c.PlanPresets)


class Controller:
    """Owns everything kvctl knows and does on one host."""

    def __init__(self, host: Host) -> None:
        """Build the desks over the host and read what an earlier kvctld remembered.

        Raises:
            KvctlError: The state file cannot be read.
        """
        self.host = host
        self._state_file = StateFile(host.state_folder / "state.json")
        self.remembered = self._state_file.load()
        self.feed = EventFeed(host.clock, host.state_folder / "audit.jsonl")
        self.feed.load_recent()
        self.ledger = Ledger(host.state_folder / "launches.jsonl")
        self.servers = ServerDesk(host, self.feed, self.remembered, self._save, self._sampled)
        self.gpus = GpuDesk(host, self.feed, self.servers.known)
        self.gpus.idle_bytes.update(self.remembered.idle_bytes)
        self.run_desk = RunDesk(host, self.feed, self.servers, self.remembered, self._save)
        self.levers = RunLevers(self.run_desk)
        self.caps = LiveCaps(self.servers)
        self.run_servers = RunServers(self.run_desk)
        catalogues = CatalogueCache(host.state_folder / "flags")
        self.preset_desk = PresetDesk(host, self.feed, catalogues)
        self.sequences = Sequences(
            self.servers,
            self.gpus,
            self.run_desk,
            self.ledger,
            catalogues,
        )
        self.run_desk.expect()
        self.broken_off = BrokenOff(self.sequences)
        self.broken_off.expect()
        self.crash_restarts = CrashRestarts(self.sequences)
        self.planner = Planner(host, self.ledger)
        self.keeper = LaunchKeeper(host, self.feed, self.ledger, self.planner)
        self.picture = Picture(host, self.feed, self.ledger)
        self.store = Store(self._compose())
        self.is_leaving = asyncio.Event()
        self.routes = self._routes()
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()

    def snapshot(self) -> Snapshot:
        """Return the current picture."""
        return self._compose()

    def subscribe(self) -> AsyncIterator[Snapshot]:
        """Yield the current picture, then later ones; a slow reader misses those between."""
        self.store.latest = self._compose()  # never older than what a command has just done
        return self.store.subscribe()

    async def submit(self, command: Command) -> Outcome:
        """Carry out a command to its end; what goes wrong is in the outcome."""
        id = f"{self.host.clock.wall():.0f}-{next(self._numbers)}"
        self._changed.set()
        try:
            return await self.routes[type(command)](command, id)
        except KvctlError as error:
            problems = tuple(str(error).splitlines())
            said = "; ".join(problems)
            if not isinstance(command, _LOOKS):  # looking through presets is no event
                self.feed.emit("refused" if error.exit_status == 4 else "failed", said, id)
            return Outcome(error.exit_status, said, problems[1:] and problems)
        except Exception as error:  # the command boundary: told in one line, traceback to the log
            traceback.print_exc()
            what = " ".join(str(error).split())
            said = f"unexpected {type(error).__name__}: {what} (traceback in kvctld's log)"
            self.feed.emit("failed", said, id)
            return Outcome(1, said)
        finally:
            self._changed.set()

    async def run(self) -> None:
        """Sample, act and publish until cancelled."""
        self.servers.readopt()
        self.caps.take_up()
        await self.gpus.read(limit_s=FIRST_READ_S)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(PERIOD_S, self._read_gpus))
            group.create_task(self._every(FIND_S, self._find))
            group.create_task(self._every(TICK_S, self._tick))
            group.create_task(self._keep_planning())
            group.create_task(self._publish())
            group.create_task(self.broken_off.take_up())
            group.create_task(self.run_desk.reopen())

    async def close(self) -> None:
        """Bring everything to rest; servers go on, the run is taken up by the next kvctld."""
        await self.crash_restarts.close()
        await self.sequences.close()
        await self.run_desk.close()
        await self.caps.close()
        await self.servers.close()
        self.picture.history.flush()
        self.picture.points.close()
        self.keeper.keep(self.picture.points)
        await self.keeper.close()
        self._save()

    def _routes(self) -> dict[type[Command], Route]:
        """Return who carries out which command; every command has exactly one entry."""
        return {
            c.CheckPreset: self._check,
            c.PlanPresets: self._plan,
            c.OwnPreset: self.preset_desk.own,
            c.ValidatePreset: self.preset_desk.validate,
            c.StartServer: self.sequences.start,
            c.StopServer: self.sequences.stop,
            c.RestartServer: self.sequences.restart,
            c.CancelStart: self.sequences.cancel,
            c.AdoptServer: self.servers.adopt,
            c.ForgetServer: self.servers.forget,
            c.CapServer: self.caps.set,
            c.KillProcesses: self.gpus.kill,
            c.ClearGpus: self.gpus.clear,
            c.StartRun: self.run_desk.start,
            c.PauseRun: self.levers.pause,
            c.ResumeRun: self.levers.resume,
            c.CloseRun: self.run_desk.finish,
            c.Throttle: self.levers.throttle,
            c.NudgeThrottle: self.levers.nudge,
            c.SetWeights: self.levers.set_weights,
            c.ChangeRunServers: self.run_servers.change,
            c.RetryFailed: self.levers.retry_failed,
            c.RefreshNow: self._refresh,
            c.StopDaemon: self._leave,
        }

    async def _check(self, command: c.CheckPreset, id: str) -> Outcome:
        """Check a preset, and say what it would bring."""
        outcome = await self.sequences.check(command, id)
        snapshot = self._compose()
        await self.planner.refresh(snapshot)
        planned = self.planner.of(command.preset)
        if planned is None:
            return outcome
        server = snapshot.server
        now = server.decode.pool_tokens.value if server is not None else None
        return replace(outcome, data=outcome.data | plan_document(planned, now))

    async def _plan(self, command: c.PlanPresets, id: str) -> Outcome:
        return await self.planner.answer(command, self._compose())

    async def _leave(self, command: c.StopDaemon, id: str) -> Outcome:
        self.feed.emit("leaving", "kvctld was asked to leave; servers go on", id)
        self.is_leaving.set()
        return Outcome(0, "kvctld leaves; servers go on, an open run waits for the next kvctld")

    async def _refresh(self, command: c.RefreshNow, id: str) -> Outcome:
        await self.gpus.read(fresh=True)
        await asyncio.gather(*(watch.refresh() for watch in self.servers.watches.values()))
        return Outcome(0, "every source was read")

    def _sampled(self, watch: ServerWatch) -> None:
        self.run_desk.observe(watch)
        self._changed.set()

    async def _read_gpus(self) -> None:
        await self.gpus.read()
        self._changed.set()

    async def _find(self) -> None:
        self.servers.find()
        if self.gpus.idle_bytes != self.remembered.idle_bytes:
            self.remembered.idle_bytes = dict(self.gpus.idle_bytes)
            self._save()

    async def _tick(self) -> None:
        self.servers.tick()
        self.crash_restarts.tick()
        self.run_desk.tick()
        await self.run_desk.let_go()
        await self.caps.tick(self.run_desk.view())
        self.picture.note(self._compose())
        self.keeper.tick(self.servers.watches.values(), self.gpus.view, self.picture.points)
        self._changed.set()

    async def _keep_planning(self) -> None:
        """Look at presets, models and memory from time to time (real seconds: files are read)."""
        await self.host.clock.sleep(FIRST_PLAN_S * self.host.pace)
        while True:
            await self.planner.refresh(self._compose())
            with suppress(TimeoutError):
                await within(self.host.clock, PLAN_S * self.host.pace, self.planner.outdated.wait())

    async def _publish(self) -> None:
        """Publish after a change, and not more often than the host's period."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.store.publish(self._compose())
            await self.host.clock.sleep(self.host.publish_every_s)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await work()
            await self.host.clock.sleep(seconds)

    def _compose(self) -> Snapshot:
        picture = self.picture.compose(
            self.servers.views(),
            self.gpus.view,
            self.run_desk.view(),
            self.sequences.busy,
            self.remembered.last_good_preset,
        )
        series = self.gpus.history.series()
        return replace(picture, gpu_series=series, plans=self.planner.plans)

    def _save(self) -> None:
        try:
            self._state_file.save(self.remembered)
        except OSError as error:
            self.feed.emit("state", f"{self._state_file.path} cannot be written: {error.strerror}")
