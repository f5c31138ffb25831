"""Predicted against real KV pools, over every recorded start of a real SGLang server.

    python -m tests.benchmarks.capacity        # prints the tables of results/capacity.md

A start is predicted twice: from assumptions alone (config.json, flags, memory), and from one other
start of the same model. On a CPU the free memory is what the start itself logged before it loaded
(SGLang's own processes added): other processes of the host move it between any two moments, and
`host` shows what the memory read just before the start would have predicted instead. What they move
while a start loads goes into its pool byte for byte, so a start is compared only where the host
stood still: free memory fell by what the dummy weights take, and what the start before it had
freed was back (`is_quiet`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kvctl.core.domain.capacity.calibration import (
    Calibration,
    ObservedLaunch,
    calibrate,
    is_capped,
    observed_launch,
)
from kvctl.core.domain.capacity.free_memory import GpuRoom
from kvctl.core.domain.capacity.kv_cell import kv_cell
from kvctl.core.domain.capacity.model_shape import AttentionKind, ModelShape, parse_shape
from kvctl.core.domain.capacity.model_weights import Weights, rank_weights
from kvctl.core.domain.capacity.prediction import Interval, predict_pool
from kvctl.core.domain.capacity.weight_estimate import estimate_weights
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.presets.serving_flags import serving_flags
from kvctl.core.domain.telemetry.server_info import parse_server_info
from kvctl.core.domain.units import GIB, MIB

DATA = Path(__file__).parents[1] / "data"
H200_BYTES = 143_771 * MIB
CPU_HOST_BYTES = 25_276_059_648
OWN_PROCESSES_BYTES = 1.0 * GIB
"""What SGLang's processes take before the weights, as the law assumes it on a CPU."""
QUIET_BYTES = 0.02 * GIB
QUIET_RATIO = 0.005
"""How far the memory that the weights took on a CPU may be off what they are, in bytes (the log
rounds) or of the pool, whichever is more: half of the 1 % that is aimed at."""
SETTLED_BYTES = 64 * MIB
"""How far the free memory before a start may be below that of the idle host."""
_CPU = {"device": "cpu", "dtype": "bfloat16"}
_OLD_CPU: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("tiny-f32-05", "tiny-llama", {**_CPU, "dtype": "float32", "mem_fraction_static": 0.05}),
    ("gqa-bf16-06", "gqa-8-layers", {**_CPU, "mem_fraction_static": 0.06}),
    (
        "gqa-bf16-10-page64",
        "gqa-8-layers",
        {**_CPU, "mem_fraction_static": 0.10, "page_size": 64},
    ),
    ("mla-bf16-05", "mla-3-layers", {**_CPU, "mem_fraction_static": 0.05}),
    ("big-bf16-08", "gqa-16-layers", {**_CPU, "mem_fraction_static": 0.08}),
    ("big-bf16-12", "gqa-16-layers", {**_CPU, "mem_fraction_static": 0.12}),
)
_OLD_GPU = (
    ("smoke", "llama-2-layers"),
    ("bf16", "llama-8b-shape"),
    ("fp8", "llama-8b-shape"),
)


@dataclass(frozen=True)
class Start:
    """One recorded start."""

    name: str
    model: str
    where: str
    shape: ModelShape
    weights: Weights
    launch: ObservedLaunch
    room: GpuRoom
    """Memory as the start itself found it."""
    host_room: GpuRoom | None = None
    """As it was read just before the start; None where it was not."""
    series: str = ""
    """Which recording; starts of one were made one after another."""
    unsettled_bytes: float = 0.0
    """How much less was free before it than on the idle host; 0 where that was not watched."""


def is_quiet(start: Start) -> bool:
    """Return whether the host's other processes stood still while a CPU start loaded."""
    launch = start.launch
    if not launch.flags.is_cpu or launch.before_bytes is None or launch.after_bytes is None:
        return True
    width = 2 if launch.flags.dtype == "float32" else 1
    weights = rank_weights(start.weights, launch.flags.layout).expected_bytes * width
    moved = abs(launch.before_bytes - launch.after_bytes - weights)
    pool = launch.pool_tokens * kv_cell(start.shape, launch.flags).cell_bytes(
        launch.flags.sliding_ratio
    )
    allowed = max(QUIET_BYTES, QUIET_RATIO * pool)
    return moved <= allowed and start.unsettled_bytes <= SETTLED_BYTES


@dataclass(frozen=True)
class Compared:
    """A start beside its predictions."""

    start: Start
    alone: Interval
    """From assumptions alone."""
    calibrated: Interval | None
    """From one other start of the model; None where there is none."""
    by: str = ""
    """Name of that start."""
    host: Interval | None = None
    """From assumptions and the memory read before the start."""

    def off(self, predicted: Interval | None) -> float | None:
        """Return how far an expected pool is off the real one, as a ratio."""
        if predicted is None:
            return None
        return predicted.expected / self.start.launch.pool_tokens - 1


@cache
def starts() -> tuple[Start, ...]:
    """Return every recorded start on a host that stood still."""
    found = [*_old_gpu(), *_old_cpu(), *_recorded()]
    return tuple(start for start in found if is_quiet(start))


@cache
def compared() -> tuple[Compared, ...]:
    """Return every start with its predictions."""
    return tuple(_compare(start, starts()) for start in starts())


