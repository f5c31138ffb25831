"""How a server decodes, folded from its sources: every figure with its source, moment and reason.

Generation rate, best source first: the live token counter over about 10 s, `gen_throughput` of
/v1/loads, the log's decode lines while fresh, a true 0 while nothing runs or waits; else unknown.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.logs.lines import LogRecord
from kvctl.core.domain.logs.window import (
    PREFILL_WINDOW_S,
    RETRACTION_WINDOW_S,
    LogWindow,
    fold_records,
    fresh_decodes,
    rate_of,
)
from kvctl.core.domain.servers.server import Decode
from kvctl.core.domain.telemetry import counter_window as counters
from kvctl.core.domain.telemetry import counts
from kvctl.core.domain.telemetry.agreement import compare
from kvctl.core.domain.telemetry.counter_window import CounterWindow
from kvctl.core.domain.telemetry.prefill_share import BusyTime, fold_busy, share_of
from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading, ServerInfo
from kvctl.core.domain.telemetry.steady import (
    LoadSample,
    Steadiness,
    fold_sample,
    fold_target,
    start_over,
)
from kvctl.core.domain.telemetry.token_progress import (
    TokenProgress,
    progress_of_lines,
    progress_of_loads,
    progress_of_metrics,
)

LOADS_FRESH_S = 10.0
"""An answer older than this tells no rate of now."""


@dataclass(frozen=True, slots=True)
class DecodeState:
    """What is kept of a server's answers and log, in bounded size."""

    loads: LoadsReading | None = None
    is_frozen: bool = False
    """The counts stand still at the server: it is paused or hung."""
    metrics: MetricsReading | None = None
    window: CounterWindow = field(default_factory=CounterWindow)
    log: LogWindow = field(default_factory=LogWindow)
    info: ServerInfo | None = None
    steadiness: Steadiness = field(default_factory=Steadiness)
    rates_since: float | None = None
    """Monotonic seconds of the last freeze, thaw or break: no rate reaches back over it."""
    progress: TokenProgress = field(default_factory=TokenProgress)
    prefill_busy: tuple[BusyTime, ...] = ()


def fold_loads(state: DecodeState, reading: LoadsReading, now: float) -> DecodeState:
    """Return the state after an answer with counts, read at `now`."""
    frozen = counts.is_frozen(state.loads, reading)
    since = state.rates_since
    if frozen != state.is_frozen:
        since = counts.true_at(reading)
    state = replace(
        state,
        loads=reading,
        is_frozen=frozen,
        rates_since=since,
        progress=progress_of_loads(state.progress, reading, now),
        prefill_busy=() if frozen else fold_busy(state.prefill_busy, reading),
    )
    return replace(state, steadiness=_steadiness(state, now))


def fold_metrics(state: DecodeState, reading: MetricsReading, now: float) -> DecodeState:
    """Return the state after a /metrics answer, read at `now`."""
    if reading.foreign_samples and not reading.counters and not reading.gauges:
        return fold_no_metrics(state, "/metrics answers, but under names that are not SGLang's")
    return replace(
        state,
        metrics=reading,
        window=counters.fold_reading(state.window, reading),
        progress=progress_of_metrics(state.progress, reading, now),
    )


def fold_no_metrics(state: DecodeState, why: str) -> DecodeState:
    """Return the state of a server without /metrics; `why` is told with every figure it costs."""
    return replace(state, metrics=None, window=counters.without_metrics(state.window, why))


def fold_log(state: DecodeState, records: Iterable[LogRecord], now: float) -> DecodeState:
    """Return the state after new log records, read at `now`."""
    log = fold_records(state.log, records, now)
    progress = progress_of_lines(state.progress, log.decode_at, log.prefill_at)
    return replace(state, log=log, progress=progress)


def fold_info(state: DecodeState, info: ServerInfo) -> DecodeState:
    """Return the state after a /server_info answer."""
    return replace(state, info=info)


def fold_target_change(state: DecodeState, target: float | None) -> DecodeState:
    """Return the state under a target of requests in flight; another one is not steady yet."""
    return replace(state, steadiness=fold_target(state.steadiness, target))


def fold_break(state: DecodeState) -> DecodeState:
    """Return the state after a pause or another break: nothing is steady until shown again."""
    known = [reading.at for reading in (state.loads, state.metrics) if reading is not None]
    since = max(known) if known else state.rates_since
    return replace(state, steadiness=start_over(state.steadiness), rates_since=since)


def frozen_since(state: DecodeState) -> float | None:
    """Return when the counts were last refreshed at the server; None while they are."""
    return counts.true_at(state.loads) if state.loads is not None and state.is_frozen else None


