"""The run: opened, taken up and closed; its law and policy bound to fresh samples.

The driver sends and writes; this desk says how many may be in flight at each server and when
nothing may be sent. It serves the stops of servers through `RunInterplay`; the operator's levers
on an open run are `RunLevers`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvctl.core.controller.commands import (
    CloseRun,
    Outcome,
    StartRun,
    WaitHow,
)
from kvctl.core.controller.host import Host
from kvctl.core.controller.runs.opening import facts_of, open_options, resolve_servers
from kvctl.core.controller.runs.steering import Steering
from kvctl.core.controller.runs.words import told_harvest, waiting_run
from kvctl.core.controller.servers.desk import ServerDesk
from kvctl.core.controller.servers.freezing import is_frozen, thaw
from kvctl.core.controller.servers.records import same_url
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.state import Remembered, RunRecord
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.domain.units import thousands
from kvctl.core.ports import Generator
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.driving.pump import RunHooks
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.outputs.journal import DiskTrouble
from kvctl.core.runs.sending.slots import ServerFacts

DRAIN_S = 24 * 3600.0
"""A drain takes as long as its longest answer; the operator can cancel."""
DRAIN_LOOK_S = 0.5
THAW_AGAIN_S = 15.0
"""Until an engine that could not be continued is asked again."""


@dataclass(slots=True, eq=False)
class RunDesk:
    """Owns the open run, if there is one."""

    host: Host
    feed: EventFeed
    servers: ServerDesk
    remembered: Remembered
    save: Callable[[], None]
    driver: RunDriver | None = None
    steering: Steering | None = None
    waiting: Run | None = None
    """Shown while a run is being opened, or when it could not be taken up."""
    engines: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while engines are frozen, or continued without being asked to."""
    _thaw_at: float = 0.0
    _stops: dict[str, str] = field(default_factory=dict)
    """URL -> own requests in flight when the server's counts were read last."""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is known whether an earlier kvctld's run could be taken up."""

    # --- what a stop or start of a server needs --------------------------------------------

    def hold(self, url: str, reason: str) -> None:
        """Send nothing to a server until it is released."""
        self._stops[url] = reason
        self.tick()

    def release(self, url: str) -> None:
        """Send to a server again, as far as its state allows."""
        self._stops.pop(url, None)
        self.tick()

    def sends_to(self, url: str) -> bool:
        """Return whether the open run uses a server."""
        return self._own_url(url) is not None

    async def settle_in_flight(self, url: str, how: WaitHow) -> str:
        """Drain, harvest or abandon what is in flight at a server; say what was done."""
        if how is WaitHow.FREEZE:
            raise UsageError("a stop cannot freeze: choose drain, harvest or abandon")
        own = self._own_url(url)
        if self.driver is None or own is None or not self.driver.in_flight(own):
            return "nothing of the run is in flight"
        said = await self._settle(self.driver, own, how)
        self._tell(how.value, said)
        return said

    def in_flight_at(self, url: str) -> int:
        """Return the run's own requests at a server."""
        own = self._own_url(url)
        return 0 if self.driver is None or own is None else self.driver.in_flight(own)

    # --- commands --------------------------------------------------------------------------

    async def start(self, command: StartRun, id: str) -> Outcome:
        """Open a run file (or take up where its journal ends) and send."""
        async with self._opening:
            resolve_servers(load_run(command.path), self.servers)  # a typo closes nothing
            await self._make_room(command.path)
            driver = await self._open(
                command.path, command.force, accept_damage=command.accept_damage
            )
            view = driver.view(self.host.clock.monotonic())
            driver.start()
            self.remembered.run = RunRecord(view.path)
            self.save()
        done = f", {thousands(view.done)} of {thousands(view.total)} done before"
        said = f"run {view.name}: {thousands(view.total)} prompts in {len(view.partitions)}"
        said += f" partitions{done if view.done else ''}, output in {view.output}"
        self.feed.emit("run", said, id)
        return Outcome(0, said, driver.found())

    async def finish(self, command: CloseRun, id: str) -> Outcome:
        """Close the run: harvest what is in flight; its files stay."""
        async with self._opening:
            name = self.waiting.name if self.waiting is not None else self._need().spec.name
            if self.driver is not None:
                await self._close()
            self.waiting = self.remembered.run = None
            self.save()
        self.feed.emit("run", f"run {name} is closed; its journal stays", id)
        return Outcome(0, f"run {name} is closed; `kvctl run start` takes it up again")

    # --- by itself -------------------------------------------------------------------------

    def expect(self) -> None:
        """Show the remembered run from the first snapshot on."""
        if self.remembered.run is not None:
            path = self.remembered.run.path
            self.waiting = waiting_run(path, RunState.LOADING, "", self._now())
        else:
            self._is_settled.set()

    async def reopen(self) -> None:
        """Take up the run that an earlier kvctld had open."""
        try:
            await self._take_up()
        finally:
            self._is_settled.set()

    async def _take_up(self) -> None:
        record = self.remembered.run
        if record is None:
            return
        async with self._opening:
            if self.driver is not None or self.remembered.run is not record:
                return  # the operator was quicker
            try:
                driver = await self._open(record.path, force=False)
            except KvctlError as error:
                reason = f"not taken up: {error}"
                self.waiting = waiting_run(record.path, RunState.FAILED, reason, self._now())
                self.feed.emit("run", f"{record.path} is {reason}")
                return
            driver.start()
        view = driver.view(self._now())
        said = f"run {view.name} taken up: {thousands(view.done)} of {thousands(view.total)} done"
        self.feed.emit("run", said)

    def observe(self, watch: ServerWatch) -> None:
        """Take a new sample of a server into the law and the policy."""
        watch.observe_foreign(self.in_flight_at(watch.record.url))
        if self.steering is not None and self.sends_to(watch.record.url):
            self.steering.observe(watch)

    def tick(self) -> None:
        """Apply what changes without a sample: staleness, a server that came or went."""
        for watch in self.servers.watches.values():
            watch.foreign.note_own(self._now(), self.in_flight_at(watch.record.url))
        if self.steering is not None:
            self.steering.tick()

    async def let_go(self) -> None:
        """Continue engines that were frozen for a run whose last answers came all the same."""
        is_over = self.driver is not None and self.driver.gate.is_finished
        if is_over and not self.engines.locked() and self._now() >= self._thaw_at:
            self._thaw_at = self._now() + THAW_AGAIN_S
            async with self.engines:
                thawed = await self.thaw_all()
            for name in thawed:
                self._tell("resumed", f"the run has finished; continued {name}")

    def view(self) -> Run | None:
        """Return the run as the panel shows it."""
        return self.waiting if self.driver is None else self.driver.view(self._now())

    async def close(self) -> None:
        """Harvest and close, to be taken up by the next kvctld."""
        if self.driver is not None:
            await self._close()

    # --- inside ----------------------------------------------------------------------------

    def _now(self) -> float:
        return self.host.clock.monotonic()

    def _need(self) -> RunDriver:
        if self.driver is None:
            raise CommandRefused("no run is open: `kvctl run start FILE` starts one")
        return self.driver

    async def opened(self) -> RunDriver:
        """Return the open run, waiting for one that is just being taken up."""
        await self._is_settled.wait()
        return self._need()

    def steer(self) -> Steering:
        """Return the law and the policy of the open run."""
        assert self.steering is not None
        return self.steering

    async def _make_room(self, path: str) -> None:
        """Close a run that is over; refuse to replace one that goes on."""
        if self.driver is None:
            return
        view = self.driver.view(self._now())
        if view.state not in (RunState.FINISHED, RunState.FAILED):
            raise CommandRefused(
                f"run {view.name} is open ({view.state.value}): `kvctl run close` ends it first"
            )
        await self._close()

    async def _open(self, path: str, force: bool, *, accept_damage: bool = False) -> RunDriver:
        spec = load_run(path)
        urls = resolve_servers(spec, self.servers)
        added = [watch for url in urls if (watch := self.servers.watch_url(url)) is not None]
        watch = self.servers.at_url(urls[0])
        if watch is not None and watch.info is None:
            await watch.learn()
        driver = RunDriver(
            replace(spec, servers=urls),
            self.host.clock,
            [self.generator(url) for url in urls],
            RunHooks(facts=self._facts, event=lambda kind, text: self._tell(kind, text)),
            options=replace(open_options(watch, force), accept_damage=accept_damage),
        )
        try:
            await driver.open()
        except KvctlError:
            for watch in added:
                self.servers.drop(watch)
            raise
        self.driver, self.waiting = driver, None
        law, clock = self.host.config.throttle, self.host.clock
        self.steering = Steering(clock, driver, self.servers, self._tell, law, self._stops)
        self.steering.tick()
        return driver

    def generator(self, url: str) -> Callable[[], Generator]:
        """Return what opens a server's connections, with the key it needs."""
        watch = self.servers.at_url(url)
        key = watch.api_key if watch is not None else None
        return lambda: self.host.open_generator(url, key)

    async def _facts(self, url: str) -> ServerFacts | None:
        watch = self.servers.at_url(url)
        # Nobody here can say more of a server that is not watched: the run need not wait for it.
        return ServerFacts() if watch is None else facts_of(watch)

    def _tell(self, kind: str, text: str) -> None:
        self.feed.emit(kind, text)

    async def _close(self) -> None:
        await self.thaw_all()
        driver, self.driver, self.steering = self._need(), None, None
        try:
            await driver.close()
        except DiskTrouble as trouble:
            self.feed.emit("disk", f"{trouble}; those rows are made again")

    def watches(self) -> list[ServerWatch]:
        """Return the watched servers of the open run."""
        urls = self._need().spec.servers
        found = [self.servers.at_url(url) for url in urls]
        return [watch for watch in found if watch is not None]

    async def thaw_all(self) -> list[str]:
        """Continue what is frozen, and return it: behind a pause nothing can be given back."""
        thawed = []
        for watch in filter(is_frozen, self.watches()):
            try:
                thawed.append(await thaw(watch, self.save))
            except KvctlError as error:
                self._tell("frozen", str(error))
        return thawed

    def _own_url(self, url: str) -> str | None:
        """Return a server's URL as the run spells it, None where the run does not use it."""
        urls = self.driver.spec.servers if self.driver is not None else ()
        return next((own for own in urls if same_url(own, url)), None)

    async def _settle(self, driver: RunDriver, url: str, how: WaitHow) -> str:
        if how is WaitHow.DRAIN:
            return await self._drain(driver, url)
        cut = driver.harvest if how is WaitHow.HARVEST else driver.abandon
        return told_harvest(await cut(url))

    async def _drain(self, driver: RunDriver, url: str) -> str:
        if len(driver.spec.servers) > 1:
            while driver.in_flight(url):  # the others go on sending
                await self.host.clock.sleep(DRAIN_LOOK_S)
        elif not await driver.drain(DRAIN_S):
            raise KvctlError("the run did not drain within a day")
        return "all in flight have ended"
