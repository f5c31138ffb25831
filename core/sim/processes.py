"""The processes of a simulated host: those of this machine that belong to its folder.

Other SGLang processes of the machine are somebody else's host and must not show up here.
"""

import signal
from collections.abc import Mapping, Sequence

from kvctl.core.domain.gpus.devices import ProcessFacts, ProcessIdentity
from kvctl.core.ports import Processes
from kvctl.core.sim.simclock import FOLDER_VARIABLE


class SimulatedProcesses:
    """Shows of the real processes only what a simulated host started (a `Processes`)."""

    def __init__(self, processes: Processes, folder: str) -> None:
        """Show of `processes` those that carry this host's folder in their environment."""
        self._processes = processes
        self._folder = folder

    def facts(self, pid: int) -> ProcessFacts | None:
        """Return what is known of a live process, None if it is not visible here."""
        return self._processes.facts(pid)

    def environment(self, identity: ProcessIdentity, name: str) -> str | None:
        """Return one variable of a process's environment, None if unset or unreadable."""
        return self._processes.environment(identity, name)

    def all_facts(self) -> Sequence[ProcessFacts]:
        """Return the processes of this simulated host."""
        return [
            facts
            for facts in self._processes.all_facts()
            if self._processes.environment(facts.identity, FOLDER_VARIABLE) == self._folder
        ]

    def device_file_holders(self) -> Mapping[int, tuple[int, ...]]:
        """Return nothing: simulated devices have no device files."""
        return {}

    def is_alive(self, identity: ProcessIdentity) -> bool:
        """Return whether this very process still runs (a zombie does not)."""
        return self._processes.is_alive(identity)

    def send(self, identity: ProcessIdentity, number: signal.Signals) -> None:
        """Send a signal as the real process table does."""
        self._processes.send(identity, number)