def decode_of(state: DecodeState, now: float) -> Decode:
    """Return the figures as they stand at `now`; effective figures are added by the caller."""
    sources = _sources(state, now)
    worst = counts.pressure(sources)
    running = counts.running(sources)
    generation = generation_rate(state, now)
    return Decode(
        running=running,
        queued=counts.queued(sources),
        token_usage=worst.usage,
        used_tokens=counts.used_tokens(sources),
        pool_tokens=counts.pool_tokens(sources),
        max_running=counts.max_running(sources),
        generation_tokens_per_s=generation,
        prefill_tokens_per_s=_prefill_rate(state, now),
        prefill_share=_prefill_share(state, now),
        retracted_per_min=_retracted_per_min(state, now),
        retracted_total=_retracted_total(state, now),
        recomputed_tokens_per_min=_recomputed_per_min(state, now),
        cache_hit_ratio=_cache_hit_ratio(state, now),
        accept_length=_accept_length(state, now),
        queue_wait_s=counters.mean_of(state.window, counters.QUEUE_TIME, now),
        request_tokens_per_s=_per_request(generation, running),
        ttft_p50_s=counters.percentile_of(state.window, counters.TTFT, 0.5, now),
        ttft_p99_s=counters.percentile_of(state.window, counters.TTFT, 0.99, now),
        itl_p50_s=counters.percentile_of(state.window, counters.ITL, 0.5, now),
        itl_p99_s=counters.percentile_of(state.window, counters.ITL, 0.99, now),
        e2e_p50_s=counters.percentile_of(state.window, counters.E2E, 0.5, now),
        e2e_p99_s=counters.percentile_of(state.window, counters.E2E, 0.99, now),
        imbalance=counts.imbalance(sources),
        worst_pool=worst.pool,
        worst_rank=worst.rank,
        steady_since=state.steadiness.since,
        is_frozen=state.is_frozen,
        sources=compare(sources, state.window, state.steadiness.samples, generation),
        log_lines=state.log.lines,
        unrecognised_lines=state.log.unrecognised,
        bad_metric_lines=state.metrics.bad_lines if state.metrics else 0,
    )


def generation_rate(state: DecodeState, now: float) -> Figure:
    """Return the decode rate over all requests from the best source there is.

    While counts stand still it is unknown: a scheduler that decodes refreshes them, and a counter
    that was read between the last refresh and the pause would show a few tokens as a rate of now.
    """
    if state.is_frozen and state.loads is not None:
        return _no_new_counts(state.loads, now)
    counted = counters.token_rate(state.window, counters.DECODE, now, state.rates_since)
    if counted.known:
        return counted
    for read in (_rate_of_loads, _rate_of_log, _idle, _rate_of_gauge):
        if (figure := read(state, now)) is not None:
            return figure
    return unknown(f"{counted.reason}; no decode line in the log for {counters.STALE_S:.0f} s")


def _no_new_counts(loads: LoadsReading, now: float) -> Figure:
    return unknown(f"no new counts for {now - counts.true_at(loads):.0f} s")


def _rate_of_loads(state: DecodeState, now: float) -> Figure | None:
    loads = state.loads
    if loads is None or state.is_frozen or now - loads.at > LOADS_FRESH_S:
        return None
    rates = [rank.gen_throughput for rank in loads.ranks if rank.running]
    known = [rate for rate in rates if rate]
    return Figure(sum(known), loads.source, loads.at) if known else None


def _rate_of_log(state: DecodeState, now: float) -> Figure | None:
    """Return the sum over the ranks of what their decode lines say."""
    lines = fresh_decodes(state.log, now)
    known = [rate for line in lines if (rate := rate_of(line, now)) is not None]
    if not known or state.is_frozen or _idle(state, now) is not None:
        return None
    return Figure(sum(known), "log", min(line.at for line in lines))


def _rate_of_gauge(state: DecodeState, now: float) -> Figure | None:
    """Return the gauge of versions without a live counter; it outlives what it measured."""
    metrics = state.metrics
    if metrics is None or state.is_frozen or now - metrics.at > counters.STALE_S:
        return None
    gauge = metrics.gauges.get("gen_throughput")
    if not gauge or not metrics.gauges.get("num_running_reqs"):
        return None
    return Figure(gauge, "/metrics", metrics.at)


def _idle(state: DecodeState, now: float) -> Figure | None:
    """Return a true 0 where an answer of now says that nothing runs or waits."""
    loads = state.loads
    if loads is None or state.is_frozen or now - loads.at > LOADS_FRESH_S:
        return None
    if not loads.ranks or any(r.running != 0 or r.queued != 0 for r in loads.ranks):
        return None
    return Figure(0.0, loads.source, loads.at)


