"""A feed that a test moves: it shows what it is given and keeps what is submitted."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.feed import FeedLost


@dataclass
class FakeFeed:
    """Implements `kvctl.tui.feed.Feed`."""

    first: Snapshot | FeedLost
    submitted: list[Command] = field(default_factory=list)
    answer: Callable[[Command], Outcome] = lambda command: Outcome(0, "done")
    is_hanging: bool = False
    """Commands never return while this is set."""
    _queue: "asyncio.Queue[Snapshot | FeedLost]" = field(default_factory=asyncio.Queue)

    async def snapshots(self) -> AsyncIterator[Snapshot | FeedLost]:
        yield self.first
        while True:
            yield await self._queue.get()

    def push(self, item: Snapshot | FeedLost) -> None:
        self._queue.put_nowait(item)

    async def submit(self, command: Command) -> Outcome:
        self.submitted.append(command)
        if self.is_hanging:
            await asyncio.Event().wait()
        return self.answer(command)
