"""Running, queued, usage and sizes from the best of /v1/loads, /metrics, the log and start facts.

Counts that stand still at the server carry the moment when they were true there, so a frozen
answer is never dated as a live one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.logs.window import LogWindow, fresh_decodes
from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading, RankLoad, ServerInfo

FROZEN_AFTER_S = 3.0
"""A scheduler refreshes its counts several times a second, also when idle."""
POOLS = (("swa_token_usage", "swa"), ("mamba_usage", "mamba"))


@dataclass(frozen=True, slots=True)
class Sources:
    """The newest reading of every source, None where there is none."""

    loads: LoadsReading | None
    metrics: MetricsReading | None
    log: LogWindow
    info: ServerInfo | None
    is_frozen: bool
    now: float


def is_frozen(before: LoadsReading | None, reading: LoadsReading) -> bool:
    """Return whether any rank's own time stands still while the answers' time goes on.

    Source: /v1/loads of 0.5.13 and later is read from shared memory, which a paused or hung
    scheduler does not refresh.
    """
    stamps = {} if before is None else {r.dp_rank: r.taken_wall for r in before.ranks}
    return any(
        rank.taken_wall is not None
        and reading.wall - rank.taken_wall > FROZEN_AFTER_S
        and stamps.get(rank.dp_rank, rank.taken_wall) == rank.taken_wall
        for rank in reading.ranks
    )


def true_at(reading: LoadsReading) -> float:
    """Return the monotonic moment when the oldest rank's counts were true."""
    lags = [reading.wall - r.taken_wall for r in reading.ranks if r.taken_wall is not None]
    return reading.at - max(0.0, *lags, 0.0) if lags else reading.at


def running(sources: Sources) -> Figure:
    """Return the running requests of all DP ranks."""
    return _count(sources, lambda rank: rank.running, "num_running_reqs", "running")


def queued(sources: Sources) -> Figure:
    """Return the requests that wait in the schedulers' queues."""
    return _count(sources, lambda rank: rank.queued, "num_queue_reqs", "queued")


def used_tokens(sources: Sources) -> Figure:
    """Return the tokens in use in the pools of all DP ranks, prefix cache excluded."""
    return _count(sources, lambda rank: rank.used_tokens, "num_used_tokens", "tokens")


def _count(
    sources: Sources, of_rank: Callable[[RankLoad], int | None], gauge: str, field: str
) -> Figure:
    """Return a sum over DP ranks; a retract pause empties the gauges, never /v1/loads."""
    loads, metrics = sources.loads, sources.metrics
    if loads is not None and (total := _sum(loads, of_rank)) is not None:
        if (newer := _newer_gauge(sources, loads, gauge)) is not None:
            return Figure(int(newer), "/metrics", true_at(loads))
        return Figure(total, loads.source, true_at(loads))
    if metrics is not None and gauge in metrics.gauges:
        return Figure(int(metrics.gauges[gauge]), "/metrics", metrics.at)
    return _count_in_log(sources, field)


def _newer_gauge(sources: Sources, loads: LoadsReading, name: str) -> float | None:
    """Return the gauge of an engine paused with retract, None otherwise.

    Source: such a pause empties the gauges while /v1/loads keeps the counts of before; in every
    other freeze the gauges are the older ones.
    """
    metrics = sources.metrics
    if not sources.is_frozen or metrics is None or metrics.at <= true_at(loads):
        return None
    is_emptied = metrics.gauges.get("num_running_reqs") == 0
    had_running = bool(_sum(loads, lambda rank: rank.running))
    return metrics.gauges.get(name) if is_emptied and had_running else None


def _count_in_log(sources: Sources, field: str) -> Figure:
    lines = fresh_decodes(sources.log, sources.now)
    values = [line.record.number_of(field) for line in lines]
    known = [value for value in values if value is not None]
    if not values or len(known) < len(values):
        return unknown("no source tells: no load endpoint, no metrics, no fresh decode line")
    return Figure(int(sum(known)), "log", min(line.at for line in lines))


def pool_tokens(sources: Sources) -> Figure:
    """Return max_total_num_tokens summed over DP ranks."""
    loads, metrics, info = sources.loads, sources.metrics, sources.info
    if loads is not None and (total := _sum(loads, lambda rank: rank.pool_tokens)) is not None:
        return Figure(total, loads.source, loads.at)
    if metrics is not None and (gauge := metrics.gauges.get("max_total_num_tokens")):
        return Figure(int(gauge), "/metrics", metrics.at)
    if info is not None and info.pool_tokens is not None:
        return Figure(info.pool_tokens * _dp_size(info), "/server_info", info.at)
    return unknown("neither a load answer nor /server_info tells the pool")


