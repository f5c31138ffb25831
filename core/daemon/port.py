"""What kvctld needs of the controller, as a Protocol."""

from collections.abc import AsyncIterator
from typing import Protocol

from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.domain.snapshot import Snapshot


class ServedController(Protocol):
    """The one place of state and action that kvctld puts behind its socket."""

    def snapshot(self) -> Snapshot:
        """Return the current picture."""

    def subscribe(self) -> AsyncIterator[Snapshot]:
        """Yield the current picture, then later ones, coalesced to a slow reader."""

    async def submit(self, command: Command) -> Outcome:
        """Carry out a command to its end."""

    async def run(self) -> None:
        """Sample and act until cancelled."""

    async def close(self) -> None:
        """Bring everything to rest; servers and files stay."""
