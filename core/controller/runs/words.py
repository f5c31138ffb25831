"""What the run desk says: a run of which only the file is known, and what a harvest kept."""

from pathlib import Path

from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.domain.units import thousands
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.sending.harvest import HarvestReport


def waiting_run(path: str, state: RunState, reason: str, now: float) -> Run:
    """Return a run of which only the file is known yet."""
    return Run(_name_in(path), path, "", state, now, reason)


def _name_in(path: str) -> str:
    try:
        return load_run(path).name
    except KvctlError:
        return Path(path).stem  # why it cannot be read is told when it is taken up


def told_harvest(report: HarvestReport | None) -> str:
    """Return what a harvest kept and lost, in one line."""
    if report is None:
        return "nothing was in flight"
    parts = [f"{report.kept} partials, {thousands(report.kept_tokens)} tokens on disk"]
    if report.queued:
        parts.append(f"{report.queued} queued given back")
    if report.finished:
        parts.append(f"{report.finished} ended by themselves")
    if report.restarted:
        lost = f"{thousands(report.dropped_tokens)} tokens thrown away"
        parts.append(f"{report.restarted} start again ({lost}: {', '.join(report.reasons)})")
    if report.unanswered:
        parts.append(f"{report.unanswered} not given back in time, start again")
    return "; ".join(parts)
