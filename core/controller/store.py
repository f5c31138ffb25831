"""The latest snapshot, its subscribers, and the event feed with its audit log.

Nothing here decides anything: the controller publishes, frontends read. A subscriber that
is slow sees the newest snapshot next, never a queue of old ones.
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from kvctl.core.clock import Clock
from kvctl.core.domain.events import Event
from kvctl.core.domain.snapshot import Snapshot

EVENTS_KEPT = 200


@dataclass(slots=True)
class Store:
    """Holds what was published last and wakes who waits for the next."""

    latest: Snapshot
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _count: int = 0

    async def publish(self, snapshot: Snapshot) -> None:
        """Make this the latest snapshot and wake every subscriber."""
        self.latest = snapshot
        async with self._news:
            self._count += 1
            self._news.notify_all()

    async def subscribe(self) -> AsyncIterator[Snapshot]:
        """Yield the latest snapshot, then each later one that this reader is in time for."""
        seen = self._count
        yield self.latest
        while True:
            async with self._news:
                while self._count == seen:
                    await self._news.wait()
                seen = self._count
            yield self.latest


@dataclass(slots=True)
class EventFeed:
    """The newest events in memory and every event in the audit log."""

    clock: Clock
    audit: Path | None = None
    """JSON lines, appended, 0600; None keeps no log (tests)."""
    recent: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))

    def emit(self, kind: str, text: str, command: str | None = None) -> Event:
        """Record what was observed; repeated calls are repeated events."""
        event = Event(self.clock.monotonic(), self.clock.wall(), kind, text, command)
        self.recent.append(event)
        if self.audit is not None:
            self._append(event)
        return event

    def _append(self, event: Event) -> None:
        row = {"wall": event.wall, "kind": event.kind, "text": event.text}
        if event.command:
            row["command"] = event.command
        line = json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            handle = os.open(str(self.audit), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            return  # A full or read-only state folder must not stop the run; the feed still shows.
        try:
            os.write(handle, line)
        except OSError:
            return
        finally:
            os.close(handle)

    def load_recent(self) -> None:
        """Show the events of an earlier kvctld too; their monotonic times are lost."""
        if self.audit is None:
            return
        try:
            with self.audit.open("rb") as handle:
                handle.seek(max(0, self.audit.stat().st_size - 65536))
                # Bytes: text would be split at U+2028 and its like, which an event may hold.
                lines = handle.read().splitlines()
        except OSError:
            return  # none yet, or not readable: what happened before is not needed to go on
        offset = self.clock.monotonic() - self.clock.wall()
        for line in lines[-EVENTS_KEPT:]:
            event = _event_of(line, offset)
            if event is not None:
                self.recent.append(event)


def _event_of(line: bytes, offset: float) -> Event | None:
    """Read one audit line; None for a torn or foreign one."""
    try:
        row = json.loads(line)
        wall = float(row["wall"])
        return Event(wall + offset, wall, str(row["kind"]), str(row["text"]), row.get("command"))
    except (ValueError, KeyError, TypeError):
        return None
