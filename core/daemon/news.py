"""What is new between two snapshots."""

from kvctl.core.domain.events import Event
from kvctl.core.domain.snapshot import Snapshot


def events_since(before: Snapshot, after: Snapshot) -> tuple[Event, ...]:
    """Return the events of `after` that `before` did not have yet, oldest first."""
    if not before.events:
        return after.events
    last = before.events[-1]
    for place in range(len(after.events) - 1, -1, -1):
        if after.events[place] == last:
            return after.events[place + 1 :]
    return after.events
