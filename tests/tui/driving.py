"""Runs the panel over a fake feed and waits for what a test claims, never for time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from textual.pilot import Pilot

from kvctl.tui.app import PanelApp
from kvctl.tui.canvas import Canvas
from tests.fakes.feed import FakeFeed

PATIENCE_S = 5.0


@dataclass
class Driven:
    app: PanelApp
    pilot: Pilot[int]
    feed: FakeFeed

    @property
    def text(self) -> str:
        """What the screen on top shows."""
        return self.app.screen.query_one(Canvas).text

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await self.pilot.pause()
                await asyncio.sleep(0.005)

    async def shows(self, *words: str) -> None:
        try:
            await self.until(lambda: all(word in self.text for word in words))
        except TimeoutError:
            raise AssertionError(f"{words} not on the screen:\n{self.text}") from None


@asynccontextmanager
async def driven(
    feed: FakeFeed, columns: int = 120, rows: int = 40, **options: Any
) -> AsyncIterator[Driven]:
    app = PanelApp(feed, **{"grace_s": 0.0, **options})
    async with app.run_test(size=(columns, rows), notifications=True) as pilot:
        panel = Driven(app, pilot, feed)
        first = getattr(feed.first, "host", None)
        if first is not None and columns >= 36 and rows >= 8:
            await panel.until(lambda: app.snapshot is feed.first)
        yield panel
