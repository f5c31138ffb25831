"""The last minute of /metrics: which figures its counters and histograms give, and over what span.

A counter that is absent while others of the same version are there has simply not counted yet: it
is 0. Where the whole family is missing the figure is unknown.
"""

from dataclasses import dataclass, replace

from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.telemetry.rates import mean, percentile, was_reset, window
from kvctl.core.domain.telemetry.readings import Histogram, MetricsReading

RATE_WINDOW_S = 10.0
EVENT_WINDOW_S = 60.0
MIN_RATE_SPAN_S = 0.9
MIN_EVENT_SPAN_S = 10.0
STALE_S = 15.0
"""Counters older than this tell no rate of now."""
MEASURING = "measuring"
"""Reason of a rate whose window has only begun."""
DECODE = "realtime_tokens_total.decode"
PREFILL = "realtime_tokens_total.prefill_compute"
CACHED = "realtime_tokens_total.prefill_cache"
RETRACTED = "num_retracted_requests_total"
LOST_TOKENS = ("num_retracted_input_tokens_total", "num_retracted_output_tokens_total")
GENERATED_AT_END = "generation_tokens_total"
_COUNTERS = (DECODE, PREFILL, CACHED, RETRACTED, *LOST_TOKENS, GENERATED_AT_END)
QUEUE_TIME = ("queue_time_seconds", "queue_time_s")
TTFT = ("time_to_first_token_seconds",)
ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")
E2E = ("e2e_request_latency_seconds",)
_HISTOGRAMS = (*QUEUE_TIME, *TTFT, *ITL, *E2E)
_LIVE_FAMILY = (DECODE, PREFILL, CACHED)


@dataclass(frozen=True, slots=True)
class CounterWindow:
    """Readings of the last minute, oldest first, reduced to what is used."""

    readings: tuple[MetricsReading, ...] = ()
    why_none: str = "no /metrics answer yet"
    """Why there are no readings."""


def fold_reading(state: CounterWindow, reading: MetricsReading) -> CounterWindow:
    """Return the window after one more reading; a reset (a restart) starts over."""
    slim = _slim(reading)
    kept = state.readings
    if kept and (slim.at < kept[-1].at or was_reset(kept[-1], slim)):
        kept = ()
    # One reading from before the minute stays, so that the span covers all of it.
    start = slim.at - EVENT_WINDOW_S
    older = [k for k in kept if k.at < start][-1:]
    return CounterWindow((*older, *(k for k in kept if k.at >= start), slim), state.why_none)


def without_metrics(state: CounterWindow, why: str) -> CounterWindow:
    """Return the window of a server whose /metrics is off or has gone."""
    return replace(state, readings=(), why_none=why)


def token_rate(state: CounterWindow, name: str, now: float, since: float | None = None) -> Figure:
    """Return a live counter's growth per second over about the last 10 s, none before `since`."""
    kept = tuple(r for r in state.readings if since is None or r.at >= since)
    cut = state if len(kept) == len(state.readings) else replace(state, readings=kept)
    if state.readings and not kept:
        return unknown(MEASURING, "/metrics")
    return _growth(cut, (name,), now, RATE_WINDOW_S, MIN_RATE_SPAN_S)


def event_rate(state: CounterWindow, names: tuple[str, ...], now: float) -> Figure:
    """Return the growth per minute of counters together, over about the last minute."""
    return _growth(state, names, now, EVENT_WINDOW_S, MIN_EVENT_SPAN_S, per_s=60.0)


def counted(state: CounterWindow, name: str) -> Figure:
    """Return a counter's present value."""
    if not state.readings:
        return unknown(state.why_none, "/metrics")
    newest = state.readings[-1]
    value = _value(newest, name)
    if value is None:
        return unknown(f"this version has no {name}", "/metrics")
    return Figure(int(value), "/metrics", newest.at)


def cache_hit_ratio(state: CounterWindow, now: float) -> Figure:
    """Return the share of prompt tokens that came from the prefix cache in the last minute."""
    pair = _pair(state, now, EVENT_WINDOW_S, MIN_RATE_SPAN_S)
    if isinstance(pair, Figure):
        return pair
    older, newer = pair
    computed, cached = _grown(older, newer, PREFILL), _grown(older, newer, CACHED)
    if computed is None or cached is None:
        return unknown("this version does not count prompt tokens live", "/metrics")
    if computed + cached <= 0:
        return unknown("no prompt was prefilled in the last minute", "/metrics")
    source = f"realtime_tokens_total, {newer.at - older.at:.0f} s"
    return Figure(cached / (computed + cached), source, newer.at)


