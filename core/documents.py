"""The JSON documents that scripts rely on, made from a Snapshot; pure.

Figures are flat (`name_unit`: number or null); beside them `figures` maps each name to its source,
age_s and, where it is null, the reason. Keys are only ever added, never renamed or removed.
"""

from collections.abc import Sequence
from dataclasses import asdict

from kvctl.core.document_figures import Document, figures_document
from kvctl.core.domain.events import Event
from kvctl.core.domain.figures import Figure
from kvctl.core.domain.runs.run import Partition, Run
from kvctl.core.domain.servers.server import Decode, Failure, Server, Stage
from kvctl.core.domain.snapshot import OperatingPoint, PresetSummary, Snapshot
from kvctl.core.domain.telemetry.agreement import Comparison
from kvctl.core.domain.verdict import Verdict
from kvctl.core.gpu_documents import gpus_document

_EVENTS_SHOWN = 20


def status_document(snapshot: Snapshot) -> Document:
    """Return everything: `kvctl status --json`, and each line of `kvctl watch --json`."""
    return {
        "wall": snapshot.wall,
        "host": snapshot.host,
        "version": snapshot.version,
        "simulated": snapshot.is_simulated,
        "busy": snapshot.busy_command,
        "operators": list(snapshot.operators),
        "verdict": _verdict(snapshot.verdicts[0]) if snapshot.verdicts else None,
        "verdicts": [_verdict(verdict) for verdict in snapshot.verdicts],
        "servers": [server_document(server, snapshot.at) for server in snapshot.servers],
        "run": run_document(snapshot),
        "gpus": gpus_document(snapshot),
        "presets": [_preset(preset) for preset in snapshot.presets],
        "operating_points": operating_points(snapshot.operating_points),
        "events": [event_document(event) for event in snapshot.events[-_EVENTS_SHOWN:]],
    }


def run_document(snapshot: Snapshot) -> Document:
    """Return the run and its partitions: `kvctl run status --json`; state "none" without one."""
    run = snapshot.run
    if run is None:
        return {"state": "none", "target": None, "in_flight": None, "partitions": []}
    return {
        **_run_facts(run, snapshot.at),
        **_counts(run),
        **figures_document(
            snapshot.at,
            effective_tokens_per_s=run.effective_tokens_per_s,
            completed_per_s=run.completed_per_s,
        ),
        "effective_window_s": run.effective_window_s,
        "completed_in_window": run.completed_in_window,
        "partitions": [_partition(partition, snapshot.at) for partition in run.partitions],
    }


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


def operating_points(points: Sequence[OperatingPoint]) -> list[Document]:
    """Return measured operating points: the end of `kvctl demo --headless --json`."""
    return [asdict(point) for point in points]


def event_document(event: Event) -> Document:
    """Return one event."""
    return {"wall": event.wall, "kind": event.kind, "text": event.text, "command": event.command}


def _run_facts(run: Run, now: float) -> Document:
    return {
        "name": run.name,
        "file": run.path,
        "output": run.output,
        "servers": list(run.servers),
        "state": run.state.value,
        "state_s": max(0.0, now - run.state_since),
        "reason": run.reason,
        "mode": "auto" if run.is_auto else "manual",
        "target": run.target,
        "held": run.is_held,
        "auto_target": run.auto_target,
        "in_flight": run.in_flight,
        "on_ceiling": run.policy.value,
        "pause_above": run.pause_above,
        "resume_below": run.resume_below,
        "fit_at_mean": run.fit_at_mean,
        "held_tokens_mean": run.held_tokens_mean,
        "mean_answer_s": run.mean_answer_s,
    }


def _counts(run: Run) -> Document:
    return {
        "total": run.total,
        "done": run.done,
        "failed": run.failed,
        "skipped": run.skipped,
        "tokens": run.tokens,
        "partials": run.partials,
        "partial_tokens": run.partial_tokens,
        "duplicates": run.duplicates,
        "disk_free_bytes": run.disk_free_bytes,
        "remaining_s": run.remaining_s,
        "remaining_low_s": run.remaining_low_s,
        "remaining_high_s": run.remaining_high_s,
        "remaining_reason": run.remaining_reason,
        "done_wall": run.done_wall,
    }


def _partition(partition: Partition, now: float) -> Document:
    return {
        "name": partition.name,
        "state": partition.state.value,
        "total": partition.total,
        "done": partition.done,
        "failed": partition.failed,
        "skipped": partition.skipped,
        "in_flight": partition.in_flight,
        "retrying": partition.retrying,
        "tokens": partition.tokens,
        "mean_tokens": partition.mean_tokens,
        "p95_tokens": partition.p95_tokens,
        "length_capped": partition.length_capped,
        "weight": partition.weight,
        "max_new_tokens": partition.max_new_tokens,
        "remaining_s": partition.remaining_s,
        "estimate_rough": partition.is_estimate_rough,
        **figures_document(now, effective_tokens_per_s=partition.effective_tokens_per_s),
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


def _verdict(verdict: Verdict) -> Document:
    return {
        "word": verdict.word.value,
        "sentence": verdict.sentence,
        "lever": verdict.lever,
        "why": [asdict(why) for why in verdict.why],
    }


def _preset(preset: PresetSummary) -> Document:
    return {
        "name": preset.name,
        "description": preset.description,
        "running": preset.is_running,
        "refused": preset.refused,
        "problem": preset.problem,
        "needs": list(preset.needs),
        "pool_tokens": preset.pool_tokens,
        "generation_tokens_per_s": preset.generation_tokens_per_s,
        "effective_tokens_per_s": preset.effective_tokens_per_s,
    }
