"""The JSON bodies of the simulated server, with the keys that SGLang 0.5.23 answers.

Source: SGLang 0.5.23 entrypoints/http_server.py, v1_loads.py, managers/io_struct.py; every key
was seen in a real server's answer.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kvctl.core.sim.answers import EOS_ID, text_of_ids
from kvctl.core.sim.arguments import ServerArguments
from kvctl.core.sim.engine import Engine, EngineRequest, Outcome
from kvctl.core.sim.engines import Engines
from kvctl.core.sim.memory import RankMemory

VERSION = "0.5.23"
PHASES = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
ACCELERATOR = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
NO_DISAGGREGATION = (
    *("prefill_bootstrap_queue_reqs", "prefill_inflight_queue_reqs"),
    *("decode_prealloc_queue_reqs", "decode_transfer_queue_reqs", "decode_retracted_queue_reqs"),
    *("kv_transfer_speed_gb_s", "kv_transfer_latency_ms"),
)
HIDDEN_STATE = ("custom_sigquit_handler",)
"""Arguments that internal_states leaves out."""


@dataclass(frozen=True, slots=True)
class Front:
    """What the HTTP side of one server knows."""

    arguments: ServerArguments
    engine: Engines
    memory: RankMemory
    ranks: int
    context_tokens: int
    load_s: float
    """Seconds that loading took, for startup_time."""
    started_wall: float
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests taken, by path and method."""
    responses: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """Requests answered, by path, method and status."""

    @property
    def most_input_tokens(self) -> int:
        """Return max_req_input_len."""
        return min(self.context_tokens, self.engine.limits.capacity_tokens) - 6

    @property
    def has_metrics(self) -> bool:
        """Whether the server runs with --enable-metrics."""
        return bool(self.arguments.values["enable_metrics"])

    def wall_of(self, at: float) -> float:
        """Return UTC seconds of a moment of the engine's clock."""
        clock = self.engine.clock
        return clock.wall() + (at - clock.monotonic())


def finish_reason(outcome: Outcome) -> dict[str, object]:
    """Return finish_reason as SGLang words it."""
    match outcome.reason:
        case "stop":
            return {"type": "stop", "matched": EOS_ID}
        case "length":
            return {"type": "length", "length": outcome.output_tokens}
        case "aborted_in_queue":
            return {"type": "abort", "message": "Abort in waiting queue"}
        case "queue_full":
            message = "The request queue is full."
            return {"type": "abort", "status_code": 503, "message": message}
        case "out_of_memory":
            message = "Out of memory even after retracting all other requests in the decode batch."
            return {"type": "abort", "message": message, "status_code": 500, "err_type": None}
        case _:
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def generate_reply(front: Front, taken: EngineRequest, outcome: Outcome | None) -> dict[str, Any]:
    """Return the reply to one request, or a stream's chunk so far where `outcome` is None."""
    tokens = front.engine.output_tokens(taken) if outcome is None else outcome.output_tokens
    ids = taken.answer.output_ids(tokens)
    reply: dict[str, Any] = {"text": text_of_ids(ids), "output_ids": ids}
    if front.arguments.values["skip_tokenizer_init"]:
        del reply["text"]
    reply["meta_info"] = _meta_info(front, taken, outcome, tokens)
    return reply


def _meta_info(
    front: Front, taken: EngineRequest, outcome: Outcome | None, tokens: int
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": taken.rid,
        "finish_reason": None if outcome is None else finish_reason(outcome),
    }
    was_queued = outcome is not None and outcome.reason in ("aborted_in_queue", "queue_full")
    if not was_queued:
        meta["prompt_tokens"] = taken.request.prompt_tokens
    meta["weight_version"] = "default"
    if not was_queued:
        meta |= _progress_fields(front, taken)
    meta["completion_tokens"] = tokens
    if not was_queued:
        meta |= {"cached_tokens": 0, "cached_tokens_details": None, "dp_rank": None}
    if outcome is not None:
        meta |= _end_fields(front, taken, outcome, was_queued)
    return meta


def _progress_fields(front: Front, taken: EngineRequest) -> dict[str, Any]:
    request = taken.request
    fields: dict[str, Any] = {
        "num_retractions": request.retractions,
        "storage_prefetch_wait": 0.0,
        "storage_staging_wait": 0.0,
    }
    if front.has_metrics and request.admitted_at is not None:
        admitted = front.wall_of(request.admitted_at)
        prefill_s = request.prompt_tokens / front.engine.prefill_tokens_per_s
        fields |= {
            "forward_entry_time": admitted - prefill_s,
            "prefill_finished_time": admitted,
            "queue_time": max(0.0, request.admitted_at - prefill_s - request.arrived_at),
        }
    return fields | {"reasoning_tokens": 0}


def _end_fields(
    front: Front, taken: EngineRequest, outcome: Outcome, was_queued: bool
) -> dict[str, Any]:
    seconds = outcome.ended_at - taken.received_at
    tokens = outcome.output_tokens
    fields: dict[str, Any] = {
        "weight_versions": [{"version": "default", "start": 0, "end": tokens}],
        "e2e_latency": seconds,
    }
    admitted = taken.request.admitted_at
    if front.has_metrics and not was_queued and admitted is not None:
        received = front.wall_of(taken.received_at)
        decoding = max(1e-6, outcome.ended_at - admitted)
        fields |= {
            "request_received_ts": received,
            "first_token_latency": admitted - taken.received_at,
            "api_server_dispatch_finish_ts": received,
            "request_finished_ts": front.wall_of(outcome.ended_at),
            "decode_throughput": max(0, tokens - 1) / decoding,
        }
    if front.has_metrics:
        fields["response_sent_to_client_ts"] = front.wall_of(outcome.ended_at)
    return fields


