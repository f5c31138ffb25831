"""Who is attached to kvctld, and since when nobody has been."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvctl.core.clock import Clock
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.servers.server import ServerState
from kvctl.core.domain.snapshot import Snapshot

_RESTING_RUNS = {RunState.FINISHED, RunState.FAILED}
_RESTING_SERVERS = {ServerState.STOPPED, ServerState.FAILED}


class Attached:
    """Counts open requests and names the panels among them."""

    def __init__(self, clock: Clock) -> None:
        """Start with nobody attached, as of now."""
        self._clock = clock
        self._open = 0
        self._last_seen = clock.monotonic()
        self._panels: dict[object, str] = {}

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the attached panels, in order of arrival."""
        return tuple(self._panels.values())

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a client for as long as its request is open."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._last_seen = self._clock.monotonic()

    @contextmanager
    def panel(self, name: str | None) -> Iterator[None]:
        """Show a panel's operator to the others for as long as its stream is open."""
        token = object()
        if name:
            self._panels[token] = name
        try:
            yield
        finally:
            self._panels.pop(token, None)

    def unattended_s(self) -> float:
        """Return seconds since the last client left, 0 while one is there."""
        return 0.0 if self._open else self._clock.monotonic() - self._last_seen


def has_work(snapshot: Snapshot) -> bool:
    """Return whether kvctld must stay: a run, a managed server, or a command in progress."""
    run = snapshot.run
    return (
        snapshot.busy_command is not None
        or (run is not None and run.state not in _RESTING_RUNS)
        or any(s.is_managed and s.state not in _RESTING_SERVERS for s in snapshot.servers)
    )
