"""Plans of the mission's presets from the ledger of the mission's own launches."""

import json
from dataclasses import replace
from pathlib import Path

from kvctl.core.domain.capacity.ceiling import lengths_of
from kvctl.core.domain.capacity.free_memory import GpuRoom
from kvctl.core.domain.capacity.model_shape import parse_shape
from kvctl.core.domain.capacity.weight_estimate import estimate_weights
from kvctl.core.domain.launches.launch import LaunchRecord
from kvctl.core.domain.launches.operating_point import OperatingPoint
from kvctl.core.domain.launches.plan import Candidate, Planned, PlanScene, Work, plan
from kvctl.core.domain.presets.serving_flags import Layout, ServingFlags
from kvctl.core.domain.units import MIB

CONFIG = json.loads((Path(__file__).parents[1] / "data" / "models" / "kimi-k2.5.json").read_text())
KIMI = "/models/Kimi-K2.5"
BASELINE = ServingFlags("0.5.10", Layout(tp=8), mem_fraction=0.85)
HICACHE = replace(BASELINE, mem_fraction=0.88, has_hicache=True, hicache_gb=48)
FP8 = replace(HICACHE, mem_fraction=0.90, kv_dtype="fp8_e4m3")
B2 = Work("B2", lengths_of(4112), 4_000 * 4112.0, 4_000)
B3 = Work("B3", lengths_of(1500), 20_000 * 1500.0, 20_000)


def candidate(name: str, flags: ServingFlags, **changes: object) -> Candidate:
    kimi = Candidate(
        name,
        model=KIMI,
        flags=flags,
        argv=("sglang", name),
        shape=parse_shape(CONFIG),
        weights=estimate_weights(CONFIG),
        room=GpuRoom(97_887 * MIB),
    )
    return replace(kimi, **changes)  # type: ignore[arg-type]


def point(partition: str, running: float, generation: float, effective: float, window_s: float
          ) -> OperatingPoint:  # fmt: skip
    return OperatingPoint(
        partition, "baseline", running, 8, 0.93, generation, effective, window_s, True
    )


LAUNCH = LaunchRecord(
    id="server-1",
    preset="baseline",
    wall=1.0,
    argv=("sglang", "baseline"),
    version="0.5.10",
    ready_after_s=621.0,
    pool_tokens=116_000,
    model=KIMI,
    flags=(("tp-size", 8), ("mem-fraction-static", 0.85), ("kv-cache-dtype", "auto")),
)
SCENE = PlanScene((LAUNCH,), (B2, B3), None, 431e9)


def planned(scene: PlanScene = SCENE, **changes: object) -> dict[str, Planned]:
    candidates = (
        candidate("baseline", BASELINE),
        candidate("hicache-bf16", HICACHE, **changes),
        candidate("hicache-fp8", FP8, refused="rule on kv-cache-dtype: degrades the model"),
    )
    return {one.name: one for one in plan(candidates, scene)}


MEASURED = replace(LAUNCH, points=(point("B2", 35, 606, 600, 900), point("B3", 72, 930, 912, 900)))
"""The same with two steady windows."""
