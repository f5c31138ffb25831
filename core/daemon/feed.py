"""What the panel needs of kvctld: snapshots that come by themselves, and a way back for commands.

A lost connection is a value in the same stream, never an exception: the panel dims what it has
and goes on.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class FeedLost:
    """Kvctld does not answer now; the feed goes on trying by itself."""

    reason: str
    """Why, in one line, such as "kvctld broke off"."""


class Feed(Protocol):
    """Kvctld as the panel sees it: a client on the socket, or the controller in a test."""

    def snapshots(self) -> AsyncIterator[Snapshot | FeedLost]:
        """Yield pictures as they change, and FeedLost where they stopped; never ends or raises."""

    async def submit(self, command: Command) -> Outcome:
        """Carry out a command to its end; what goes wrong is in the outcome."""
