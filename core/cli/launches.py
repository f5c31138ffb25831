"""`kvctl launches`: every launch of the ledger, predicted beside measured; without kvctld."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvctl.core.cli.lines import UNKNOWN, one_line, table
from kvctl.core.cli.render import past_line
from kvctl.core.cli.session import Session
from kvctl.core.controller.history_spans import spans
from kvctl.core.domain.errors import UsageError
from kvctl.core.domain.launches.launch import LaunchRecord, best_points, find_launches
from kvctl.core.domain.launches.operating_point import OperatingPoint
from kvctl.core.domain.presets.serving_flags import ServingFlags
from kvctl.core.domain.units import day_time, duration, gib, kilo_tokens, thousands
from kvctl.core.servers.ledger import Ledger

_SHOWN = 20
_SPANS = 12
"""Rows of a launch's history."""
POINT_COLUMNS = (
    "launch", "KV dtype", "fraction", "hicache", "pool", "part", "running/queued", "usage",
    "gen tok/s", "eff tok/s", "completions", "window", "",
)  # fmt: skip


def launches(session: Session) -> int:
    """Print the launches, the newest last; one of them, named by its id, in full."""
    ledger = Ledger(session.paths.state / "launches.jsonl")
    wanted: str | None = session.words.launch
    found = find_launches(ledger.records(), wanted)
    if wanted is not None and not found:
        raise UsageError(f"no launch and no preset {wanted!r} in the ledger; kvctl launches lists")
    if session.wants_json():
        session.document({"launches": [launch_document(launch) for launch in found]})
        return 0
    is_one = wanted is not None and found[0].id == wanted
    for line in _whole(found[0], session.paths.state) if is_one else _lines(found, ledger.path):
        session.say(line)
    return 0


def launch_document(launch: LaunchRecord) -> dict[str, Any]:
    """Return one launch with everything that is known of it."""
    predicted = launch.predicted
    return {
        **{name: value for name, value in asdict(launch).items() if name not in _OWN_SHAPE},
        "env": dict(launch.env),
        "flags": dict(launch.flags),
        "stages_s": dict(launch.stages),
        "gpu_bytes": dict(launch.gpus),
        "predicted_tokens": None if predicted is None else asdict(predicted),
        "prediction_error": launch.prediction_error,
        "operating_points": [asdict(point) for point in launch.points],
        "quoted_points": [asdict(point) for point in best_points(launch)],
    }


_OWN_SHAPE = ("env", "flags", "stages", "gpus", "predicted", "points")


def _lines(found: Sequence[LaunchRecord], ledger: Path) -> Iterator[str]:
    if not found:
        yield f"no launch yet in {ledger}; `kvctl server start PRESET` makes the first"
        return
    shown = found[-_SHOWN:]
    if len(shown) < len(found):
        yield f"the newest {len(shown)} of {len(found)}; --json has all"
    head = ("launch", "preset", "started", "ready after", "predicted", "pool", "free GB", "ended")
    now = max(launch.ended_wall or launch.wall for launch in shown)
    yield from table(head, [_row(launch, now) for launch in shown])
    points = [(launch, point) for launch in shown for point in best_points(launch)]
    if points:
        yield ""
        yield "operating points: the longest steady window of each launch and partition"
        yield from table(POINT_COLUMNS, [point_row(launch, point) for launch, point in points])


def _row(launch: LaunchRecord, now: float) -> tuple[str, ...]:
    free = launch.free_gpu_memory_gb
    return (
        one_line(launch.id),
        one_line(launch.preset),
        day_time(launch.wall, now),
        duration(launch.ready_after_s),
        _predicted(launch),
        thousands(launch.pool_tokens),
        UNKNOWN if free is None else f"{free:.2f}",
        one_line(_end(launch, now), 60),
    )


