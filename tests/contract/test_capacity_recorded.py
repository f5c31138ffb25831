"""Predictions against starts of real SGLang servers, from their own logs and /server_info."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvctl.core.domain.capacity.calibration import (
    Calibration,
    ObservedLaunch,
    calibrate,
    observed_launch,
)
from kvctl.core.domain.capacity.free_memory import GpuRoom
from kvctl.core.domain.capacity.mem_fraction import mem_fraction
from kvctl.core.domain.capacity.model_shape import ModelShape, parse_shape
from kvctl.core.domain.capacity.model_weights import Weights, rank_weights
from kvctl.core.domain.capacity.prediction import LimitedBy, predict_pool
from kvctl.core.domain.capacity.weight_estimate import estimate_weights
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.presets.serving_flags import serving_flags
from kvctl.core.domain.telemetry.server_info import parse_server_info
from kvctl.core.domain.units import GIB, MIB

DATA = Path(__file__).parents[1] / "data"
H200 = GpuRoom(143_771 * MIB)
STARTS = [("smoke", "llama-2-layers"), ("bf16", "llama-8b-shape"), ("fp8", "llama-8b-shape")]


@dataclass(frozen=True)
class Start:
    """One recorded start with its model."""

    launch: ObservedLaunch
    shape: ModelShape
    weights: Weights
    loaded_gib: float


def start(name: str, model: str) -> Start:
    folder = DATA / "sglang-0.5.17" / "starts"
    body = json.loads((folder / f"{name}.server_info.json").read_text())
    info = parse_server_info(body, at=0.0)
    assert info is not None
    flags = serving_flags(info.flags, info.version)
    lines = (folder / f"{name}.log").read_text().splitlines()
    launch = observed_launch(model, flags, map(parse_line, lines))
    assert launch is not None
    assert launch.pool_tokens == info.pool_tokens
    config = json.loads((DATA / "models" / f"{model}.json").read_text())
    loaded = float(body["internal_states"][0]["memory_usage"]["weight"])
    return Start(launch, parse_shape(config), estimate_weights(config), loaded)


@pytest.mark.parametrize(("name", "model"), STARTS)
def test_the_recorded_pool_lies_inside_the_uncalibrated_interval(name: str, model: str) -> None:
    seen = start(name, model)
    found = predict_pool(seen.shape, seen.launch.flags, H200, seen.weights, Calibration())
    assert found.pool is not None
    assert found.pool.holds(seen.launch.pool_tokens)
    assert found.pool.expected == pytest.approx(seen.launch.pool_tokens, rel=0.001)
    assert found.max_running == seen.launch.max_running
    is_capped = seen.launch.flags.max_total_tokens is not None
    assert found.limited_by is (LimitedBy.CAP if is_capped else LimitedBy.MEMORY)


@pytest.mark.parametrize(("name", "model"), STARTS)
def test_the_weights_of_the_config_are_those_that_were_loaded(name: str, model: str) -> None:
    seen = start(name, model)
    held = rank_weights(seen.weights, seen.launch.flags.layout)
    assert held.expected_bytes / GIB == pytest.approx(seen.loaded_gib, abs=0.03)


@pytest.mark.parametrize(("name", "model"), STARTS)
def test_the_recorded_kv_bytes_are_pool_times_cell(name: str, model: str) -> None:
    seen = start(name, model)
    found = predict_pool(seen.shape, seen.launch.flags, H200, seen.weights, Calibration())
    folder = DATA / "sglang-0.5.17" / "starts"
    body = json.loads((folder / f"{name}.server_info.json").read_text())
    kv_gib = float(body["internal_states"][0]["memory_usage"]["kvcache"])
    assert seen.launch.pool_tokens * found.cell_bytes / GIB == pytest.approx(kv_gib, abs=0.001)


def test_one_start_gives_the_memory_before_load_exactly() -> None:
    seen = start("smoke", "llama-2-layers")
    (anchor,) = calibrate(seen.shape, [seen.launch]).anchors
    assert anchor.before is not None
    assert anchor.before.expected_bytes / GIB == pytest.approx(139.20, abs=0.02)
    assert anchor.before.error_bytes < 0.02 * GIB


def test_the_other_model_agrees_on_the_memory_before_load() -> None:
    seen = start("bf16", "llama-8b-shape")
    (anchor,) = calibrate(seen.shape, [seen.launch]).anchors
    assert anchor.before is not None
    assert anchor.before.expected_bytes / GIB == pytest.approx(139.20, abs=0.02)


def test_bf16_predicts_the_fp8_launch_its_headroom_and_its_running_limit() -> None:
    bf16, fp8 = start("bf16", "llama-8b-shape"), start("fp8", "llama-8b-shape")
    known = calibrate(bf16.shape, [bf16.launch])
    found = predict_pool(bf16.shape, fp8.launch.flags, H200, None, known)
    assert found.pool is not None
    assert found.pool.expected == fp8.launch.pool_tokens
    assert found.free is not None
    assert fp8.launch.free_bytes is not None
    assert found.free.expected == pytest.approx(fp8.launch.free_bytes, abs=0.03 * GIB)
    assert found.max_running == fp8.launch.max_running


@pytest.mark.parametrize(("name", "model"), STARTS[1:])
def test_the_fraction_that_sglang_chose_is_the_one_predicted(name: str, model: str) -> None:
    seen = start(name, model)
    # max-total-tokens is above every prefill bucket, so it changes nothing here.
    asked = replace(seen.launch.flags, mem_fraction=None, chunked_prefill=None)
    assert mem_fraction(seen.shape, asked, 143_771).expected == seen.launch.flags.mem_fraction
