"""Predictions against starts of SGLang 0.5.23 on the CPU, whose memory other processes move.

The free memory is taken from "Load weight begin": it is what a quiet host would have shown before.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvctl.core.domain.capacity.calibration import (
    Calibration,
    ObservedLaunch,
    calibrate,
    observed_launch,
)
from kvctl.core.domain.capacity.free_memory import GpuRoom
from kvctl.core.domain.capacity.model_shape import parse_shape
from kvctl.core.domain.capacity.prediction import Interval, predict_pool
from kvctl.core.domain.capacity.running_cap import max_running
from kvctl.core.domain.capacity.weight_estimate import estimate_weights
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.presets.serving_flags import serving_flags
from kvctl.core.domain.units import GIB

DATA = Path(__file__).parents[1] / "data"
HOST_BYTES = 25_276_059_648
OWN_PROCESSES_BYTES = 1.0 * GIB
BF16 = {"device": "cpu", "dtype": "bfloat16"}


@dataclass(frozen=True)
class Case:
    """One recorded start and the flags it was given."""

    log: str
    model: str
    flags: dict[str, object]


CASES = [
    Case("tiny-f32-05", "tiny-llama", {**BF16, "dtype": "float32", "mem_fraction_static": 0.05}),
    Case("gqa-bf16-06", "gqa-8-layers", {**BF16, "mem_fraction_static": 0.06}),
    Case(
        "gqa-bf16-10-page64",
        "gqa-8-layers",
        {**BF16, "mem_fraction_static": 0.10, "page_size": 64},
    ),
    Case("mla-bf16-05", "mla-3-layers", {**BF16, "mem_fraction_static": 0.05}),
    Case("big-bf16-08", "gqa-16-layers", {**BF16, "mem_fraction_static": 0.08}),
    Case("big-bf16-12", "gqa-16-layers", {**BF16, "mem_fraction_static": 0.12}),
]


def seen(case: Case) -> ObservedLaunch:
    lines = (DATA / "sglang-0.5.23" / "starts" / f"{case.log}.log").read_text().splitlines()
    launch = observed_launch(
        case.model, serving_flags(case.flags, "0.5.23"), map(parse_line, lines)
    )
    assert launch is not None
    return launch


def config(case: Case) -> dict[str, object]:
    value: dict[str, object] = json.loads((DATA / "models" / f"{case.model}.json").read_text())
    return value


def predicted(case: Case, *earlier: Case) -> Interval:
    launch, shape = seen(case), parse_shape(config(case))
    assert launch.before_bytes is not None
    room = GpuRoom(HOST_BYTES, free_bytes=launch.before_bytes + OWN_PROCESSES_BYTES)
    known = calibrate(shape, [seen(one) for one in earlier]) if earlier else Calibration()
    found = predict_pool(shape, launch.flags, room, estimate_weights(config(case)), known)
    assert found.pool is not None
    return found.pool


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.log)
def test_the_recorded_pool_lies_inside_the_uncalibrated_interval(case: Case) -> None:
    assert predicted(case).holds(seen(case).pool_tokens)


@pytest.mark.parametrize("case", CASES[:4], ids=lambda case: case.log)
def test_where_weights_are_small_the_expected_pool_is_within_4_per_cent(case: Case) -> None:
    assert predicted(case).expected == pytest.approx(seen(case).pool_tokens, rel=0.04)


@pytest.mark.parametrize(
    ("earlier", "later"), [(CASES[1], CASES[2]), (CASES[4], CASES[5]), (CASES[5], CASES[4])]
)
def test_an_earlier_start_at_another_fraction_predicts_within_its_interval(
    earlier: Case, later: Case
) -> None:
    assert predicted(later, earlier).holds(seen(later).pool_tokens)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.log)
def test_the_memory_before_load_solved_from_the_pool_is_the_one_logged(case: Case) -> None:
    launch = seen(case)
    (anchor,) = calibrate(parse_shape(config(case)), [launch]).anchors
    assert anchor.before is not None
    assert launch.before_bytes is not None
    assert anchor.before.expected_bytes == pytest.approx(launch.before_bytes, abs=0.1 * GIB)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.log)
def test_the_running_limit_is_the_recorded_one(case: Case) -> None:
    launch = seen(case)
    assert max_running(launch.pool_tokens, 8192, launch.flags) == launch.max_running
