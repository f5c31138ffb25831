"""Requests on a server that are not ours, from its counts and what we have in flight.

The two are never of the same instant: a request that has just ended here may still be counted
there. So what is foreign is what stays over in several readings, beside the most that was ours.
Pure.
"""

from collections import deque
from dataclasses import dataclass, field

SPAN_S = 3.0
"""Longer than a reading is old, shorter than an operator waits."""
READINGS = 3


@dataclass(slots=True)
class ForeignLoad:
    """What one server has of others."""

    _own: deque[tuple[float, int]] = field(default_factory=deque)
    """When, and how many of ours were in flight there."""
    _totals: deque[int] = field(default_factory=lambda: deque(maxlen=READINGS))

    def note_own(self, at: float, in_flight: int) -> None:
        """Take the number of our own requests at the server; `at` is monotonic seconds."""
        self._own.append((at, in_flight))
        while self._own[0][0] < at - SPAN_S:
            self._own.popleft()

    def observe(self, at: float, total: int, in_flight: int) -> None:
        """Take a reading: running and queued requests there, and ours now."""
        self.note_own(at, in_flight)
        self._totals.append(total)

    def forget(self) -> None:
        """Begin anew: the server was paused or replaced, so that readings are of no use."""
        self._own.clear()
        self._totals.clear()

    @property
    def count(self) -> int | None:
        """Return the requests of others; None before the first reading."""
        if not self._totals:
            return None
        own = max((count for _, count in self._own), default=0)
        # Without requests of ours there is nothing to take for another's.
        total = min(self._totals) if own else self._totals[-1]
        return max(0, total - own)
