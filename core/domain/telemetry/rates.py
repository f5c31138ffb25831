"""What happened between two readings: counter increases, rates and percentiles.

A counter that went down was reset (the server restarted): then its new value is the increase.
"""

import math

from kvctl.core.domain.telemetry.readings import Histogram, MetricsReading


def increase(older: MetricsReading, newer: MetricsReading, name: str) -> float | None:
    """Return by how much a counter grew, >= 0; None where either reading lacks it."""
    before, after = older.counters.get(name), newer.counters.get(name)
    if before is None or after is None:
        return None
    return after - before if after >= before else max(0.0, after)


def rate(older: MetricsReading, newer: MetricsReading, name: str) -> float | None:
    """Return a counter's growth per second, >= 0; None without both values or any time between.

    Formula: increase / (newer.at - older.at).
    """
    elapsed = newer.at - older.at
    grown = increase(older, newer, name)
    return None if grown is None or elapsed <= 0 else grown / elapsed


def was_reset(older: MetricsReading, newer: MetricsReading) -> bool:
    """Return whether any counter went down: another process answers now."""
    return any(newer.counters.get(name, v) < v for name, v in older.counters.items())


def window(older: Histogram, newer: Histogram) -> Histogram:
    """Return the observations made between two readings of a histogram."""
    if older.bounds != newer.bounds or older.counts[-1] > newer.counts[-1]:
        return newer  # another process counts from 0
    counts = tuple(max(0.0, n - o) for n, o in zip(newer.counts, older.counts, strict=True))
    total = newer.total - older.total
    return Histogram(newer.bounds, counts, total if total >= 0 else math.nan)


def mean(histogram: Histogram) -> float | None:
    """Return the mean observation, None without any."""
    count = histogram.counts[-1] if histogram.counts else 0.0
    return histogram.total / count if count > 0 and math.isfinite(histogram.total) else None


def percentile(histogram: Histogram, ratio: float) -> float | None:
    """Return the value below which `ratio` (0..1) of the observations lie, None without any.

    Linear inside a bucket; an answer in the open last bucket is its lower bound, a lower estimate.
    """
    count = histogram.counts[-1] if histogram.counts else 0.0
    if count <= 0:
        return None
    wanted, lower, below = ratio * count, 0.0, 0.0
    for bound, cumulative in zip(histogram.bounds, histogram.counts, strict=True):
        if cumulative >= wanted and cumulative > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (wanted - below) / (cumulative - below)
        lower, below = bound, max(below, cumulative)
    return None if math.isinf(lower) else lower