def loads_reply(front: Front) -> dict[str, Any]:
    """Return /v1/loads; the inner figures stand still during a pause."""
    now = datetime.fromtimestamp(front.engine.clock.wall(), UTC)
    return {
        "timestamp": now.isoformat(timespec="microseconds"),
        "version": VERSION,
        "accelerator": ACCELERATOR,
        "num_accelerators": front.ranks,
        "loads": [_rank_load(front, *numbered) for numbered in enumerate(front.engine.ranks)],
    }


def _rank_load(front: Front, dp_rank: int, engine: Engine) -> dict[str, Any]:
    loads, limits, totals = engine.loads, engine.limits, engine.pool.totals
    shown = loads.gen_tokens_per_s if front.has_metrics else 0.0
    total = loads.used_tokens + loads.queued_tokens
    return {
        "timestamp": loads.taken_wall,
        "dp_rank": dp_rank,
        "num_running_reqs": loads.running,
        "num_waiting_reqs": loads.queued,
        "num_waiting_uncached_tokens": loads.queued_tokens,
        "num_used_tokens": loads.used_tokens,
        "num_total_tokens": total,
        "num_active_tokens": total,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": limits.capacity_tokens,
        "max_running_requests": limits.max_running,
        "token_usage": round(loads.usage, 4),
        "gen_throughput": round(shown, 2),
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": totals.prefill_tokens,
        "total_prefill_busy_us": int(totals.prefill_s * 1e6),
        "decode_moments": _decode_moments(engine),
        "memory": {
            "weight_gb": round(front.memory.weights, 3),
            "kv_cache_gb": round(front.memory.kv_cache, 3),
            "graph_gb": round(front.memory.graphs, 3),
            "token_capacity": limits.capacity_tokens,
        },
        "disaggregation": {"mode": "null"} | dict.fromkeys(NO_DISAGGREGATION, 0),
        "queues": {
            "waiting": loads.queued,
            "grammar": 0,
            "paused": 0,
            "retracted": 0,
            "prealloc_ready": 0,
        },
    }


def _decode_moments(engine: Engine) -> list[float]:
    """Return what looks like steps, sums of requests, µs, requests², requests µs, tokens."""
    totals = engine.pool.totals
    return [
        float(totals.decode_steps),
        float(totals.decode_tokens),
        round(totals.decode_s * 1e6),
        float(totals.decode_squares),
        round(totals.decode_request_s * 1e6),
        float(totals.decode_tokens),
    ]


def server_info_reply(front: Front) -> dict[str, Any]:
    """Return /server_info: every argument, the scheduler's start and its live state."""
    values = dict(front.arguments.values)
    startup = _startup_times(front)
    engine = front.engine
    return values | {
        "launch_command": " ".join(front.arguments.argv),
        "status": "ready",
        "max_total_num_tokens": engine.limits.capacity_tokens,
        "max_req_input_len": front.most_input_tokens,
        "startup_time": startup | {"tokenizer_e2e": front.load_s},
        "hicache_object_layout": _hicache_layout(bool(values["enable_hierarchical_cache"])),
        "kv_events": None,
        "internal_states": [_internal_state(front, rank, startup) for rank in engine.ranks],
        "version": VERSION,
        "frontend": "python",
    }


def _internal_state(front: Front, engine: Engine, startup: Mapping[str, Any]) -> dict[str, Any]:
    values = front.arguments.values
    state = {key: value for key, value in values.items() if key not in HIDDEN_STATE}
    return state | {
        "pp_max_micro_batch_size": engine.pool.live_cap,
        "world_size": front.ranks,
        "startup_time": startup,
        "effective_max_running_requests_per_dp": engine.limits.max_running,
        "last_gen_throughput": engine.pool.gen_tokens_per_s,
        "memory_usage": {
            "weight": round(front.memory.weights, 3),
            "kvcache": round(front.memory.kv_cache, 3),
            "startup_available": round(front.memory.after_graphs, 3),
            "token_capacity": engine.limits.capacity_tokens,
            "token_capacity_swa": None,
            "graph": _graphs(front),
        },
        "decode_cuda_graph_bs": [],
        "decode_cuda_graph_memory_gb": round(front.memory.graphs / 2, 3),
    }


def _hicache_layout(enabled: bool) -> dict[str, Any]:
    return {
        "enabled": enabled,
        "backend": None,
        "page_size": 1,
        "hicache_object_layout": {"pools": []},
        "reason": None if enabled else "Hierarchical cache is disabled",
    }


def _graphs(front: Front) -> dict[str, float]:
    graphs = dict.fromkeys(PHASES, 0.0)
    graphs["prefill"] = graphs["decode"] = round(front.memory.graphs / 2, 3)
    return graphs


def _startup_times(front: Front) -> dict[str, Any]:
    return {
        "load_weight": front.load_s * 0.4,
        "kv_cache_allocation": 1.0,
        "scheduler_e2e": front.load_s * 0.8,
        "cuda_graph": dict.fromkeys(PHASES, 0.0) | {"prefill": 5.0, "decode": 6.0},
    }


def model_info_reply(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return /model_info, which the front end answers alone."""
    return {
        "model_path": arguments["model_path"],
        "served_model_name": arguments["served_model_name"],
        "tokenizer_path": arguments["tokenizer_path"],
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": arguments["load_format"],
        "reasoning_parser": arguments["reasoning_parser"],
        "tool_call_parser": arguments["tool_call_parser"],
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "kimi_k25",
        "architectures": ["KimiK25ForConditionalGeneration"],
    }
