"""The pace of a run: tokens per second over the last minutes, and how it hangs on the requests.

A decode step takes a time of its own and a time for each request in it, so that N requests make
N / (fixed + each N) tokens per second. Both are fitted to what was seen since the server started.
"""

import math
from collections import deque
from dataclasses import dataclass, field

_INDEPENDENT_S = 180.0
"""Samples closer than an answer takes say nearly the same."""
_LEAST = 0.01
"""Less than this is nothing."""
_LEAST_SPREAD = 0.15
"""Relative standard deviation of the requests below which they tell nothing of the two parts …"""
_FIXED_SHARE = 0.5
"""… and half of a step is taken to be fixed."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast tokens are made now."""

    tokens_per_s: float
    """All servers together."""
    slots: float
    """Requests that decode at that pace."""
    spread: float = 0.0
    """Relative standard error of the figure."""
    fixed_share: float = _FIXED_SHARE
    """Share (0..1) of a decode step, at `slots` requests, that does not hang on their number."""
    used_tokens: float | None = None
    """Tokens that the pools held meanwhile; None: not known."""
    most: float = math.inf
    """The most requests that were seen to decode at once."""

    @property
    def is_known(self) -> bool:
        """Whether anything is made at all."""
        nothing = _LEAST / 2  # a mean of what is kept, however it is rounded, is above it
        return self.tokens_per_s > nothing and self.slots > nothing

    def at(self, requests: float) -> float:
        """Return tokens per second with so many requests."""
        if self.slots <= 0 or requests <= 0:
            return 0.0
        ratio = requests / self.slots
        return self.tokens_per_s * ratio / (self.fixed_share + (1.0 - self.fixed_share) * ratio)


@dataclass(slots=True)
class PaceTrack:
    """Samples of the servers' own figures while the run sends, oldest first."""

    longest_s: float = 900.0
    _samples: deque[tuple[float, float, float, float]] = field(default_factory=deque)
    """When, tokens per second, requests, tokens held; oldest first."""
    _most: float = 0.0
    _count: int = 0
    _requests: float = 0.0
    _seconds: float = 0.0
    _squares: float = 0.0
    _products: float = 0.0
    """Sums over all samples of requests, seconds a step, requests squared, and their product."""

    def add(self, at: float, tokens_per_s: float, running: float, used_tokens: float) -> None:
        """Count one sample (monotonic seconds); `used_tokens` is 0 where it is not known."""
        if tokens_per_s < _LEAST or running < _LEAST:
            return
        self._samples.append((at, tokens_per_s, running, used_tokens))
        while self._samples[0][0] < at - self.longest_s:
            self._samples.popleft()
        step = running / tokens_per_s
        self._most = max(self._most, running)
        self._count += 1
        self._requests += running
        self._seconds += step
        self._squares += running * running
        self._products += running * step

    def clear(self) -> None:
        """Forget the pace of now, not what a step takes: sending stopped."""
        self._samples.clear()

    def pace(self, last_s: float = math.inf) -> Pace | None:
        """Return the mean of the last seconds, of all that are kept by default; None: no samples.

        Its error counts one independent sample in three minutes: neighbours say the same.
        """
        if not self._samples:
            return None
        end = self._samples[-1][0]
        chosen = [sample for sample in self._samples if sample[0] >= end - last_s]
        count = len(chosen)
        rates = [sample[1] for sample in chosen]
        mean = sum(rates) / count
        variance = sum((rate - mean) ** 2 for rate in rates) / count
        independent = 1.0 + (end - chosen[0][0]) / _INDEPENDENT_S
        running = sum(sample[2] for sample in chosen) / count
        used = sum(sample[3] for sample in chosen) / count
        error = math.sqrt(variance / independent) / mean
        fixed = self._fixed_share(running)
        return Pace(mean, running, error, fixed, used or None, self._most)

    def _fixed_share(self, running: float) -> float:
        n = self._count
        mean = self._requests / n
        variance = self._squares / n - mean * mean
        if variance <= (_LEAST_SPREAD * mean) ** 2:
            return _FIXED_SHARE
        seconds = self._seconds / n
        each = (self._products / n - mean * seconds) / variance
        fixed = seconds - each * mean
        total = fixed + each * running
        return min(1.0, max(0.0, fixed / total)) if total > 0 else _FIXED_SHARE
