"""Generated tokens a second at a number of running requests, from measured operating points.

Pure. A decode step takes a fixed time (weights are read once) and a time for each request (its KV
is read, its part computed): t = a + b N, and N requests make N / t tokens a second. Two points at
different N give both; one alone gives bounds: all of its step fixed, or none of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvctl.core.domain.capacity.prediction import Interval

_LEAST_SPREAD = 1.15
"""Points whose running counts lie closer than this say nothing about the slope."""
_LEAST_ERROR = 0.05
"""What two windows of one launch may differ by; 3 to 5 % in the recorded sweeps."""
_FAR = 1.5
"""Beyond this times the largest measured count a rate is a guess, and its interval says so."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """One measured window."""

    running: float
    tokens_per_s: float
    window_s: float


def expected_rate(points: Sequence[RatePoint], running: float) -> Interval | None:
    """Return generated tok/s with so many requests decoding; None without a measurement.

    Example: 38 requests at 640 tok/s alone say of 76 at least 640 and at most 1,280.
    """
    known = [p for p in points if p.running >= 0.5 and p.tokens_per_s > 0 and p.window_s > 0]
    if not known or running <= 0:
        return None
    most, least = max(p.running for p in known), min(p.running for p in known)
    if most < least * _LEAST_SPREAD:
        return _from_one(known, running)
    fixed, each = _fitted(known)
    expected = running / (fixed + each * running)
    worst = max(abs(p.tokens_per_s - p.running / (fixed + each * p.running)) / p.tokens_per_s
                for p in known)  # fmt: skip
    error = max(_LEAST_ERROR, worst)
    low, high = expected / (1 + error), expected * (1 + error)
    if running > most * _FAR:
        low = min(low, most / (fixed + each * most))
    return Interval(low, expected, high)


def _from_one(points: Sequence[RatePoint], running: float) -> Interval:
    """Return bounds from one count: between proportional to N and independent of it."""
    weight = sum(p.window_s for p in points)
    n = sum(p.running * p.window_s for p in points) / weight
    rate = sum(p.tokens_per_s * p.window_s for p in points) / weight
    bounds = sorted((rate, rate * running / n))
    # Half of the step fixed: t = t0 / 2 (1 + N / n).
    middle = rate * 2 * running / (n + running)
    return Interval(bounds[0] * (1 - _LEAST_ERROR), middle, bounds[1] * (1 + _LEAST_ERROR))


def _fitted(points: Sequence[RatePoint]) -> tuple[float, float]:
    """Return a and b of the step time in seconds, by least squares weighted with the windows."""
    weight = sum(p.window_s for p in points)
    mean_n = sum(p.window_s * p.running for p in points) / weight
    mean_t = sum(p.window_s * p.running / p.tokens_per_s for p in points) / weight
    over = sum(
        p.window_s * (p.running - mean_n) * (p.running / p.tokens_per_s - mean_t) for p in points
    )
    spread = sum(p.window_s * (p.running - mean_n) ** 2 for p in points)
    each = min(max(over / spread, 0.0), mean_t / mean_n)
    return mean_t - each * mean_n, each
