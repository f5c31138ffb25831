"""Run drivers of one folder on a manual clock, as a test opens, kills and closes them."""

import asyncio
import functools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from kvctl.core.clock import ManualClock
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.driving.pump import RunHooks
from kvctl.core.runs.opening.opening import OpenOptions
from kvctl.core.runs.opening.run_file import load_run
from tests.fakes.generator import FakeGenerator
from tests.fakes.runs import inline


def as_it_is(server: FakeGenerator) -> FakeGenerator:
    return server


class Bench:
    """Drivers of one folder, opened one after the other, on one clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.server = FakeGenerator(self.clock)
        self.events: list[tuple[str, str]] = []
        self.open_ones: list[RunDriver] = []

    async def begin(self, *servers: FakeGenerator, **more: Any) -> RunDriver:
        used = servers or (self.server,)
        hooks = RunHooks(
            more.pop("facts", None), lambda kind, text: self.events.append((kind, text))
        )
        driver = RunDriver(
            load_run(self.folder / "run.toml"),
            self.clock,
            [functools.partial(as_it_is, s) for s in used],
            hooks,
            options=OpenOptions(**more),
            offload=inline,
        )
        await driver.open()
        self.open_ones.append(driver)
        driver.start()
        await self.clock.advance(0.1)
        return driver

    def note(self, kind: str, text: str) -> None:
        self.events.append((kind, text))

    async def during(self, work: Coroutine[Any, Any, Any], seconds: float = 60.0) -> Any:
        """Await something while time goes on."""
        task = asyncio.ensure_future(work)
        for _ in range(int(seconds * 10)):
            if task.done():
                break
            await self.clock.advance(0.1)
        return task.result()

    async def finish(self, driver: RunDriver) -> None:
        await self.during(driver.finished(), 600)

    async def close(self, driver: RunDriver, *, keep: bool = True) -> None:
        self.open_ones.remove(driver)
        await self.during(driver.close(keep=keep))

    def crash(self, driver: RunDriver) -> None:
        """As a kill -9 leaves it: nothing is flushed, the lock goes with the process."""
        self.open_ones.remove(driver)
        pump = driver._pump
        assert pump is not None
        for task in [*pump._tasks, pump.journal._writer]:
            if task is not None:
                task.cancel()
        pump.opened.lock.release()
