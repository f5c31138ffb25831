"""Time as a port: the real clock, a scaled one for demonstrations, and a manual one for tests.

Everything in core that waits or stamps takes a `Clock`; nothing else calls `time` or
`asyncio.sleep`. Seconds everywhere: `monotonic()` orders things, `wall()` is UTC for people.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """What core knows of time."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back (host-wide, so processes can compare)."""

    def wall(self) -> float:
        """Return seconds since the Unix epoch, UTC."""

    async def sleep(self, seconds: float) -> None:
        """Wait that long on this clock; zero or less yields once."""


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Await `work` for at most `seconds` of this clock.

    Raises:
        TimeoutError: The time ran out; `work` was cancelled and awaited.
    """
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise TimeoutError(f"no answer within {seconds:g} s")
    finally:
        timer.cancel()
        task.cancel()


class RealClock:
    """The host's clocks."""

    def monotonic(self) -> float:
        """Return the host's monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Return the host's UTC seconds."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait real seconds."""
        await asyncio.sleep(max(0.0, seconds))


@dataclass(frozen=True, slots=True)
class ScaledClock:
    """A clock that runs `speed` times as fast as the host's, from a fixed origin.

    Processes that are given the same origin and speed agree on the time, so a simulated
    engine's log stamps and kvctld's windows are in the same (simulated) seconds.
    """

    speed: float
    """Simulated seconds per real second; above 0."""
    origin_monotonic: float
    """Host monotonic seconds at which simulated and real time were equal."""
    origin_wall: float
    """Host UTC seconds at the same moment."""

    def monotonic(self) -> float:
        """Return scaled monotonic seconds."""
        elapsed = time.monotonic() - self.origin_monotonic
        return self.origin_monotonic + elapsed * self.speed

    def wall(self) -> float:
        """Return scaled UTC seconds."""
        elapsed = time.monotonic() - self.origin_monotonic
        return self.origin_wall + elapsed * self.speed

    async def sleep(self, seconds: float) -> None:
        """Wait that many scaled seconds."""
        await asyncio.sleep(max(0.0, seconds / self.speed))


@dataclass(slots=True)
class ManualClock:
    """A clock that stands still until a test moves it."""

    now: float = 1000.0
    epoch: float = 1_790_000_000.0
    """UTC seconds at `now` = 1000."""
    _sleepers: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    def monotonic(self) -> float:
        """Return the moment the test has reached."""
        return self.now

    def wall(self) -> float:
        """Return UTC seconds that move with `now`."""
        return self.epoch + (self.now - 1000.0)

    async def sleep(self, seconds: float) -> None:
        """Wait until the test has advanced that far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), wake))
        await wake

    async def advance(self, seconds: float) -> None:
        """Move time on, waking sleepers in order and letting each run before the next."""
        target = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            at, _, wake = heapq.heappop(self._sleepers)
            self.now = max(self.now, at)
            if not wake.done():
                wake.set_result(None)
            await settle()
        self.now = target
        await settle()


async def settle(rounds: int = 20) -> None:
    """Let every task that can run now run."""
    for _ in range(rounds):
        await asyncio.sleep(0)
