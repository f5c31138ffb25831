"""The JSON documents that scripts rely on, made from a Snapshot; pure.

Figures are flat (`name_unit`: number or null); beside them `figures` maps each name to its source,
age_s and, where it is null, the reason. Keys are only ever added, never renamed or removed.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvctl.core.domain.events import Event
from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus import GpuDevice, Holder
from kvctl.core.domain.run import Partition, Run
from kvctl.core.domain.server import Decode, Failure, Server, Stage
from kvctl.core.domain.snapshot import OperatingPoint, PresetSummary, Snapshot
from kvctl.core.domain.verdict import Verdict

Document = dict[str, Any]

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


def gpus_document(snapshot: Snapshot) -> Document:
    """Return devices, their processes and what each is: `kvctl gpus --json`."""
    view, now = snapshot.gpus, snapshot.at
    return {
        "problem": view.problem,
        "driver": view.driver,
        "age_s": None if view.at is None else max(0.0, now - view.at),
        "simulated": snapshot.is_simulated,
        "devices": [
            _device(d, [h for h in view.holders if h.gpu_uuid == d.uuid], now) for d in view.devices
        ],
    }


def run_document(snapshot: Snapshot) -> Document:
    """Return the run and its partitions: `kvctl run status --json`; state "none" without one."""
    run = snapshot.run
    if run is None:
        return {"state": "none", "target": None, "in_flight": None, "partitions": []}
    return {
        **_run_facts(run, snapshot.at),
        **_counts(run),
        **_figures(snapshot.at, effective_tokens_per_s=run.effective_tokens_per_s),
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
        "stages": [_stage(stage, now) for stage in server.stages],
        "failure": None if server.failure is None else _failure(server.failure),
    }


def operating_points(points: Sequence[OperatingPoint]) -> list[Document]:
    """Return measured operating points: the end of `kvctl demo --headless --json`."""
    return [asdict(point) for point in points]


def event_document(event: Event) -> Document:
    """Return one event."""
    return {"wall": event.wall, "kind": event.kind, "text": event.text, "command": event.command}


def _figures(now: float, **figures: Figure) -> Document:
    values: Document = {name: figure.value for name, figure in figures.items()}
    return {**values, "figures": {name: _truth(figure, now) for name, figure in figures.items()}}


def _truth(figure: Figure, now: float) -> Document:
    truth: Document = {"source": figure.source, "age_s": figure.age_s(now)}
    return truth if figure.known else {**truth, "reason": figure.reason}


def _device(device: GpuDevice, holders: Sequence[Holder], now: float) -> Document:
    return {
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "bus_id": device.bus_id,
        "problem": device.problem,
        "unified": device.is_unified,
        "mig": device.is_mig,
        "throttle_reasons": list(device.throttle_reasons),
        **_figures(
            now,
            memory_used_bytes=device.memory_used_bytes,
            memory_total_bytes=device.memory_total_bytes,
            utilisation_ratio=device.utilisation_ratio,
            temperature_c=device.temperature_c,
            power_w=device.power_w,
            power_limit_w=device.power_limit_w,
            sm_clock_mhz=device.sm_clock_mhz,
        ),
        "processes_problem": device.processes_problem,
        "processes": [_holder(holder) for holder in holders],
    }


def _holder(holder: Holder) -> Document:
    return {
        "pid": holder.pid,
        "memory_bytes": holder.memory_bytes,
        "kind": holder.kind.value,
        "evidence": holder.evidence,
        "title": holder.title,
        "user": holder.user,
        "parent_pid": holder.parent_pid,
        "owner": holder.owner,
        "server": holder.server,
        "rank": holder.rank,
        "mine": holder.is_mine,
    }


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
        **_figures(now, effective_tokens_per_s=partition.effective_tokens_per_s),
    }


def _decode(decode: Decode, foreign: Figure, now: float) -> Document:
    return {
        **_figures(
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
        "pool_tokens": preset.pool_tokens,
        "generation_tokens_per_s": preset.generation_tokens_per_s,
        "effective_tokens_per_s": preset.effective_tokens_per_s,
    }
