"""What the preflight of a preset says, as the restart dialog and `--json` read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvctl.core.controller.commands import Outcome
from kvctl.core.controller.sequences.launching import Prepared
from kvctl.core.domain.capacity.fit import fit, whole_fit
from kvctl.core.domain.errors import CommandRefused
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.servers.server import LaunchFlag
from kvctl.core.domain.units import clock_time, duration, kilo_tokens
from kvctl.core.servers.ledger import Ledger
from kvctl.core.servers.preflight.types import Check

STOP_GUESS_S = 30.0
"""Stop and proof of clean GPUs, where no launch has told better."""
USUAL_USAGE = 0.93
"""Token usage of a full pool in steady decoding."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a restart would replace."""

    flags: tuple[LaunchFlag, ...]
    """Of the running launch; empty where nothing runs."""
    pool_tokens: int | None
    """Of the running launch."""
    run: Run | None
    is_running: bool
    wall: float
    """UTC seconds now."""


def outcome_of(prepared: Prepared, situation: Situation, ledger: Ledger) -> Outcome:
    """Return every check as lines and as a document."""
    failed = [line for line in prepared.lines if line.ok is Check.FAIL]
    said = f"{len(failed)} of {len(prepared.lines)} checks failed" if failed else "may start"
    return Outcome(
        CommandRefused.exit_status if failed else 0,
        f"preset {prepared.preset.name}: {said}",
        tuple(f"{line.ok.value}: {line.name}: {line.text}" for line in prepared.lines),
        _document(prepared, situation, ledger),
    )


def _document(prepared: Prepared, situation: Situation, ledger: Ledger) -> dict[str, object]:
    diff, same = _flag_diff(situation.flags, prepared.plan.flags)
    last = ledger.last_of(prepared.preset.name)
    pool = last.pool_tokens if last is not None else None
    return {
        "preset": prepared.preset.name,
        "may_start": prepared.may_start,
        "lines": [
            {"ok": line.ok.value, "name": line.name, "text": line.text} for line in prepared.lines
        ],
        "argv": list(prepared.plan.shown_argv),
        "url": prepared.plan.url,
        "diff": diff,
        "same": same,
        "pool_tokens": pool,
        "brings": _brings(situation, pool),
        "time": _time(ledger.start_durations_s(prepared.preset.name), situation),
    }


def _flag_diff(
    before: Sequence[LaunchFlag], after: Sequence[LaunchFlag]
) -> tuple[list[dict[str, str]], int]:
    """Return what changes against the running launch, and how many settings stay."""
    old = {flag.name: flag for flag in before if flag.origin != "resolved"}
    new = {flag.name: flag for flag in after}
    names = dict.fromkeys((*new, *old))
    changed = [name for name in names if _value(old, name) != _value(new, name)]
    rows = [
        {
            "flag": name,
            "now": _value(old, name),
            "after": _value(new, name),
            "kind": "env" if (new.get(name) or old[name]).origin in ("env", "kvctl") else "flag",
        }
        for name in changed
    ]
    return rows, len(names) - len(changed)


def _value(flags: Mapping[str, LaunchFlag], name: str) -> str:
    return flags[name].value if name in flags else "–"


def _brings(situation: Situation, pool: int | None) -> list[str]:
    """Return what another pool size would decode at once, for the lengths seen so far."""
    run, now = situation.run, situation.pool_tokens
    if run is None or pool is None or not now or pool == now:
        return []
    parts = [
        f"{part.name} at {kilo_tokens(part.mean_tokens)}"
        f"  ~{whole_fit(now, part.mean_tokens)} → ~{whole_fit(pool, part.mean_tokens)}"
        for part in run.partitions
        if part.mean_tokens and part.done < part.total
    ]
    lines = [f"answers that fit whole   {'     '.join(parts[:3])}"] if parts else []
    held = run.held_tokens_mean
    before, after = fit(now, held, USUAL_USAGE), fit(pool, held, USUAL_USAGE)
    if before and after:
        lines.insert(0, f"decodes at once   ~{before:.0f} → ~{after:.0f} at the lengths of now")
    return lines


def _time(starts: Sequence[float], situation: Situation) -> str:
    """Return how long it would take, from earlier launches of this preset on this host."""
    if not starts:
        return "this preset was never started here: no earlier launch tells how long it takes"
    typical = sorted(starts)[len(starts) // 2]
    total = typical + (STOP_GUESS_S if situation.is_running else 0.0)
    count = f"{len(starts)} earlier launch{'es' if len(starts) > 1 else ''}"
    again = clock_time(situation.wall + total)
    return f"start ~{duration(typical)} (from {count}), decoding again ~{again}"
