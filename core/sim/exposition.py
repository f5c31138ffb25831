"""/metrics of the simulated server: SGLang 0.5.23's names, labels and meanings.

While paused with mode in_place the gauges stand still; with retract nothing runs and everything
waits. A counter of retractions is absent until the first one.

Source: SGLang 0.5.23 observability/metrics_collector.py, names seen on a real server.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvctl.core.sim.engine import Engine
from kvctl.core.sim.replies import PHASES, Front

ZERO_GAUGES = (
    *("num_grammar_queue_reqs", "cache_hit_rate", "swa_token_usage", "mamba_usage"),
    *("kv_evictable_tokens", "swa_available_tokens", "swa_evictable_tokens", "swa_used_tokens"),
    *("mamba_available_tokens", "mamba_evictable_tokens", "mamba_used_tokens"),
    *("spec_accept_length", "spec_accept_rate", "spec_cap_length", "spec_block_accept_length"),
    *("spec_num_steps", "spec_num_draft_tokens", "num_prefill_bootstrap_queue_reqs"),
    *("num_prefill_inflight_queue_reqs", "num_decode_prealloc_queue_reqs"),
    *("num_decode_transfer_queue_reqs", "num_decode_host_receive_queue_reqs"),
    *("num_decode_deferred_kv_release_reqs", "pending_prealloc_token_usage"),
    *("prealloc_full_token_usage", "prealloc_swa_token_usage", "utilization"),
    *("num_unique_running_routing_keys", "num_paused_reqs", "num_retracted_reqs"),
)
RANK_HISTOGRAMS = ("queue_time_seconds",)
"""Histograms of the scheduler; the others are the front end's."""
LATENCY_BOUNDS = (0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0)


@dataclass(slots=True)
class Latencies:
    """A histogram of seconds, as Prometheus counts it."""

    counts: list[int]
    total: float = 0.0

    @classmethod
    def empty(cls) -> "Latencies":
        """Return a histogram that has seen nothing."""
        return cls([0] * (len(LATENCY_BOUNDS) + 1))

    def add(self, seconds: float) -> None:
        """Count one observation."""
        at = sum(1 for bound in LATENCY_BOUNDS if seconds > bound)
        self.counts[at] += 1
        self.total += seconds


def metrics_text(front: Front, latencies: dict[str, Latencies]) -> str:
    """Return the whole exposition."""
    name = front.arguments.text("served_model_name").replace("\\", "\\\\").replace('"', '\\"')
    model = f'engine_type="unified",model_name="{name}"'
    names = _rank_labels(front, model)
    rank = names[0]
    lines: list[str] = []
    for metric, series in _of_ranks(front, names).items():
        lines += _series(metric, "gauge", series)
    graphs = [pair for name in names for pair in _by_phase(front, name)]
    lines += _series("graph_memory_usage_gb", "gauge", graphs)
    for metric, series in _counters(front, names, model).items():
        lines += _series(metric, "counter", series)
    for metric, kind, series in _http(front):
        lines += _series(metric, kind, series)
    for metric, latency in latencies.items():
        labels = rank if metric in RANK_HISTOGRAMS else f'{model},is_streaming="false"'
        lines += _histogram(metric, labels, latency)
    return "\n".join(lines) + "\n"


