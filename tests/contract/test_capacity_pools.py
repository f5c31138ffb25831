"""Predicted pools against every recorded start of a real SGLang server, over shapes and flags."""

import pytest
from tests.benchmarks.capacity import Compared, compared

ROWS = compared()
WITHIN_ALONE, WITHIN_CALIBRATED = 0.05, 0.01
QUIET_SERIES = ("h200-0.5.17", "h200-0.5.17-again", "cpu-large", "cpu-large-again")
"""Recorded where nothing else took or gave back memory; the others, on a CPU, beside other work."""
QUIET = [row for row in ROWS if row.calibrated and row.start.series in QUIET_SERIES]


def name(row: Compared) -> str:
    return row.start.name


def test_there_are_at_least_twelve_combinations_of_shape_and_flags() -> None:
    starts = [row.start for row in ROWS]
    asked = {
        (s.model, s.launch.flags.mem_fraction, s.launch.flags.kv_dtype, s.launch.flags.page_tokens)
        for s in starts
    }
    assert len(asked) >= 12
    assert len({s.shape.attention for s in starts}) == 2  # GQA and MLA
    assert {s.launch.flags.kv_dtype for s in starts} >= {"auto", "fp8_e4m3"}
    assert len({s.launch.flags.mem_fraction for s in starts}) >= 6


def test_at_least_twelve_are_calibrated_on_gpu_and_cpu_over_heads_and_latent_rows() -> None:
    assert len(QUIET) >= 12
    for is_cpu in (False, True):
        rows = [row.start for row in QUIET if row.start.launch.flags.is_cpu is is_cpu]
        assert len({start.model for start in rows}) >= 4
        assert len({start.shape.attention for start in rows}) == 2


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_before_any_launch_the_expected_pool_is_within_5_per_cent(row: Compared) -> None:
    assert row.alone.holds(row.start.launch.pool_tokens)
    off = row.off(row.alone)
    assert off is not None and abs(off) <= WITHIN_ALONE


@pytest.mark.parametrize("row", [row for row in ROWS if row.calibrated], ids=name)
def test_after_one_launch_of_the_model_the_real_pool_is_in_the_interval(row: Compared) -> None:
    assert row.calibrated is not None
    assert row.calibrated.holds(row.start.launch.pool_tokens)


@pytest.mark.parametrize("row", QUIET, ids=name)
def test_after_one_launch_it_is_within_1_per_cent_where_the_host_stood_still(
    row: Compared,
) -> None:
    off = row.off(row.calibrated)
    assert off is not None and abs(off) <= WITHIN_CALIBRATED
