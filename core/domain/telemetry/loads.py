"""Answers that count requests and tokens (/v1/loads, /get_load, /server_info) to one reading.

Source: /v1/loads of SGLang 0.5.8 to 0.5.23, /get_load of 0.4.7 to 0.5.20. `utilization` has no
writer and is not read.
"""

from collections.abc import Mapping
from datetime import datetime

from kvctl.core.domain.jsonfields import Json, as_list, as_mapping, count, number, text
from kvctl.core.domain.telemetry.readings import LoadsReading, RankLoad, ServerInfo


def parse_v1_loads(
    body: Json, at: float, wall: float, *, has_metrics: bool | None
) -> LoadsReading | None:
    """Return the reading of a /v1/loads answer, None if it is not one.

    `has_metrics` tells whether the server runs with --enable-metrics (None: not known): without
    it, `gen_throughput` and `cache_hit_rate` stay 0 under load and mean nothing.
    """
    outer = as_mapping(body)
    if not isinstance(outer.get("loads"), list):
        return None
    ranks = tuple(_v1_rank(as_mapping(entry), has_metrics) for entry in as_list(outer["loads"]))
    version = text(outer, "version")
    return LoadsReading(at, _outer_wall(outer, wall), "/v1/loads", version, ranks)


def parse_get_load(body: Json, at: float, wall: float, version: str | None) -> LoadsReading | None:
    """Return the reading of a /get_load answer, None if it is not one.

    `num_reqs` includes waiting requests; `num_tokens` includes prompts of queued ones, so it is
    not the pool's use.
    """
    if not isinstance(body, list):
        return None
    ranks = tuple(_old_rank(as_mapping(entry), index) for index, entry in enumerate(body))
    return LoadsReading(at, wall, "/get_load", version, ranks)


def loads_of_info(info: ServerInfo, at: float, wall: float) -> LoadsReading:
    """Return what /server_info tells of the load where no load endpoint exists: sizes only."""
    rank = RankLoad(
        dp_rank=0,
        taken_wall=None,
        running=None,
        queued=None,
        used_tokens=None,
        pool_tokens=info.pool_tokens,
        token_usage=None,
        gen_throughput=None,
        cache_hit_ratio=None,
        max_running=info.max_running,
    )
    return LoadsReading(at, wall, "/server_info", info.version, (rank,))


def _v1_rank(entry: Mapping[str, Json], has_metrics: bool | None) -> RankLoad:
    running = count(entry, "num_running_reqs")
    throughput, hits = number(entry, "gen_throughput"), number(entry, "cache_hit_rate")
    if not throughput and running != 0 and not has_metrics:
        throughput = None
    if not hits and not has_metrics:
        hits = None
    accept = number(as_mapping(entry.get("speculative")), "accept_length")
    busy_us = count(entry, "total_prefill_busy_us")
    return RankLoad(
        dp_rank=count(entry, "dp_rank") or 0,
        taken_wall=number(entry, "timestamp"),
        running=running,
        queued=count(entry, "num_waiting_reqs"),
        used_tokens=count(entry, "num_used_tokens"),
        pool_tokens=count(entry, "max_total_num_tokens"),
        token_usage=_usage(entry),
        gen_throughput=throughput,
        cache_hit_ratio=hits,
        max_running=count(entry, "max_running_requests"),
        accept_length=accept or None,
        prefilled_tokens=count(entry, "total_prefill_uncached_tokens"),
        prefill_busy_s=None if busy_us is None else busy_us / 1e6,
    )


def _usage(entry: Mapping[str, Json]) -> float | None:
    usage = number(entry, "token_usage")
    return usage if usage is not None and usage >= 0 else None


def _old_rank(entry: Mapping[str, Json], index: int) -> RankLoad:
    requests, queued = count(entry, "num_reqs"), count(entry, "num_waiting_reqs")
    running = None
    if requests is not None and queued is not None and requests >= queued:
        running = requests - queued
    dp_rank = count(entry, "dp_rank")
    return RankLoad(
        dp_rank=index if dp_rank is None else dp_rank,
        taken_wall=None,
        running=running,
        queued=queued,
        used_tokens=None,
        pool_tokens=None,
        token_usage=None,
        gen_throughput=None,
        cache_hit_ratio=None,
        max_running=None,
    )


def _outer_wall(outer: Mapping[str, Json], wall: float) -> float:
    """Return the answer's own time (ISO text or seconds), ours where it has none."""
    seconds = number(outer, "timestamp")
    if seconds is not None:
        return seconds
    stamp = text(outer, "timestamp")
    if stamp is None:
        return wall
    try:
        parsed = datetime.fromisoformat(stamp)
        return parsed.timestamp() if parsed.tzinfo else wall
    except (ValueError, OverflowError):
        return wall