def _compare(start: Start, everything: Sequence[Start]) -> Compared:
    others = [
        other
        for other in everything
        if other.model == start.model
        and other.where == start.where
        and other is not start
        and not is_capped(other.launch)
        and other.launch.flags.dtype == start.launch.flags.dtype  # other weights, as kvctl has it
    ]
    # Of the same series, and the one that is farthest in its fraction: the hardest to carry over.
    other = max(others, key=lambda o: (o.series == start.series, _gap(o, start)), default=None)
    host = None
    if start.host_room is not None:
        host = _predicted(start, start.host_room, Calibration())
    if other is None:
        return Compared(start, _predicted(start, start.room, Calibration()), None, "", host)
    known = calibrate(start.shape, [other.launch])
    return Compared(
        start,
        _predicted(start, start.room, Calibration()),
        _predicted(start, start.room, known),
        other.name,
        host,
    )


def _gap(one: Start, other: Start) -> float:
    return abs((one.launch.flags.mem_fraction or 0) - (other.launch.flags.mem_fraction or 0))


def _predicted(start: Start, room: GpuRoom, known: Calibration) -> Interval:
    weights = start.weights if known.is_empty else None  # else from the launch alone
    found = predict_pool(start.shape, start.launch.flags, room, weights, known)
    assert found.pool is not None, found.reason
    return found.pool


def _old_gpu() -> Iterator[Start]:
    folder = DATA / "sglang-0.5.17" / "starts"
    for name, model in _OLD_GPU:
        info = parse_server_info(
            json.loads((folder / f"{name}.server_info.json").read_text()), at=0.0
        )
        assert info is not None
        flags = serving_flags(info.flags, info.version)
        lines = (folder / f"{name}.log").read_text().splitlines()
        launch = observed_launch(model, flags, map(parse_line, lines))
        assert launch is not None
        config = json.loads((DATA / "models" / f"{model}.json").read_text())
        yield _start(name, model, "H200, 0.5.17", config, launch, GpuRoom(H200_BYTES))


def _old_cpu() -> Iterator[Start]:
    folder = DATA / "sglang-0.5.23" / "starts"
    for name, model, flags in _OLD_CPU:
        lines = (folder / f"{name}.log").read_text().splitlines()
        launch = observed_launch(model, serving_flags(flags, "0.5.23"), map(parse_line, lines))
        assert launch is not None
        config = json.loads((DATA / "models" / f"{model}.json").read_text())
        room = _cpu_room(launch, CPU_HOST_BYTES)
        yield _start(name, model, "CPU, 0.5.23", config, launch, room)


def _recorded() -> Iterator[Start]:
    for file in sorted((DATA / "pools").glob("*.json")):
        report = json.loads(file.read_text())
        for row in report["starts"]:
            yield from _of_row(row, report, file.stem)


def _of_row(row: Mapping[str, Any], report: Mapping[str, Any], series: str) -> Iterator[Start]:
    is_cpu = row["flags"].get("device") == "cpu"
    fraction = {"mem_fraction_static": row["mem_fraction_static"]}
    version = report["version"].split("+")[0]
    asked = {**row["flags"], "disable_cuda_graph": True}
    flags = serving_flags({**asked, **fraction}, version)
    launch = observed_launch(row["shape"], flags, map(parse_line, row["log"]))
    if launch is None:
        return
    total = row["total_mib"] * MIB
    room = _cpu_room(launch, total) if is_cpu else GpuRoom(total)
    where = f"CPU, {version}" if is_cpu else f"{report['host']}, {version}"
    host = GpuRoom(total, free_bytes=row["free_before_mib"] * MIB) if is_cpu else None
    made = _start(row["name"], row["shape"], where, row["config"], launch, room, host)
    idle = report.get("idle_mib", row["free_before_mib"])
    yield replace(made, series=series, unsettled_bytes=(idle - row["free_before_mib"]) * MIB)


def _cpu_room(launch: ObservedLaunch, total: float) -> GpuRoom:
    assert launch.before_bytes is not None
    return GpuRoom(total, free_bytes=launch.before_bytes + OWN_PROCESSES_BYTES)


def _start(
    name: str,
    model: str,
    where: str,
    config: dict[str, Any],
    launch: ObservedLaunch,
    room: GpuRoom,
    host: GpuRoom | None = None,
) -> Start:
    shape, weights = parse_shape(config), estimate_weights(config)
    return Start(name, model, where, shape, weights, launch, room, host)


def table(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield the comparison as a Markdown table."""
    yield (
        "| start | SGLang | attention | KV dtype | fraction | real pool | alone | ± | "
        "calibrated | ± | by | host |"
    )
    yield "| --- " * 12 + "|"
    for row in rows:
        start, flags = row.start, row.start.launch.flags
        is_latent = start.shape.attention is AttentionKind.LATENT
        cells = (
            start.name,
            start.where,
            "MLA" if is_latent else f"{start.shape.row.kv_heads} KV heads",
            flags.kv_dtype if flags.kv_dtype != "auto" else flags.dtype,
            f"{flags.mem_fraction or 0:g}{', capped' if is_capped(start.launch) else ''}",
            f"{start.launch.pool_tokens:,}",
            _signed(row.off(row.alone)),
            _ratio(row.alone),
            _signed(row.off(row.calibrated)),
            _ratio(row.calibrated),
            row.by or "–",
            _signed(row.off(row.host)),
        )
        yield f"| {' | '.join(cells)} |"


def _signed(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:+.2%}"


def _ratio(pool: Interval | None) -> str:
    ratio = None if pool is None else pool.error_ratio
    return "–" if ratio is None else f"{ratio:.1%}"


if __name__ == "__main__":
    print("\n".join(table(compared())))
