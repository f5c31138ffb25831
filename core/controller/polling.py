"""One loop for every source: its own period, never overlapping itself, backing off when it fails.

Time limits live in the adapters (real seconds); this loop only decides when to ask again.
"""

import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvctl.core.clock import Clock
from kvctl.core.ports import ProbeFailed

T = TypeVar("T")

BACKOFF_FACTOR = 2.0
BACKOFF_MAX_S = 15.0


@dataclass(frozen=True, slots=True)
class Poll(Generic[T]):
    """One source and what to do with its answers."""

    name: str
    period_s: float
    read: Callable[[], Awaitable[T]]
    take: Callable[[T], None]
    miss: Callable[[ProbeFailed], None]
    is_back: Callable[[], bool] = lambda: False
    """Whether another question was answered since this one failed: no need to wait longer."""

    async def run(self, clock: Clock) -> None:
        """Ask for ever; a failure waits longer each time, up to a limit."""
        delay = self.period_s
        while True:
            try:
                self.take(await self.read())
                delay = self.period_s
            except Exception as error:  # the probe boundary: a source that breaks ends nothing
                self.miss(_failure_of(error))
                delay = min(max(delay, self.period_s) * BACKOFF_FACTOR, BACKOFF_MAX_S)
            await self._wait(clock, delay)

    async def _wait(self, clock: Clock, seconds: float) -> None:
        end = clock.monotonic() + seconds
        await clock.sleep(min(seconds, self.period_s))
        while clock.monotonic() < end and not self.is_back():
            await clock.sleep(min(self.period_s, end - clock.monotonic()))


def _failure_of(error: Exception) -> ProbeFailed:
    if isinstance(error, ProbeFailed):
        return error
    traceback.print_exception(error)
    return ProbeFailed("broken", " ".join(f"{type(error).__name__}: {error}".split()))