def mean_of(state: CounterWindow, names: tuple[str, ...], now: float) -> Figure:
    """Return the mean of the last minute's observations of a histogram."""
    observed = _observed(state, names, now)
    if isinstance(observed, Figure):
        return observed
    name, histogram, at = observed
    value = mean(histogram)
    return Figure(value, name, at) if value is not None else unknown(_NOTHING_ENDED, name)


def percentile_of(state: CounterWindow, names: tuple[str, ...], ratio: float, now: float) -> Figure:
    """Return a percentile (0..1) of the last minute's observations of a histogram."""
    observed = _observed(state, names, now)
    if isinstance(observed, Figure):
        return observed
    name, histogram, at = observed
    value = percentile(histogram, ratio)
    return Figure(value, name, at) if value is not None else unknown(_NOTHING_ENDED, name)


_NOTHING_ENDED = "nothing was observed in the last minute"


def _observed(
    state: CounterWindow, names: tuple[str, ...], now: float
) -> tuple[str, Histogram, float] | Figure:
    pair = _pair(state, now, EVENT_WINDOW_S, MIN_RATE_SPAN_S)
    if isinstance(pair, Figure):
        return pair
    older, newer = pair
    for name in names:
        if (histogram := newer.histograms.get(name)) is not None:
            before = older.histograms.get(name, _empty(histogram))
            return name, window(before, histogram), newer.at
    return unknown(f"this version has no {names[0]}", "/metrics")


def _empty(like: Histogram) -> Histogram:
    return Histogram(like.bounds, (0.0,) * len(like.bounds), 0.0)


def _growth(
    state: CounterWindow,
    names: tuple[str, ...],
    now: float,
    span_s: float,
    min_span_s: float,
    per_s: float = 1.0,
) -> Figure:
    pair = _pair(state, now, span_s, min_span_s)
    if isinstance(pair, Figure):
        return pair
    older, newer = pair
    grown = [_grown(older, newer, name) for name in names]
    if any(value is None for value in grown):
        return unknown(f"this version has no {names[0].partition('.')[0]}", "/metrics")
    elapsed = newer.at - older.at
    total = sum(value for value in grown if value is not None)
    source = f"{names[0].partition('.')[0]}, {elapsed:.0f} s"
    return Figure(total * per_s / elapsed, source, newer.at)


def _pair(
    state: CounterWindow, now: float, span_s: float, min_span_s: float
) -> tuple[MetricsReading, MetricsReading] | Figure:
    """Return the newest reading and the one that lies about `span_s` before it."""
    if not state.readings:
        return unknown(state.why_none, "/metrics")
    newer = state.readings[-1]
    if now - newer.at > STALE_S:
        return unknown(f"no /metrics answer for {now - newer.at:.0f} s", "/metrics")
    before = [r for r in state.readings if newer.at - r.at >= span_s - 0.5]
    older = before[-1] if before else state.readings[0]
    if newer.at - older.at < min_span_s:
        return unknown(MEASURING, "/metrics")
    return older, newer


def _grown(older: MetricsReading, newer: MetricsReading, name: str) -> float | None:
    before, after = _value(older, name), _value(newer, name)
    return None if before is None or after is None else max(0.0, after - before)


def _value(reading: MetricsReading, name: str) -> float | None:
    value = reading.counters.get(name)
    if value is None and name in (RETRACTED, *LOST_TOKENS, *_LIVE_FAMILY):
        # Source: a labelled counter has no series before its first increment; the retraction
        # counters and the live token counters came with the same version (0.5.10).
        is_counting = any(live in reading.counters for live in _LIVE_FAMILY)
        return 0.0 if is_counting else None
    return value


def _slim(reading: MetricsReading) -> MetricsReading:
    return replace(
        reading,
        counters={k: reading.counters[k] for k in _COUNTERS if k in reading.counters},
        histograms={k: reading.histograms[k] for k in _HISTOGRAMS if k in reading.histograms},
    )
