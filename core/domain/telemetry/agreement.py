"""What every source says of one figure at the same time, and whether they agree.

Which source is shown is decided by rule elsewhere (`decode`, `counts`); here the others are laid
beside it. Two sources disagree only where their windows cannot explain the difference: a count of
the log or of a gauge must lie among the counts that /v1/loads gave in the seconds it may speak of,
and rates are compared only while the running requests are level.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.logs.window import RATE_WINDOW_S, DecodeLine, fresh_decodes, rate_of
from kvctl.core.domain.telemetry import counter_window as counters
from kvctl.core.domain.telemetry.counter_window import CounterWindow
from kvctl.core.domain.telemetry.counts import Sources
from kvctl.core.domain.telemetry.readings import MetricsReading
from kvctl.core.domain.telemetry.steady import LoadSample

SAME_S = 2.5
"""A log line is read within half a second, counts are asked for once a second."""
GAUGE_LAG_S = 30.0
"""Source: an idle scheduler refreshes its gauges every 30 s, a busy one every 40 steps."""
LEVEL_RATIO = 0.25
"""Rates of different windows can be compared while running stays within this of its highest."""
RATE_TOLERANCE_RATIO = 0.20
LAST_STEPS_TOLERANCE_RATIO = 0.50
"""Of rates over the last 40 steps only: a prefill between them halves one such rate."""
COUNT_TOLERANCE_RATIO = 0.10
COUNT_TOLERANCE = 1.0
USAGE_TOLERANCE = 0.05
LAST_STEPS = "last steps"


@dataclass(frozen=True, slots=True)
class Told:
    """What one source says."""

    source: str
    value: float
    at: float
    """Monotonic seconds when it was true."""
    over: str = "now"
    """The window it speaks of: "now", "10 s", "last steps"."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure by all the sources that tell it."""

    figure: str
    """running, queued, token_usage, pool_tokens or generation_tokens_per_s."""
    told: tuple[Told, ...]
    """The one that is shown first."""
    problem: str | None = None
    """How they disagree beyond their windows; None: they agree, or cannot be compared now."""


def compare(
    sources: Sources,
    window: CounterWindow,
    samples: Sequence[LoadSample],
    generation: Figure,
) -> tuple[Comparison, ...]:
    """Return every figure that at least two sources tell now; `samples` are the recent counts."""
    found = (
        _counts(sources, samples, "running", "num_running_reqs"),
        _counts(sources, samples, "queued", "num_queue_reqs"),
        _counts(sources, samples, "token_usage", "token_usage"),
        _pool(sources),
        _generation(sources, window, samples, generation),
    )
    return tuple(c for c in found if len(c.told) > 1)


def _counts(sources: Sources, samples: Sequence[LoadSample], name: str, gauge: str) -> Comparison:
    told = [t for t in _of_loads(samples, name, sources) if t is not None]
    others = [t for t in (_of_log(sources, name), _of_gauge(sources, gauge)) if t is not None]
    problems: Iterator[str | None] = iter(())
    if told and not sources.is_frozen:
        problems = (_outside(other, samples, name) for other in others)
    problem = next((text for text in problems if text), None)
    return Comparison(name, (*told, *others), problem)


def _of_loads(samples: Sequence[LoadSample], name: str, sources: Sources) -> Iterator[Told]:
    if samples and sources.loads is not None:
        newest = samples[-1]
        yield Told(sources.loads.source, _value(newest, name), newest.at)


def _of_log(sources: Sources, name: str) -> Told | None:
    lines = fresh_decodes(sources.log, sources.now)
    if any(line.record.word_of("pool") not in (None, "full") for line in lines):
        return None  # another pool than the one of /v1/loads
    values = [line.record.number_of(name) for line in lines]
    known = [value for value in values if value is not None]
    ranks = 1 if sources.loads is None else len(sources.loads.ranks)
    # Lines of different moments do not add up to one moment.
    is_together = bool(lines) and _spread(lines) <= SAME_S
    if len(known) < len(values) or len(lines) != ranks or not is_together:
        return None
    value = max(known) if name == "token_usage" else sum(known)
    return Told("log", value, min(line.at for line in lines))


def _of_gauge(sources: Sources, gauge: str) -> Told | None:
    metrics = sources.metrics
    if metrics is None or sources.now - metrics.at > counters.STALE_S:
        return None
    value = metrics.gauges.get(gauge)
    return None if value is None else Told("/metrics", value, metrics.at, f"{GAUGE_LAG_S:.0f} s")


