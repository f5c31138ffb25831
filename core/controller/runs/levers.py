"""The operator's levers on the open run: pause, resume, slots, weights, failed rows."""

from dataclasses import dataclass

from kvctl.core.controller.commands import (
    MOST_SLOTS,
    NudgeThrottle,
    Outcome,
    PauseRun,
    ResumeRun,
    RetryFailed,
    SetWeights,
    Throttle,
    WaitHow,
)
from kvctl.core.controller.runs.desk import RunDesk
from kvctl.core.controller.runs.words import told_harvest
from kvctl.core.controller.servers.freezing import freeze, is_frozen, thaw
from kvctl.core.domain.errors import CommandRefused, UsageError
from kvctl.core.runs.driving.driver import RunDriver


@dataclass(frozen=True, slots=True)
class RunLevers:
    """Carries out the commands that change how the open run goes on."""

    desk: RunDesk

    async def pause(self, command: PauseRun, id: str) -> Outcome:
        """Stop sending; freeze, harvest or abandon what is in flight if that was asked for."""
        driver = await self.desk.opened()
        if driver.gate.is_finished:
            # A frozen engine would wait for a resume that nobody has a reason to ask for.
            return Outcome(0, f"run {driver.spec.name} has finished: there is nothing to pause")
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
        self.desk.feed.emit("paused", said, id)
        return Outcome(0, said, tuple(filter(None, observed)))

    async def resume(self, command: ResumeRun, id: str) -> Outcome:
        """Send again; continue engines that were frozen."""
        driver = await self.desk.opened()
        thawed = [
            await thaw(watch, self.desk.save) for watch in self.desk.watches() if is_frozen(watch)
        ]
        self.desk.steer().override_policy()
        driver.resume()
        self.desk.tick()
        # An engine that was just continued has new figures within a second.
        holds = [why for cause, why in driver.gate.holds.items() if cause != "server" or not thawed]
        still = "; ".join(holds)
        said = f"the pause is over, but nothing is sent yet: {still}" if still else "sending again"
        said += f"; continued {', '.join(thawed)}" if thawed else ""
        self.desk.feed.emit("resumed", said, id)
        return Outcome(0, said)

    async def throttle(self, command: Throttle, id: str) -> Outcome:
        """Set the slots to a number (MANUAL), or leave them to the law (AUTO)."""
        driver, steering = await self.desk.opened(), self.desk.steer()
        target = command.target
        if target is not None and not 1 <= target <= MOST_SLOTS:
            raise UsageError(f"slots must be 1 to {MOST_SLOTS:,}: {target}")
        before = steering.target
        steering.set_manual(target)
        driver.set_manual(target)
        after = "AUTO" if target is None else str(target)
        said = f"slots {before} → {after}; nothing in flight is aborted"
        self.desk.feed.emit("slots", said, id)
        return Outcome(0, said)

    async def nudge(self, command: NudgeThrottle, id: str) -> Outcome:
        """Add to the slots; becomes MANUAL."""
        await self.desk.opened()
        target = min(MOST_SLOTS, max(1, self.desk.steer().target + command.by))
        return await self.throttle(Throttle(target), id)

    async def set_weights(self, command: SetWeights, id: str) -> Outcome:
        """Share the slots among partitions in other proportions."""
        (await self.desk.opened()).set_weights(command.weights)
        said = "weights " + ", ".join(f"{n}={w:g}" for n, w in command.weights.items())
        self.desk.feed.emit("weights", said, id)
        return Outcome(0, said)

    async def retry_failed(self, command: RetryFailed, id: str) -> Outcome:
        """Queue the rows that failed for good again."""
        count = (await self.desk.opened()).retry_failed()
        said = f"{count} failed rows are queued again" if count else "no row has failed"
        self.desk.feed.emit("retry", said, id)
        return Outcome(0, said)

    async def _pause_further(self, driver: RunDriver, how: WaitHow) -> str:
        if how is WaitHow.FREEZE:
            async with self.desk.engines:
                watches = self.desk.watches()
                return "; ".join([await freeze(watch, self.desk.save) for watch in watches])
        await self.desk.thaw_all()
        if how is WaitHow.DRAIN:
            return ""
        cut = driver.harvest if how is WaitHow.HARVEST else driver.abandon
        return "; ".join([told_harvest(await cut(url)) for url in driver.spec.servers])

    def _refuse_unwatched(self, driver: RunDriver) -> None:
        for url in driver.spec.servers:
            if self.desk.servers.at_url(url) is None:
                raise CommandRefused(f"{url} is not watched here and cannot be frozen: adopt it")
