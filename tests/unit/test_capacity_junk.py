"""Whatever a config.json holds: a shape or one typed refusal, and bounds in order."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.core.domain.capacity.calibration import Calibration
from kvctl.core.domain.capacity.free_memory import GpuRoom
from kvctl.core.domain.capacity.model_shape import ModelShapeUnknown, parse_shape
from kvctl.core.domain.capacity.prediction import Prediction, predict_pool
from kvctl.core.domain.capacity.weight_estimate import estimate_weights
from kvctl.core.domain.presets.serving_flags import Layout, ServingFlags, serving_flags
from kvctl.core.domain.units import GIB

MODELS = Path(__file__).parents[1] / "data" / "models"
CONFIGS = [json.loads(file.read_text()) for file in sorted(MODELS.glob("*.json"))]
KEYS = sorted({key for config in CONFIGS for key in config})
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=6,
)
NAMES = ["tp-size", "max-total-tokens", "page-size", "max-running-requests"]
FEW = settings(max_examples=40, deadline=None)
SWITCHES = st.dictionaries(
    st.sampled_from(["tp-size", "mem-fraction-static", "max-total-tokens", "dtype", "dp-size"]),
    st.integers(1, 16) | st.floats() | st.text(max_size=6) | st.booleans(),
)


def predicted(config: dict[str, object], flags: ServingFlags) -> Prediction:
    room = GpuRoom(140 * GIB)
    return predict_pool(parse_shape(config), flags, room, estimate_weights(config), Calibration())


@FEW
@given(st.sampled_from(CONFIGS), st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=4))
def test_a_damaged_config_gives_a_prediction_or_one_refusal(
    config: dict[str, object], damage: dict[str, object]
) -> None:
    try:
        found = predicted({**config, **damage}, ServingFlags())
    except ModelShapeUnknown as refused:
        assert "\n" not in str(refused)
        return
    if found.pool is not None:
        assert 0 <= found.pool.low <= found.pool.expected <= found.pool.high


@FEW
@given(st.sampled_from(CONFIGS), SWITCHES)
def test_odd_flags_never_break_a_prediction(
    config: dict[str, object], flags: dict[str, object]
) -> None:
    found = predicted(config, serving_flags(flags))
    assert found.pool is None or found.pool.low <= found.pool.expected <= found.pool.high


@pytest.mark.parametrize("value", ["nan", "inf", "-3", "0", 1e400, "many", True])
@pytest.mark.parametrize("name", NAMES)
def test_a_flag_that_is_no_sensible_number_never_breaks_a_prediction(
    name: str, value: object
) -> None:
    assert predicted(CONFIGS[0], serving_flags({name: value})).pool is not None


@FEW
@given(st.sampled_from(CONFIGS), st.floats(0.1, 0.94), st.floats(0.005, 0.05))
def test_a_larger_fraction_never_gives_a_smaller_pool(
    config: dict[str, object], fraction: float, step: float
) -> None:
    flags = ServingFlags(layout=Layout(tp=8), mem_fraction=fraction)
    less, more = (
        predicted(config, flags),
        predicted(config, replace(flags, mem_fraction=fraction + step)),
    )
    assert less.pool is not None
    assert more.pool is not None
    assert less.pool.expected <= more.pool.expected
