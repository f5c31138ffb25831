"""Prometheus samples of SGLang to one reading, and rates and percentiles out of two readings.

Merging is by meaning: what counts adds over DP ranks, what is a pressure takes the worst rank, and
copies (the same figure exported by TP, PP, EP or CP ranks of one DP rank) are never added.
Source: metric names and labels of SGLang 0.4.6 to 0.5.23, prefix `sglang:` or `sglang_`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvctl.core.domain.telemetry.readings import Histogram, MetricsReading


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of /metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


_COPY_LABELS = frozenset(
    {"tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "attn_cp_rank", "cp_rank", "moe_dp_rank"}
)
_DEAD_LABEL = "pid"
_SPLIT_LABELS = ("mode", "phase")
"""Labels that make different figures of one name: they become a suffix."""
_ADDITIVE_GAUGES = frozenset(
    {
        "num_running_reqs",
        "num_queue_reqs",
        "num_grammar_queue_reqs",
        "num_used_tokens",
        "gen_throughput",
        "max_total_num_tokens",
        "max_total_num_tokens_swa",
        "kv_available_tokens",
        "kv_evictable_tokens",
        "kv_used_tokens",
        "num_pages",
        "http_requests_active",
        "hicache_host_used_tokens",
        "hicache_host_total_tokens",
        "decode_sum_seq_lens",
    }
)
_RANK_FIGURES = {
    "num_running_reqs": "running",
    "num_queue_reqs": "queued",
    "token_usage": "token_usage",
}
_PREFIXES = ("sglang:", "sglang_")


def merge_samples(
    samples: Iterable[Sample], types: Mapping[str, str], at: float, bad_lines: int = 0
) -> MetricsReading:
    """Return one reading of all samples; `types` maps full names to counter, gauge, histogram."""
    ours: dict[str, list[Sample]] = {}
    foreign, model_name = 0, None
    for sample in samples:
        name = _short(sample.name)
        if name is None:
            foreign += 1
            continue
        ours.setdefault(name, []).append(sample)
        model_name = model_name or sample.labels.get("model_name")
    plain = {_short(name) or name: kind for name, kind in types.items()}
    histograms = _histograms(ours)
    scalars = {name: rows for name, rows in ours.items() if not _is_histogram_part(name, plain)}
    counters = {name: rows for name, rows in scalars.items() if _is_counter(name, plain)}
    gauges = {name: rows for name, rows in scalars.items() if name not in counters}
    return MetricsReading(
        at=at,
        counters=_merged(counters, additive=None),
        gauges=_merged(gauges, additive=_ADDITIVE_GAUGES),
        histograms=histograms,
        bad_lines=bad_lines,
        by_rank=_by_rank(gauges),
        model_name=model_name,
        foreign_samples=foreign,
    )


def _short(name: str) -> str | None:
    return next((name[len(p) :] for p in _PREFIXES if name.startswith(p)), None)


def _is_counter(name: str, types: Mapping[str, str]) -> bool:
    base = name.removesuffix("_total")
    kind = types.get(name) or types.get(base)
    return kind == "counter" or (kind in (None, "unknown") and name.endswith("_total"))


def _is_histogram_part(name: str, types: Mapping[str, str]) -> bool:
    if types.get(name, "histogram") != "histogram":
        return False
    for suffix in ("_bucket", "_sum", "_count"):
        base = name.removesuffix(suffix)
        if base != name and (suffix == "_bucket" or types.get(base, "histogram") == "histogram"):
            return True
    return False


def _merged(
    families: Mapping[str, list[Sample]], additive: frozenset[str] | None
) -> dict[str, float]:
    """Merge each family; `additive` None means that every name adds (counters)."""
    merged: dict[str, float] = {}
    for name, rows in families.items():
        adds = additive is None or name in additive
        # Source: a gauge's total stands under an empty priority; counters are split by it.
        told = rows if additive is None else _without_priority_parts(rows)
        for suffix, values in _distinct(told).items():
            merged[name + suffix] = math.fsum(values) if adds else max(values)
    return merged


def _distinct(rows: Iterable[Sample]) -> dict[str, list[float]]:
    """Return one value a DP rank and label set (copies take their highest), by name suffix."""
    best: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for row in _of_living(rows):
        if not math.isfinite(row.value):
            continue
        kept = {k: v for k, v in row.labels.items() if k not in _COPY_LABELS and k != _DEAD_LABEL}
        suffix = "".join(f".{kept[label]}" for label in _SPLIT_LABELS if label in kept)
        key = (suffix, frozenset(kept.items()))
        best[key] = max(best.get(key, -math.inf), row.value)
    values: dict[str, list[float]] = {}
    for (suffix, _), value in best.items():
        values.setdefault(suffix, []).append(value)
    return values


def _of_living(rows: Iterable[Sample]) -> list[Sample]:
    """Leave out series that carry a pid where several pids claim the same rank.

    Source: gauges without a multiprocess mode linger after their process; which one lives is not
    told, so none is believed.
    """
    kept = list(rows)
    pids: dict[frozenset[tuple[str, str]], set[str]] = {}
    for row in kept:
        if _DEAD_LABEL in row.labels:
            pids.setdefault(_rank_key(row), set()).add(row.labels[_DEAD_LABEL])
    return [row for row in kept if len(pids.get(_rank_key(row), ())) <= 1]


def _rank_key(row: Sample) -> frozenset[tuple[str, str]]:
    return frozenset((k, v) for k, v in row.labels.items() if k != _DEAD_LABEL)


def _without_priority_parts(rows: list[Sample]) -> list[Sample]:
    """Where a total with an empty priority stands beside its parts, keep the total only."""
    if any(row.labels.get("priority") == "" for row in rows):
        return [row for row in rows if row.labels.get("priority", "") == ""]
    return rows


def _by_rank(gauges: Mapping[str, list[Sample]]) -> dict[str, dict[str, float]]:
    """Return the three figures that can differ between DP ranks, where there are several."""
    ranks: dict[str, dict[str, float]] = {}
    for name, figure in _RANK_FIGURES.items():
        for row in gauges.get(name, ()):
            rank = row.labels.get("dp_rank")
            if rank is not None and math.isfinite(row.value):
                of_rank = ranks.setdefault(f"DP{rank}", {})
                of_rank[figure] = max(of_rank.get(figure, -math.inf), row.value)
    return ranks if len(ranks) > 1 else {}


def _histograms(families: Mapping[str, list[Sample]]) -> dict[str, Histogram]:
    merged: dict[str, Histogram] = {}
    for name, rows in families.items():
        base = name.removesuffix("_bucket")
        if base == name:
            continue
        sums = families.get(f"{base}_sum", ())
        is_summed = bool(sums) and all(math.isfinite(row.value) for row in sums)
        totals = (value for values in _distinct(sums).values() for value in values)
        histogram = _histogram(rows, math.fsum(totals) if is_summed else math.nan)
        if histogram is not None:
            merged[base] = histogram
    return merged


def _histogram(rows: Iterable[Sample], total: float) -> Histogram | None:
    by_bound: dict[float, list[Sample]] = {}
    for row in rows:
        bound = _bound(row.labels.get("le", ""))
        if bound is not None:
            by_bound.setdefault(bound, []).append(row)
    if math.inf not in by_bound:
        return None
    bounds = tuple(sorted(by_bound))
    counts = tuple(
        math.fsum(value for values in _distinct(by_bound[b]).values() for value in values)
        for b in bounds
    )
    return Histogram(bounds, counts, total)


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) or bound == -math.inf else bound