def max_running(sources: Sources) -> Figure:
    """Return how many requests may run at once, over all DP ranks."""
    loads, info = sources.loads, sources.info
    if loads is not None and (total := _sum(loads, lambda rank: rank.max_running)) is not None:
        return Figure(total, loads.source, loads.at)
    if info is not None and info.max_running is not None:
        return Figure(info.max_running * _dp_size(info), "/server_info", info.at)
    return unknown("neither a load answer nor /server_info tells the limit")


@dataclass(frozen=True, slots=True)
class Pressure:
    """The worst KV pressure and where it is."""

    usage: Figure
    pool: str | None
    rank: str | None


def pressure(sources: Sources) -> Pressure:
    """Return the usage of the worst pool of the worst rank, each named where there are several.

    Source: /v1/loads knows one pool; the gauges of the others stand in /metrics (0.5.2 and later).
    """
    base = _usage_of_loads(sources) or _usage_of_metrics(sources) or _usage_in_log(sources)
    if sources.metrics is None or base.usage.source == "log":
        return base
    gauges = sources.metrics.gauges
    others = [(gauges[name], pool) for name, pool in POOLS if gauges.get(name)]
    if not others:
        return base
    value, pool = max(others)
    if base.usage.value is not None and value <= base.usage.value:
        return Pressure(base.usage, "full", base.rank)
    return Pressure(Figure(value, "/metrics", sources.metrics.at), pool, base.rank)


def _usage_of_loads(sources: Sources) -> Pressure | None:
    loads = sources.loads
    if loads is None:
        return None
    usages = {r.dp_rank: r.token_usage for r in loads.ranks if r.token_usage is not None}
    if not usages or len(usages) < len(loads.ranks):
        return None
    if (newer := _newer_gauge(sources, loads, "token_usage")) is not None:
        return Pressure(Figure(newer, "/metrics", true_at(loads)), None, None)
    worst = max(usages, key=lambda rank: usages[rank])
    differs = len(usages) > 1 and max(usages.values()) > min(usages.values())
    usage = Figure(usages[worst], loads.source, true_at(loads))
    return Pressure(usage, None, f"DP{worst}" if differs else None)


def _usage_of_metrics(sources: Sources) -> Pressure | None:
    metrics = sources.metrics
    if metrics is None or "token_usage" not in metrics.gauges:
        return None
    usages = {name: figures.get("token_usage", 0.0) for name, figures in metrics.by_rank.items()}
    differs = len(usages) > 1 and max(usages.values()) > min(usages.values())
    rank = max(usages, key=lambda name: usages[name]) if differs else None
    return Pressure(Figure(metrics.gauges["token_usage"], "/metrics", metrics.at), None, rank)


def _usage_in_log(sources: Sources) -> Pressure:
    lines = fresh_decodes(sources.log, sources.now)
    known = [(usage, x) for x in lines if (usage := x.record.number_of("token_usage")) is not None]
    if not known:
        reason = "no source tells: no load endpoint, no metrics, no fresh decode line"
        return Pressure(unknown(reason), None, None)
    usage, line = max(known, key=lambda pair: pair[0])
    rank = line.rank if len(known) > 1 and line.rank else None
    return Pressure(Figure(usage, "log", line.at), line.record.word_of("pool"), rank)


def imbalance(sources: Sources) -> str | None:
    """Return one line where a DP rank queues while another has under half its requests."""
    ranks = _by_rank(sources)
    if len(ranks) < 2:
        return None
    queueing = max(ranks, key=lambda name: ranks[name][1])
    idle = min(ranks, key=lambda name: sum(ranks[name]))
    waiting = ranks[queueing][1]
    if waiting < 1 or ranks[idle][1] > 0 or 2 * ranks[idle][0] > ranks[queueing][0]:
        return None
    return f"{queueing} has {waiting:.0f} queued while {idle} runs {ranks[idle][0]:.0f}"


def _by_rank(sources: Sources) -> dict[str, tuple[float, float]]:
    """Return running and queued of each DP rank where both are known."""
    if sources.loads is not None and len(sources.loads.ranks) > 1:
        return {
            f"DP{rank.dp_rank}": (float(rank.running), float(rank.queued))
            for rank in sources.loads.ranks
            if rank.running is not None and rank.queued is not None
        }
    if sources.metrics is None:
        return {}
    return {
        name: (figures["running"], figures["queued"])
        for name, figures in sources.metrics.by_rank.items()
        if "running" in figures and "queued" in figures
    }


def _sum(reading: LoadsReading, of_rank: Callable[[RankLoad], int | None]) -> int | None:
    values = [of_rank(rank) for rank in reading.ranks]
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _dp_size(info: ServerInfo) -> int:
    size = info.flags.get("dp_size")
    return size if isinstance(size, int) and size > 0 else 1
