"""The JSON document of a run and its partitions; pure."""

from kvctl.core.documents.figures import Document, figures_document
from kvctl.core.domain.runs.run import Partition, Run
from kvctl.core.domain.snapshot import Snapshot


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
