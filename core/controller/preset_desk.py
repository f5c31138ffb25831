"""What is done to preset files for a panel: take one into the operator's folder, check its text."""

import asyncio

from kvctl.core.controller.commands import Outcome, OwnPreset, ValidatePreset
from kvctl.core.controller.host import Host
from kvctl.core.controller.store import EventFeed
from kvctl.core.servers.flags.asking import CatalogueCache
from kvctl.core.servers.presets.check import ask, findings_of
from kvctl.core.servers.presets.edit import own


class PresetDesk:
    """Carries out the commands about preset files; servers are not touched."""

    def __init__(self, host: Host, feed: EventFeed, catalogues: CatalogueCache) -> None:
        """Work on the presets of `host`."""
        self._host = host
        self._feed = feed
        self._catalogues = catalogues

    async def own(self, command: OwnPreset, id: str) -> Outcome:
        """Make sure that a preset lies in the operator's own folder, and tell its path."""
        owned = await asyncio.to_thread(own, self._host.presets, command.preset)
        told = f"{command.preset} is {owned.path}"
        if owned.copied_from is not None:
            told = f"copied {owned.copied_from} to {owned.path}"
            self._feed.emit("preset", told, id)
        return Outcome(0, told, data={"path": str(owned.path)})

    async def validate(self, command: ValidatePreset, id: str) -> Outcome:
        """Find every problem of a preset's text, rules and flags, each with its line."""
        store = self._host.presets
        found = await asyncio.to_thread(
            findings_of,
            store,
            command.preset,
            self._host.rules,
            lambda plan: ask(plan, store, self._catalogues),
        )
        count = len(found.errors)
        told = f"{count} problem{'s' if count > 1 else ''}" if count else "valid"
        data = {"errors": list(found.errors), "warnings": list(found.warnings)}
        return Outcome(2 if count else 0, f"{command.preset}: {told}", found.errors, data)