def _rank_labels(front: Front, model: str) -> list[str]:
    """Return the labels of each exporting rank; dp_rank stands there only where DP is used."""
    ranks = len(front.engine.ranks)
    step = max(1, front.ranks // ranks)
    return [
        (f'dp_rank="{dp}",' if ranks > 1 else "")
        + f'{model},moe_ep_rank="0",pp_rank="0",tp_rank="{dp * step}"'
        for dp in range(ranks)
    ]


def _of_ranks(front: Front, names: list[str]) -> dict[str, list[tuple[str, float]]]:
    found: dict[str, list[tuple[str, float]]] = {}
    for name, engine in zip(names, front.engine.ranks, strict=True):
        for metric, value in _gauges(front, engine).items():
            found.setdefault(metric, []).append((name, value))
    return found


def _gauges(front: Front, engine: Engine) -> dict[str, float]:
    loads, pool = engine.loads, engine.pool
    retracted = engine.paused_mode == "retract"
    running = 0 if retracted else loads.running
    queued = len(pool.queue) if retracted else loads.queued
    used = 0 if retracted else loads.used_tokens
    capacity = engine.limits.capacity_tokens
    return {
        **dict.fromkeys(ZERO_GAUGES, 0.0),
        "num_running_reqs": running,
        "num_queue_reqs": queued,
        "gen_throughput": 0.0 if retracted else loads.gen_tokens_per_s,
        "decode_sum_seq_lens": used,
        "token_usage": round(used / capacity, 2),
        "full_token_usage": used / capacity,
        "num_used_tokens": used,
        "kv_available_tokens": capacity - used,
        "kv_used_tokens": used,
        "new_token_ratio": pool.new_token_ratio,
        "is_cuda_graph": 1.0 if running else 0.0,
        "fwd_occupancy": 1.0 if running else float("nan"),
        "max_total_num_tokens": capacity,
        "page_size": 1,
        "num_pages": capacity,
        "context_len": front.context_tokens,
        "weight_memory_usage_gb": front.memory.weights,
        "kv_cache_memory_usage_gb": front.memory.kv_cache,
        "startup_available_gpu_memory_gb": front.memory.after_graphs,
    }


def _by_phase(front: Front, rank: str) -> list[tuple[str, float]]:
    half = front.memory.graphs / 2
    shares = {"prefill": half, "decode": half}
    return [(f'{rank},phase="{phase}"', shares.get(phase, 0.0)) for phase in PHASES]


def _counters(front: Front, names: list[str], model: str) -> dict[str, list[tuple[str, float]]]:
    totals = [engine.pool.totals for engine in front.engine.ranks]
    plain = f'{model},is_streaming="false"'
    ended = [t.finished_requests + t.aborted_requests for t in totals]
    counters: dict[str, list[tuple[str, float]]] = {
        "realtime_tokens_total": [
            (f'{name},mode="{mode}"', value)
            for name, t in zip(names, totals, strict=True)
            for mode, value in (
                ("prefill_compute", t.prefill_tokens),
                ("decode", t.decode_tokens),
                ("prefill_cache", 0),
            )
        ],
        "cuda_graph_passes_total": [
            (f'{name},mode="decode_full"', t.decode_steps)
            for name, t in zip(names, totals, strict=True)
        ],
        "scheduler_idle_seconds_total": [
            (name, t.idle_s) for name, t in zip(names, totals, strict=True)
        ],
        "prompt_tokens_total": [(plain, sum(t.finished_prompt_tokens for t in totals))],
        "generation_tokens_total": [(plain, sum(t.finished_output_tokens for t in totals))],
        "num_requests_total": [(plain, sum(ended))],
        "cached_tokens_total": [(f'{model},cache_source="device"', 0)],
    }
    if aborted := sum(t.aborted_requests for t in totals):
        counters["num_aborted_requests_total"] = [(model, aborted)]
    for name, t in zip(names, totals, strict=True):
        if t.retracted_requests:  # a labelled counter has no series before its first increment
            for metric, value in (
                ("num_retracted_requests_total", t.retracted_requests),
                ("num_retracted_input_tokens_total", t.retracted_input_tokens),
                ("num_retracted_output_tokens_total", t.retracted_output_tokens),
            ):
                counters.setdefault(metric, []).append((name, value))
    return counters


def _http(front: Front) -> Iterator[tuple[str, str, list[tuple[str, float]]]]:
    """Yield what the front end counts of HTTP; only endpoints that were called have series."""
    taken = {(path, method): count for (path, method), count in front.requests.items()}
    answered = dict.fromkeys(taken, 0)
    for (path, method, _), count in front.responses.items():
        answered[path, method] += count
    labels = {key: f'endpoint="{key[0]}",method="{key[1]}"' for key in taken}
    active = [(labels[key], float(taken[key] - answered[key])) for key in taken]
    yield "http_requests_active", "gauge", active
    yield "http_requests_total", "counter", [(labels[key], taken[key]) for key in taken]
    responses: list[tuple[str, float]] = [
        (f'{labels[path, method]},status_code="{status}"', count)
        for (path, method, status), count in front.responses.items()
    ]
    yield "http_responses_total", "counter", responses


def _series(metric: str, kind: str, series: list[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP sglang:{metric} {metric.replace('_', ' ')} (simulated)."
    yield f"# TYPE sglang:{metric} {kind}"
    for labels, value in series:
        yield f"sglang:{metric}{{{labels}}} {_number(value)}"


def _histogram(metric: str, labels: str, latencies: Latencies) -> Iterator[str]:
    yield f"# HELP sglang:{metric} {metric.replace('_', ' ')} (simulated)."
    yield f"# TYPE sglang:{metric} histogram"
    count = 0
    bounds = [*(str(bound) for bound in LATENCY_BOUNDS), "+Inf"]
    for bound, more in zip(bounds, latencies.counts, strict=True):
        count += more
        yield f'sglang:{metric}_bucket{{{labels},le="{bound}"}} {count}.0'
    yield f"sglang:{metric}_count{{{labels}}} {count}.0"
    yield f"sglang:{metric}_sum{{{labels}}} {latencies.total!r}"


def _number(value: float) -> str:
    return "NaN" if value != value else repr(float(value))
