"""A manual clock that waits for threads, so that a test decides what happens when."""

import asyncio
import heapq
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from kvctl.core.clock import Clock, ManualClock

T = TypeVar("T")
P = ParamSpec("P")
GPU_THREAD = "gpu-read"


class InlineExecutor(ThreadPoolExecutor):
    """Carries work out at once: `asyncio.to_thread` then takes no real time."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


async def rest() -> None:
    """Let every task run until none has anything to do; a task that never rests gets 500 turns."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(500):
        await asyncio.sleep(0)
        if not ready:
            return


@dataclass(slots=True)
class SteppingClock(ManualClock):
    """Moves on only when every task rests and no GPU reading is under way."""

    waits_for_gpus: bool = True
    """False while a test lets the driver hang."""

    async def quiet(self) -> None:
        """Let everything run that can, threads that read GPUs included."""
        while True:
            await rest()
            reading = [t for t in threading.enumerate() if t.name == GPU_THREAD]
            if not reading or not self.waits_for_gpus:
                return
            for thread in reading:
                thread.join()

    async def advance(self, seconds: float) -> None:
        target = self.now + seconds
        await self.quiet()
        while (at := self._next_at()) is not None and at <= target:
            _, _, wake = heapq.heappop(self._sleepers)
            self.now = max(self.now, at)
            wake.set_result(None)
            await self.quiet()
        self.now = target

    async def step(self) -> None:
        """Move on to the next moment at which something wakes."""
        await self.quiet()
        at = self._next_at()
        await self.advance(1.0 if at is None else max(0.0, at - self.now))

    async def until(self, condition: Callable[[], bool], limit_s: float = 600.0) -> None:
        """Move on until something is so; fails if it never is."""
        deadline = self.now + limit_s
        await self.quiet()
        while not condition():
            assert self.now < deadline, "it did not come about in time"
            await self.step()

    async def during(self, work: Coroutine[Any, Any, T], limit_s: float = 600.0) -> T:
        """Return what some work returns while time goes on."""
        task = asyncio.ensure_future(work)
        await self.until(task.done, limit_s)
        return task.result()

    def _next_at(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None


@dataclass(slots=True)
class PausableClock:
    """The time of one server: it stands still while its scheduler is paused or hung."""

    clock: Clock
    _lost_s: float = 0.0
    _stopped_at: float | None = None
    _goes: asyncio.Event | None = None

    @property
    def is_stopped(self) -> bool:
        return self._stopped_at is not None

    def stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at, self._goes = self.clock.monotonic(), asyncio.Event()

    def go(self) -> None:
        if self._stopped_at is not None and self._goes is not None:
            self._lost_s += self.clock.monotonic() - self._stopped_at
            self._stopped_at = None
            self._goes.set()

    def monotonic(self) -> float:
        now = self.clock.monotonic() if self._stopped_at is None else self._stopped_at
        return now - self._lost_s

    def wall(self) -> float:
        return self.clock.wall()

    async def sleep(self, seconds: float) -> None:
        end = self.monotonic() + seconds
        while (left := end - self.monotonic()) > 1e-9 or self.is_stopped:
            if self._goes is not None and self.is_stopped:
                await self._goes.wait()
            else:
                await self.clock.sleep(left)