def _predicted(launch: LaunchRecord) -> str:
    """Return the expected pool, its interval, and how far it was off once that is known."""
    if launch.predicted is None:
        return UNKNOWN
    ratio, error = launch.predicted.error_ratio, launch.prediction_error
    within = f" ±{ratio:.1%}" if ratio is not None and ratio >= 0.001 else ""
    off = f", off {error:+.2%}" if error is not None else ""
    return f"{thousands(launch.predicted.expected)}{within}{off}"


def _end(launch: LaunchRecord, now: float) -> str:
    if launch.ended_wall is None:
        return "" if launch.was_ready else "not ready"
    code = "" if launch.exit_code is None else f", exit {launch.exit_code}"
    return f"{day_time(launch.ended_wall, now)} {launch.cause or ''}{code}"


def point_row(launch: LaunchRecord, point: OperatingPoint) -> tuple[str, ...]:
    """Return one line of the mission's table, by `POINT_COLUMNS`."""
    flags = launch.serving
    fraction = flags.mem_fraction
    return (
        one_line(launch.preset),
        flags.kv_dtype if launch.flags else UNKNOWN,
        UNKNOWN if fraction is None else f"{fraction:g}",
        _hicache(flags),
        kilo_tokens(launch.pool_tokens),
        one_line(point.partition),
        f"{thousands(point.running)} / {thousands(point.queued)}",
        UNKNOWN if point.token_usage is None else f"{point.token_usage:.2f}",
        thousands(point.generation_tokens_per_s),
        thousands(point.effective_tokens_per_s),
        _completions(point),
        duration(point.window_s),
        "steady" if point.steady else "not steady",
    )


def _hicache(flags: ServingFlags) -> str:
    if flags.hicache_gb:
        return f"{flags.hicache_gb:g} GB a rank"
    return "on" if flags.has_hicache else ""


def _completions(point: OperatingPoint) -> str:
    if point.completed is None or point.completed_per_s is None:
        return UNKNOWN
    return f"{thousands(point.completed)}, {point.completed_per_s:.3f}/s"


def _whole(launch: LaunchRecord, state: Path) -> Iterator[str]:
    """Yield one launch in full."""
    yield one_line(f"{launch.id}  preset {launch.preset}  {launch.url}  sglang {launch.version}")
    now = launch.ended_wall or launch.wall
    yield one_line(f"  started     {day_time(launch.wall, now)}, pid {launch.pid}")
    yield one_line(f"  ended       {_end(launch, now) or 'it has not'}")
    yield one_line(f"  log         {launch.log_path}")
    yield "  argv        " + one_line(shlex.join(launch.argv), 4000)
    for name, value in launch.env:
        yield one_line(f"  env         {name}={value}", 1000)
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in launch.stages)
    yield one_line(f"  ready after {duration(launch.ready_after_s)}{f': {took}' if took else ''}")
    by = launch.predicted_by or "assumptions alone"
    because = "" if launch.predicted is None else f"  (by {by})"
    yield one_line(f"  predicted   {_predicted(launch)}{because}")
    yield f"  pool        {thousands(launch.pool_tokens)} tokens, max running {_max(launch)}"
    free = launch.free_gpu_memory_gb
    yield f"  free        {UNKNOWN if free is None else f'{free:.2f} GB a GPU after graphs'}"
    held = ", ".join(f"GPU {index} {gib(size)}" for index, size in launch.gpus)
    yield one_line(f"  held        {held or UNKNOWN}")
    if launch.points:
        yield ""
        yield from table(POINT_COLUMNS, [point_row(launch, point) for point in launch.points])
    end = launch.ended_wall or math.inf
    rows = list(spans(state, launch.server, launch.wall, end, _SPANS)) if launch.server else []
    if rows:
        yield ""
        yield "what the history keeps of it (two days), means"
        yield from (f"  {past_line(row.wall, row.values)}" for row in rows)


def _max(launch: LaunchRecord) -> str:
    return thousands(launch.max_running)
