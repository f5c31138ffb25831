"""The run: its commands, and the throttle law and ceiling policy bound to fresh samples.

The driver sends and writes; this desk says how many may be in flight at each server and when
nothing may be sent. It serves the server desk's stops through `RunInterplay`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvctl.core.controller.commands import (
    CloseRun,
    NudgeThrottle,
    Outcome,
    PauseRun,
    ResumeRun,
    RetryFailed,
    SetWeights,
    StartRun,
    Throttle,
    WaitHow,
)
from kvctl.core.controller.freezing import freeze, is_frozen, thaw
from kvctl.core.controller.host import Host
from kvctl.core.controller.run_opening import facts_of, open_options, resolve_servers
from kvctl.core.controller.run_words import partition_lines, told_harvest, waiting_run
from kvctl.core.controller.server_desk import ServerDesk
from kvctl.core.controller.server_records import same_url
from kvctl.core.controller.server_watch import ServerWatch
from kvctl.core.controller.state import Remembered, RunRecord
from kvctl.core.controller.steering import Steering
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.domain.run import Run, RunState
from kvctl.core.domain.units import thousands
from kvctl.core.ports import Generator
from kvctl.core.runs.driver import RunDriver
from kvctl.core.runs.journal import DiskTrouble
from kvctl.core.runs.pump import RunHooks
from kvctl.core.runs.runfile import load_run
from kvctl.core.runs.slots import ServerFacts

DRAIN_S = 24 * 3600.0
"""A drain takes as long as its longest answer; the operator can cancel."""
DRAIN_LOOK_S = 0.5
MOST_SLOTS = 10_000


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
    _stops: dict[str, str] = field(default_factory=dict)
    _sampled: dict[str, int] = field(default_factory=dict)
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
        """Return the run's own requests at a server, now or when its counts were read."""
        own = self._own_url(url)
        if self.driver is None or own is None:
            return 0
        return max(self.driver.in_flight(own), self._sampled.get(own, 0))

    # --- commands --------------------------------------------------------------------------

    async def start(self, command: StartRun, id: str) -> Outcome:
        """Open a run file (or take up where its journal ends) and send."""
        async with self._opening:
            resolve_servers(load_run(command.path), self.servers)  # a typo closes nothing
            await self._make_room(command.path)
            driver = await self._open(command.path, command.force)
            view = driver.view(self.host.clock.monotonic())
            driver.start()
            self.remembered.run = RunRecord(view.path)
            self.save()
        done = f", {thousands(view.done)} of {thousands(view.total)} done before"
        said = f"run {view.name}: {thousands(view.total)} prompts in {len(view.partitions)}"
        said += f" partitions{done if view.done else ''}, output in {view.output}"
        self.feed.emit("run", said, id)
        return Outcome(0, said, tuple(partition_lines(view)))

    async def pause(self, command: PauseRun, id: str) -> Outcome:
        """Stop sending; freeze, harvest or abandon what is in flight if that was asked for."""
        driver = await self._opened()
        if command.how is WaitHow.FREEZE:
            self._refuse_unwatched(driver)
        in_flight = driver.in_flight()
        driver.pause()
        observed = [await self._pause_further(driver, command.how)]
        tail = {
            WaitHow.DRAIN: f"{in_flight} in flight end normally",
            WaitHow.FREEZE: f"{in_flight} in flight keep their tokens in the engine",
        }.get(command.how, observed[0])
        said = f"paused by you: nothing is sent; {tail}"
        self.feed.emit("paused", said, id)
        return Outcome(0, said, tuple(filter(None, observed)))

    async def resume(self, command: ResumeRun, id: str) -> Outcome:
        """Send again; continue engines that were frozen."""
        driver = await self._opened()
        thawed = [await thaw(watch, self.save) for watch in self._watches() if is_frozen(watch)]
        self._steering().override_policy()
        driver.resume()
        self.tick()
        # An engine that was just continued has new figures within a second.
        holds = [why for cause, why in driver.gate.holds.items() if cause != "server" or not thawed]
        still = "; ".join(holds)
        said = f"the pause is over, but nothing is sent yet: {still}" if still else "sending again"
        said += f"; continued {', '.join(thawed)}" if thawed else ""
        self.feed.emit("resumed", said, id)
        return Outcome(0, said)

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

    async def throttle(self, command: Throttle, id: str) -> Outcome:
        """Set the slots to a number (MANUAL), or leave them to the law (AUTO)."""
        driver, steering = await self._opened(), self._steering()
        target = command.target
        if target is not None and not 1 <= target <= MOST_SLOTS:
            raise UsageError(f"slots must be 1 to {MOST_SLOTS:,}: {target}")
        before = steering.target
        steering.set_manual(target)
        driver.set_manual(target)
        after = "AUTO" if target is None else str(target)
        said = f"slots {before} → {after}; nothing in flight is aborted"
        self.feed.emit("slots", said, id)
        return Outcome(0, said)

    async def nudge(self, command: NudgeThrottle, id: str) -> Outcome:
        """Add to the slots; becomes MANUAL."""
        await self._opened()
        target = min(MOST_SLOTS, max(1, self._steering().target + command.by))
        return await self.throttle(Throttle(target), id)

    async def set_weights(self, command: SetWeights, id: str) -> Outcome:
        """Share the slots among partitions in other proportions."""
        (await self._opened()).set_weights(command.weights)
        said = "weights " + ", ".join(f"{n}={w:g}" for n, w in command.weights.items())
        self.feed.emit("weights", said, id)
        return Outcome(0, said)

    async def retry_failed(self, command: RetryFailed, id: str) -> Outcome:
        """Queue the rows that failed for good again."""
        count = (await self._opened()).retry_failed()
        said = f"{count} failed rows are queued again" if count else "no row has failed"
        self.feed.emit("retry", said, id)
        return Outcome(0, said)

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
        own = self._own_url(watch.record.url)
        if self.steering is not None and self.driver is not None and own is not None:
            self._sampled[own] = self.driver.in_flight(own)
            self.steering.observe(watch)

    def tick(self) -> None:
        """Apply what changes without a sample: staleness, a server that came or went."""
        if self.steering is not None:
            self.steering.tick()

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

    async def _opened(self) -> RunDriver:
        """Return the open run, waiting for one that is just being taken up."""
        await self._is_settled.wait()
        return self._need()

    def _steering(self) -> Steering:
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

    async def _open(self, path: str, force: bool) -> RunDriver:
        spec = load_run(path)
        urls = resolve_servers(spec, self.servers)
        added = [watch for url in urls if (watch := self.servers.watch_url(url)) is not None]
        watch = self.servers.at_url(urls[0])
        if watch is not None and watch.info is None:
            await watch.learn()
        driver = RunDriver(
            replace(spec, servers=urls),
            self.host.clock,
            [self._generator(url) for url in urls],
            RunHooks(facts=self._facts, event=lambda kind, text: self._tell(kind, text)),
            options=open_options(watch, force),
        )
        try:
            await driver.open()
        except KvctlError:
            for watch in added:
                self.servers.drop(watch)
            raise
        self.driver, self.waiting = driver, None
        self._sampled.clear()
        self.steering = Steering(self.host.clock, driver, self.servers, self._tell, self._stops)
        self.steering.tick()
        return driver

    def _generator(self, url: str) -> Callable[[], Generator]:
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
        await self._thaw_all()
        driver, self.driver, self.steering = self._need(), None, None
        try:
            await driver.close()
        except DiskTrouble as trouble:
            self.feed.emit("disk", f"{trouble}; those rows are made again")

    def _watches(self) -> list[ServerWatch]:
        urls = self._need().spec.servers
        found = [self.servers.at_url(url) for url in urls]
        return [watch for watch in found if watch is not None]

    async def _pause_further(self, driver: RunDriver, how: WaitHow) -> str:
        if how is WaitHow.FREEZE:
            return "; ".join([await freeze(watch, self.save) for watch in self._watches()])
        await self._thaw_all()
        if how is WaitHow.DRAIN:
            return ""
        cut = driver.harvest if how is WaitHow.HARVEST else driver.abandon
        return "; ".join([told_harvest(await cut(url)) for url in driver.spec.servers])

    def _refuse_unwatched(self, driver: RunDriver) -> None:
        for url in driver.spec.servers:
            if self.servers.at_url(url) is None:
                raise CommandRefused(f"{url} is not watched here and cannot be frozen: adopt it")

    async def _thaw_all(self) -> None:
        """Continue what is frozen: behind a pause nothing can be given back."""
        for watch in self._watches():
            if not is_frozen(watch):
                continue
            try:
                await thaw(watch, self.save)
            except KvctlError as error:
                self._tell("frozen", str(error))

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
