"""The JSON document of a server: its facts, its figures with their truth, its start; pure."""

from dataclasses import asdict

from kvctl.core.documents.figures import Document, figures_document
from kvctl.core.domain.figures import Figure
from kvctl.core.domain.servers.server import Decode, Failure, Server, Stage
from kvctl.core.domain.telemetry.agreement import Comparison


def server_document(server: Server, now: float) -> Document:
    """Return one server: what it is, how it was launched, how it decodes."""
    return {
        "name": server.name,
        "url": server.url,
        "state": server.state.value,
        "state_s": max(0.0, now - server.state_since),
        "state_reason": server.state_reason,
        "managed": server.is_managed,
        "owner": server.owner,
        "preset": server.preset,
        "model": server.model,
        "tp_size": server.tp_size,
        "dp_size": server.dp_size,
        "version": server.version,
        "pid": server.pid,
        "launched_wall": server.launched_wall,
        "ready_wall": server.ready_wall,
        "ready_after_s": server.ready_after_s,
        "log": server.log_path,
        "last_log_line": server.last_log_line,
        "errors_in_log": server.errors_in_log,
        "available_gpu_memory_gb": server.available_gpu_memory_gb,
        "live_cap": server.live_cap,
        **_decode(server.decode, server.foreign_requests, now),
        "flags": [asdict(flag) for flag in server.flags],
        "effective_flags": [asdict(flag) for flag in server.effective],
        "defaults_known": server.are_defaults_known,
        "stages": [_stage(stage, now) for stage in server.stages],
        "failure": None if server.failure is None else _failure(server.failure),
    }


def _decode(decode: Decode, foreign: Figure, now: float) -> Document:
    return {
        **figures_document(
            now,
            running=decode.running,
            queued=decode.queued,
            token_usage=decode.token_usage,
            used_tokens=decode.used_tokens,
            pool_tokens=decode.pool_tokens,
            max_running=decode.max_running,
            generation_tokens_per_s=decode.generation_tokens_per_s,
            effective_tokens_per_s=decode.effective_tokens_per_s,
            prefill_tokens_per_s=decode.prefill_tokens_per_s,
            retracted_per_min=decode.retracted_per_min,
            retracted_total=decode.retracted_total,
            recomputed_tokens_per_min=decode.recomputed_tokens_per_min,
            cache_hit_ratio=decode.cache_hit_ratio,
            accept_length=decode.accept_length,
            completed_per_s=decode.completed_per_s,
            prefill_share=decode.prefill_share,
            request_tokens_per_s=decode.request_tokens_per_s,
            ttft_p50_s=decode.ttft_p50_s,
            ttft_p99_s=decode.ttft_p99_s,
            itl_p50_s=decode.itl_p50_s,
            itl_p99_s=decode.itl_p99_s,
            e2e_p50_s=decode.e2e_p50_s,
            e2e_p99_s=decode.e2e_p99_s,
            queue_wait_s=decode.queue_wait_s,
            answer_s=decode.answer_s,
            foreign_requests=foreign,
        ),
        "effective_window_s": decode.effective_window_s,
        "completed_in_window": decode.completed_in_window,
        "worst_pool": decode.worst_pool,
        "worst_rank": decode.worst_rank,
        "steady": decode.steady_since is not None,
        "steady_s": None if decode.steady_since is None else max(0.0, now - decode.steady_since),
        "frozen": decode.is_frozen,
        "imbalance": decode.imbalance,
        "log_lines": decode.log_lines,
        "unrecognised_lines": decode.unrecognised_lines,
        "bad_metric_lines": decode.bad_metric_lines,
        "sources": [_comparison(comparison, now) for comparison in decode.sources],
    }


def _comparison(comparison: Comparison, now: float) -> Document:
    """Return what each source says of a figure, the one that is shown first."""
    return {
        "figure": comparison.figure,
        "problem": comparison.problem,
        "told": [
            {
                "source": told.source,
                "value": told.value,
                "age_s": max(0.0, now - told.at),
                "over": told.over,
            }
            for told in comparison.told
        ],
    }


def _stage(stage: Stage, now: float) -> Document:
    end = now if stage.ended_at is None else stage.ended_at
    return {
        "name": stage.name,
        "state": stage.state.value,
        "detail": stage.detail,
        "took_s": None if stage.started_at is None else max(0.0, end - stage.started_at),
        "progress_ratio": stage.progress_ratio,
    }


def _failure(failure: Failure) -> Document:
    return {
        "headline": failure.headline,
        "advice": list(failure.advice),
        "evidence": list(failure.evidence),
        "stage": failure.stage,
        "after_s": failure.after_s,
    }