def _prefill_rate(state: DecodeState, now: float) -> Figure:
    counted = counters.token_rate(state.window, counters.PREFILL, now, state.rates_since)
    since = state.log.since
    if state.is_frozen and state.loads is not None:
        return _no_new_counts(state.loads, now)
    if counted.known or state.window.readings or since is None or now <= since:
        return counted
    recent = [a.tokens or 0.0 for a in state.log.prefills if now - a.at <= PREFILL_WINDOW_S]
    return Figure(sum(recent) / min(PREFILL_WINDOW_S, max(1.0, now - since)), "log", now)


def _prefill_share(state: DecodeState, now: float) -> Figure:
    if state.loads is None:
        return unknown("no server answers yet")
    if state.is_frozen:
        return _no_new_counts(state.loads, now)
    return share_of(state.prefill_busy, state.loads.source, now)


def _retracted_per_min(state: DecodeState, now: float) -> Figure:
    counted = counters.event_rate(state.window, (counters.RETRACTED,), now)
    return counted if counted.known else _per_min_in_log(state, now, counted, in_tokens=False)


def _recomputed_per_min(state: DecodeState, now: float) -> Figure:
    counted = counters.event_rate(state.window, counters.LOST_TOKENS, now)
    return counted if counted.known else _per_min_in_log(state, now, counted, in_tokens=True)


def _per_min_in_log(state: DecodeState, now: float, counted: Figure, *, in_tokens: bool) -> Figure:
    """Return a count of the log's retractions where no counter tells, scaled to a minute."""
    since = state.log.since
    if since is None or counted.reason == counters.MEASURING:
        return counted
    span = min(RETRACTION_WINDOW_S, now - since)
    if span < counters.MIN_EVENT_SPAN_S:
        return unknown(counters.MEASURING, "log")
    recent = [a for a in state.log.retractions if now - a.at <= span]
    amounts = [a.tokens if in_tokens else a.count for a in recent]
    known = [amount for amount in amounts if amount is not None]
    if len(known) < len(amounts):
        return unknown("this version's log does not tell the tokens of a retraction", "log")
    return Figure(sum(known) * 60.0 / span, "log", now)


def _retracted_total(state: DecodeState, now: float) -> Figure:
    counted = counters.counted(state.window, counters.RETRACTED)
    if counted.known or state.log.since is None:
        return counted
    return Figure(state.log.retracted_total, "log, since it is followed", now)


def _cache_hit_ratio(state: DecodeState, now: float) -> Figure:
    counted = counters.cache_hit_ratio(state.window, now)
    if counted.known or state.loads is None:
        return counted
    ratios = [r.cache_hit_ratio for r in state.loads.ranks if r.cache_hit_ratio]
    return Figure(max(ratios), state.loads.source, state.loads.at) if ratios else counted


def _accept_length(state: DecodeState, now: float) -> Figure:
    metrics, loads = state.metrics, state.loads
    if metrics is not None and (gauge := metrics.gauges.get("spec_accept_length")):
        return Figure(gauge, "/metrics", metrics.at)
    if loads is not None and (lengths := [r.accept_length for r in loads.ranks if r.accept_length]):
        return Figure(sum(lengths) / len(lengths), loads.source, loads.at)
    for line in fresh_decodes(state.log, now):
        if (length := line.record.number_of("accept_length")) is not None:
            return Figure(length, "log", line.at)
    return unknown("no speculative decoding")


def _per_request(generation: Figure, running: Figure) -> Figure:
    if generation.value is None or running.value is None:
        return unknown(generation.reason or running.reason or "not known")
    if running.value <= 0:
        return unknown("nothing runs")
    return Figure(generation.value / running.value, generation.source, generation.at)


def _steadiness(state: DecodeState, now: float) -> Steadiness:
    """Return the steadiness after a load answer; what is frozen or unknown is not steady."""
    sources = _sources(state, now)
    running, queued = counts.running(sources).value, counts.queued(sources).value
    usage, pool = counts.pressure(sources).usage.value, counts.pool_tokens(sources).value
    if state.is_frozen or running is None or queued is None or usage is None:
        return start_over(state.steadiness)
    sample = LoadSample(now, running, queued, usage)
    return fold_sample(state.steadiness, sample, None if pool is None else int(pool))


def _sources(state: DecodeState, now: float) -> counts.Sources:
    return counts.Sources(state.loads, state.metrics, state.log, state.info, state.is_frozen, now)
