"""A controller for tests of everything in front of it: says what it is told, records commands."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.domain.events import Event
from kvctl.core.domain.snapshot import Snapshot


def plain_snapshot() -> Snapshot:
    """A host with nothing on it."""
    return Snapshot(at=1000.0, wall=1_790_000_000.0, host="testhost", version="0.0.test")


@dataclass
class FakeController:
    """Implements `ServedController`."""

    current: Snapshot = field(default_factory=plain_snapshot)
    answer: Callable[[Command], Outcome] = lambda _: Outcome(0, "done")
    submitted: list[Command] = field(default_factory=list)
    gate: asyncio.Event | None = None
    """Commands wait for it where it is set."""
    is_closed: bool = False
    crash: Exception | None = None
    """What `run` raises at once."""
    open_subscriptions: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def snapshot(self) -> Snapshot:
        return self.current

    async def publish(self, **changes: object) -> None:
        """Change the snapshot and wake subscribers."""
        async with self._changed:
            self.current = replace(self.current, **changes)  # type: ignore[arg-type]
            self._changed.notify_all()

    async def emit(self, kind: str, text: str) -> None:
        """Append an event."""
        event = Event(at=self.current.at, wall=self.current.wall, kind=kind, text=text)
        await self.publish(events=(*self.current.events, event))

    async def subscribe(self) -> AsyncIterator[Snapshot]:
        self.open_subscriptions += 1
        seen: Snapshot | None = None
        try:
            while True:
                async with self._changed:
                    while self.current is seen:
                        await self._changed.wait()
                    seen = self.current
                yield seen
        finally:
            self.open_subscriptions -= 1

    async def submit(self, command: Command) -> Outcome:
        self.submitted.append(command)
        if self.gate is not None:
            await self.gate.wait()
        return self.answer(command)

    async def run(self) -> None:
        if self.crash is not None:
            raise self.crash
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_closed = True