def _outside(other: Told, samples: Sequence[LoadSample], name: str) -> str | None:
    """Say that a value is none of those that the counts had in the seconds it may speak of."""
    lag = GAUGE_LAG_S if other.source == "/metrics" else SAME_S
    near = [_value(s, name) for s in samples if other.at - lag <= s.at <= other.at + SAME_S]
    if len(near) < 2:
        return None
    low, high = min(near), max(near)
    slack = USAGE_TOLERANCE
    if name != "token_usage":
        slack = max(COUNT_TOLERANCE, COUNT_TOLERANCE_RATIO * high)
    # What moved so far within the window may have moved as far again just before or after it.
    slack += high - low
    if low - slack <= other.value <= high + slack:
        return None
    return (
        f"{other.source} says {other.value:g} where the counts were {low:g} to {high:g} "
        f"in the same {lag:g} s"
    )


def _pool(sources: Sources) -> Comparison:
    told = tuple(_pools(sources))
    values = {t.value for t in told}
    problem = None
    if len(values) > 1:
        problem = "; ".join(f"{t.source} says {t.value:.0f}" for t in told)
    return Comparison("pool_tokens", told, problem)


def _pools(sources: Sources) -> Iterator[Told]:
    loads, metrics, info = sources.loads, sources.metrics, sources.info
    if loads is not None:
        pools = [rank.pool_tokens for rank in loads.ranks]
        known = [pool for pool in pools if pool is not None]
        if known and len(known) == len(pools):
            yield Told(loads.source, sum(known), loads.at)
    if metrics is not None and (gauge := metrics.gauges.get("max_total_num_tokens")):
        yield Told("/metrics", gauge, metrics.at)
    if info is not None and info.pool_tokens is not None:
        size = info.flags.get("dp_size")
        ranks = size if isinstance(size, int) and size > 0 else 1
        yield Told("/server_info", info.pool_tokens * ranks, info.at, "start")


def _generation(
    sources: Sources, window: CounterWindow, samples: Sequence[LoadSample], shown: Figure
) -> Comparison:
    told = tuple(_rates(sources, window))
    first = [t for t in told if t.source == shown.source]
    ordered = (*first, *(t for t in told if t not in first))
    if len(ordered) < 2 or sources.is_frozen or not _is_level(samples, sources.now):
        return Comparison("generation_tokens_per_s", ordered)
    problems = (_apart(ordered[0], other) for other in ordered[1:])
    return Comparison("generation_tokens_per_s", ordered, next(filter(None, problems), None))


def _rates(sources: Sources, window: CounterWindow) -> Iterator[Told]:
    counted = counters.token_rate(window, counters.DECODE, sources.now)
    if counted.value is not None and counted.at is not None:
        yield Told(counted.source, counted.value, counted.at, f"{counters.RATE_WINDOW_S:.0f} s")
    loads = sources.loads
    if loads is not None:
        rates = [rank.gen_throughput for rank in loads.ranks if rank.running]
        known = [rate for rate in rates if rate]
        if known and len(known) == len(rates):
            yield Told(loads.source, sum(known), loads.at, LAST_STEPS)
    lines = fresh_decodes(sources.log, sources.now)
    logged = [rate for line in lines if (rate := rate_of(line, sources.now)) is not None]
    if lines and len(logged) == len(lines):
        yield Told("log", sum(logged), min(x.at for x in lines), f"{RATE_WINDOW_S:.0f} s")
    yield from _gauge_rate(sources.metrics, sources.now)


def _gauge_rate(metrics: MetricsReading | None, now: float) -> Iterator[Told]:
    if metrics is None or now - metrics.at > counters.STALE_S:
        return
    if (rate := metrics.gauges.get("gen_throughput")) and metrics.gauges.get("num_running_reqs"):
        yield Told("/metrics", rate, metrics.at, LAST_STEPS)


def _is_level(samples: Sequence[LoadSample], now: float) -> bool:
    """Return whether the running requests were level over all windows that are compared."""
    reach = now - 2 * counters.RATE_WINDOW_S
    if not samples or samples[0].at > reach + 1.0:
        return False
    running = [s.running for s in samples if s.at >= reach]
    return bool(running) and min(running) >= (1 - LEVEL_RATIO) * max(running) > 0


def _apart(shown: Told, other: Told) -> str | None:
    is_short = LAST_STEPS in (shown.over, other.over)
    tolerance = LAST_STEPS_TOLERANCE_RATIO if is_short else RATE_TOLERANCE_RATIO
    if abs(shown.value - other.value) <= tolerance * max(shown.value, other.value):
        return None
    return (
        f"{other.source} says {other.value:.0f} tok/s ({other.over}), "
        f"{shown.source} {shown.value:.0f}"
    )


def _value(sample: LoadSample, name: str) -> float:
    if name == "running":
        return sample.running
    return sample.queued if name == "queued" else sample.token_usage


def _spread(lines: Sequence[DecodeLine]) -> float:
    moments = [line.at for line in lines]
    return max(moments) - min(moments)
