"""The predicted pool, what limits it, and the ceiling in requests."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvctl.core.domain.capacity.calibration import (
    Calibration,
    ObservedLaunch,
    calibrate,
    is_capped,
    observed_launch,
)
from kvctl.core.domain.capacity.ceiling import (
    BoundBy,
    Lengths,
    admits,
    ceiling,
    lengths_of,
    observed_ceiling,
)
from kvctl.core.domain.capacity.free_memory import GpuRoom
from kvctl.core.domain.capacity.mem_fraction import mem_fraction
from kvctl.core.domain.capacity.model_shape import ModelShape, parse_shape
from kvctl.core.domain.capacity.prediction import Interval, LimitedBy, Prediction, predict_pool
from kvctl.core.domain.capacity.running_cap import max_running
from kvctl.core.domain.capacity.weight_estimate import estimate_weights
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.presets.serving_flags import Layout, ServingFlags
from kvctl.core.domain.units import GIB, MIB

MODELS = Path(__file__).parents[1] / "data" / "models"
H200 = GpuRoom(143_771 * MIB)
RTX_PRO = GpuRoom(97_887 * MIB)
NOTHING_KNOWN = Calibration()


def config(name: str) -> dict[str, object]:
    value: dict[str, object] = json.loads((MODELS / f"{name}.json").read_text())
    return value


def shape(name: str) -> ModelShape:
    return parse_shape(config(name))


def predicted(
    name: str, flags: ServingFlags, room: GpuRoom = H200, known: Calibration = NOTHING_KNOWN
) -> Prediction:
    return predict_pool(shape(name), flags, room, estimate_weights(config(name)), known)


def pool_of(prediction: Prediction) -> Interval:
    assert prediction.pool is not None
    return prediction.pool


# --- the mission's launches: Kimi-K2.5 on 8 GPUs of 96 GB --------------------------------------

BASELINE = ServingFlags("0.5.10", Layout(tp=8), mem_fraction=0.85)
HICACHE = replace(BASELINE, mem_fraction=0.88, has_hicache=True, hicache_gb=48)
FP8 = replace(HICACHE, mem_fraction=0.90, kv_dtype="fp8_e4m3")
BASELINE_LAUNCH = ObservedLaunch("kimi", BASELINE, 116_000, pool_error_tokens=500)
HICACHE_LAUNCH = ObservedLaunch("kimi", HICACHE, 159_277, free_bytes=5.47 * GIB)


def kimi(flags: ServingFlags, *launches: ObservedLaunch) -> Prediction:
    return predicted("kimi-k2.5", flags, RTX_PRO, calibrate(shape("kimi-k2.5"), launches))


def test_116k_at_085_predicts_159277_at_088_within_half_a_per_cent() -> None:
    pool = pool_of(kimi(HICACHE, BASELINE_LAUNCH))
    assert pool.expected == pytest.approx(159_277, rel=0.005)
    assert pool.holds(159_277)
    assert (pool.error_ratio or 1) < 0.03


@pytest.mark.parametrize("launch", [BASELINE_LAUNCH, HICACHE_LAUNCH])
def test_either_bf16_launch_predicts_376029_in_fp8_at_090(launch: ObservedLaunch) -> None:
    pool = pool_of(kimi(FP8, launch))
    assert pool.expected == pytest.approx(376_029, rel=0.005)
    assert pool.holds(376_029)
    assert (pool.error_ratio or 1) < 0.03


def test_159277_at_088_explains_the_116k_at_085() -> None:
    pool = pool_of(kimi(BASELINE, HICACHE_LAUNCH))
    assert round(pool.expected / 1000) == 116


def test_the_headroom_after_graphs_at_090_follows_from_that_at_088() -> None:
    free = kimi(FP8, HICACHE_LAUNCH).free
    assert free is not None
    assert free.expected / GIB == pytest.approx(3.5, abs=0.15)


def test_095_leaves_no_room_for_the_graphs_that_088_needed_and_092_does() -> None:
    assert kimi(replace(HICACHE, mem_fraction=0.95), HICACHE_LAUNCH).fits is False
    assert kimi(replace(HICACHE, mem_fraction=0.92), HICACHE_LAUNCH).fits is True


def test_before_any_launch_the_missions_pools_lie_inside_a_wide_interval() -> None:
    for flags, tokens in ((BASELINE, 116_000), (HICACHE, 159_277), (FP8, 376_029)):
        prediction = kimi(flags)
        assert pool_of(prediction).holds(tokens)
        # 12 GiB of KV beside 71 GiB of int4 weights: nobody knows it better than this.
        assert (pool_of(prediction).error_ratio or 0) > 0.1
        assert prediction.calibrated_by is None
        assert any("not launched here yet" in note for note in prediction.notes)


def test_hicache_of_48_gb_a_rank_takes_384_gb_on_eight_ranks() -> None:
    need = kimi(HICACHE, BASELINE_LAUNCH).hicache
    assert need is not None
    assert need.total_bytes == 384e9
    assert need.fits(431e9) is True
    assert need.fits(390e9) is False
    assert need.fits(None) is None
    assert kimi(BASELINE, BASELINE_LAUNCH).hicache is None


def test_the_missions_running_limit_is_2048() -> None:
    assert kimi(HICACHE, BASELINE_LAUNCH).max_running == 2048


# --- limits ------------------------------------------------------------------------------------


def test_a_cap_below_the_memory_decides_and_one_above_does_not() -> None:
    capped = predicted("llama-8b-shape", ServingFlags(max_total_tokens=159_277))
    assert (pool_of(capped).expected, capped.limited_by) == (159_277, LimitedBy.CAP)
    free = predicted("llama-8b-shape", ServingFlags(max_total_tokens=9_000_000))
    assert free.limited_by is LimitedBy.MEMORY
    assert pool_of(free).expected < 1_000_000


def test_weights_that_exceed_the_budget_leave_no_pool_and_say_by_how_much() -> None:
    prediction = predicted("deepseek-v3", ServingFlags(layout=Layout(tp=4)))
    assert prediction.limited_by is LimitedBy.WEIGHTS
    assert pool_of(prediction).expected == 0
    assert prediction.fits is False
    assert "exceed the budget by" in prediction.reason


def test_memory_that_others_hold_is_lost_to_the_pool() -> None:
    flags = ServingFlags(mem_fraction=0.9)
    clean = pool_of(predicted("llama-8b-shape", flags)).expected
    shared = pool_of(predicted("llama-8b-shape", flags, replace(H200, foreign_bytes=10 * GIB)))
    assert clean - shared.expected == pytest.approx(0.9 * 10 * GIB / 131_072, abs=2)


def test_without_weights_or_launch_the_pool_is_unknown_with_a_reason_not_zero() -> None:
    prediction = predict_pool(shape("kimi-k2.5"), HICACHE, RTX_PRO, None, NOTHING_KNOWN)
    assert prediction.pool is None
    assert prediction.limited_by is LimitedBy.UNKNOWN
    assert prediction.reason
    assert prediction.total is None


def test_a_launch_with_another_layout_or_quantization_does_not_calibrate() -> None:
    other = replace(HICACHE_LAUNCH, flags=replace(HICACHE, layout=Layout(tp=4)))
    assert kimi(FP8, other).calibrated_by is None
    repacked = replace(HICACHE, weight_flags=(("quantization", "w4afp8"),))
    assert kimi(FP8, replace(HICACHE_LAUNCH, flags=repacked)).calibrated_by is None


def test_a_launch_of_another_version_calibrates_with_more_doubt() -> None:
    same = pool_of(kimi(FP8, HICACHE_LAUNCH)).error_ratio or 1
    other = pool_of(kimi(replace(FP8, version="0.5.23"), HICACHE_LAUNCH)).error_ratio or 0
    assert other > 2 * same


def test_two_launches_at_different_fractions_replace_the_assumed_free_memory() -> None:
    true_before, used, cell = 90 * GIB, 60 * GIB, 70_272
    pools = {f: int((true_before * f - used) / cell) for f in (0.70, 0.90)}
    launches = [
        ObservedLaunch("kimi", replace(BASELINE, mem_fraction=f), pool) for f, pool in pools.items()
    ]
    far = pool_of(kimi(replace(BASELINE, mem_fraction=0.80), *launches)).expected
    assert far == pytest.approx((true_before * 0.80 - used) / cell, rel=0.001)


def test_on_a_cpu_memory_taken_after_the_weights_is_carried_over_whatever_the_fraction() -> None:
    """Until the pool is cut a start takes 0.16 GiB more than its log tells (seen on 0.5.23)."""
    before, after, later = 22.6 * GIB, 22.3 * GIB, 0.16 * GIB
    cell = 2 * 8 * 128 * 2 * 32
    flags = {f: ServingFlags(mem_fraction=f, is_cpu=True) for f in (0.35, 0.5)}
    pools = {f: int((after - later - before * (1 - f)) / cell) for f in flags}
    room = GpuRoom(24 * GIB, free_bytes=before + 1.0 * GIB)
    seen = ObservedLaunch("m", flags[0.5], pools[0.5], before_bytes=before, after_bytes=after)
    known = calibrate(shape("llama-8b-shape"), [seen])
    found = pool_of(predicted("llama-8b-shape", flags[0.35], room, known))
    assert found.expected == pytest.approx(pools[0.35], rel=0.0001)


def test_a_page_size_rounds_the_pool_down_to_whole_pages() -> None:
    flags = ServingFlags(page_tokens=64, max_total_tokens=100_000)
    assert pool_of(predicted("llama-8b-shape", flags)).expected == 99_968


def test_every_dp_rank_has_a_pool_of_its_own() -> None:
    flags = ServingFlags(layout=Layout(tp=8, attn_dp=8), mem_fraction=0.9)
    prediction = predicted("deepseek-v3", flags)
    assert prediction.total is not None
    assert prediction.total.expected == 8 * pool_of(prediction).expected


def test_a_sliding_model_has_two_pools_and_a_narrow_one_is_refused() -> None:
    prediction = predicted("gpt-oss-20b", ServingFlags(mem_fraction=0.8))
    assert prediction.sliding is not None
    assert prediction.sliding.expected == pytest.approx(0.8 * pool_of(prediction).expected)
    tiny = ServingFlags(max_total_tokens=150, sliding_ratio=0.8)
    assert predicted("gpt-oss-20b", tiny).limited_by is LimitedBy.WINDOW


def test_a_hybrid_models_states_take_their_share_and_cap_the_running() -> None:
    flags = ServingFlags(layout=Layout(tp=4), mem_fraction=0.8)
    prediction = predicted("qwen3-next-80b", flags)
    half = predicted("qwen3-next-80b", replace(flags, mamba_ratio=0.0))
    ratio = pool_of(half).expected / pool_of(prediction).expected
    assert ratio == pytest.approx(1.9, rel=1e-3)
    assert prediction.slots is not None
    assert prediction.max_running == min(prediction.slots // 3, 4096)


# --- the rules of a version --------------------------------------------------------------------


def test_sglang_chooses_0903_on_an_h200_as_recorded() -> None:
    chosen = mem_fraction(shape("llama-8b-shape"), ServingFlags("0.5.17"), 143_771)
    assert (chosen.expected, chosen.is_chosen) == (0.903, True)


def test_a_given_fraction_is_taken_as_it_is() -> None:
    given = mem_fraction(shape("kimi-k2.5"), HICACHE, 97_887)
    assert (given.low, given.expected, given.high, given.is_chosen) == (0.88, 0.88, 0.88, False)


def test_a_multimodal_models_chosen_fraction_is_uncertain() -> None:
    chosen = mem_fraction(shape("kimi-k2.5"), ServingFlags("0.5.10", Layout(tp=8)), 97_887)
    assert chosen.low < chosen.expected < chosen.high


@pytest.mark.parametrize(
    ("tokens", "context", "flags", "expected"),
    [
        (159_277, 32_768, ServingFlags("0.5.17"), 2488),
        (376_029, 32_768, ServingFlags("0.5.17"), 4096),
        (159_277, 262_144, ServingFlags("0.5.10"), 2048),
        (1_000, 8_192, ServingFlags("0.5.23"), 500),
        (159_277, 32_768, ServingFlags("0.5.23", max_running=5000), 5000),
        (159_277, 32_768, ServingFlags("0.5.10", max_running=5000), 2488),
        (159_277, 32_768, ServingFlags("0.5.23", Layout(tp=8, attn_dp=8), max_running=80), 10),
    ],
)
def test_the_running_limit_follows_the_versions_rule(
    tokens: int, context: int, flags: ServingFlags, expected: int
) -> None:
    assert max_running(tokens, context, flags) == expected


# --- the ceiling in requests -------------------------------------------------------------------


def test_the_plain_ceiling_is_what_the_operator_worked_out() -> None:
    assert observed_ceiling(159_277, lengths_of(4000)).plain == 39
    assert observed_ceiling(159_277, lengths_of(1500)).plain == 106
    assert observed_ceiling(116_000, lengths_of(4112)).plain == 28


def test_the_steady_ceiling_is_the_measured_sizing_law() -> None:
    # An H200 at usage 0.92 held k = 1,951 tokens a request: 75.1 by the law, 74.5 measured.
    steady = observed_ceiling(159_277, lengths_of(3902.0), usage=0.92).steady
    assert steady is not None
    assert steady.expected == pytest.approx(75.1, abs=0.1)


def test_spread_lengths_hold_more_than_equal_ones() -> None:
    assert lengths_of(4000).held == 2000
    assert lengths_of(4000, variation=1.0).held == 4000
    assert Lengths(500, 2, 4000, 10_000_000).held == 500 + 1250


def test_a_ceiling_carries_the_pools_uncertainty() -> None:
    prediction = kimi(HICACHE, BASELINE_LAUNCH)
    found = ceiling(prediction, shape("kimi-k2.5"), lengths_of(4112))
    assert (found.plain, found.bound_by) == (38, BoundBy.KV)
    assert found.steady is not None
    pool = pool_of(prediction)
    assert found.steady.error_ratio == pytest.approx(pool.error_ratio)


def test_a_running_limit_below_the_pools_room_is_named_as_the_bound() -> None:
    prediction = kimi(replace(HICACHE, max_running=16), BASELINE_LAUNCH)
    found = ceiling(prediction, shape("kimi-k2.5"), lengths_of(4112))
    assert found.bound_by is BoundBy.RUNNING
    assert found.steady == Interval(16, 16, 16)


def test_a_long_request_holds_no_more_than_the_window_in_the_sliding_pool() -> None:
    prediction = predicted("gpt-oss-20b", ServingFlags(mem_fraction=0.8, sliding_ratio=0.001))
    found = ceiling(prediction, shape("gpt-oss-20b"), lengths_of(4000))
    assert found.bound_by is BoundBy.WINDOW
    assert prediction.sliding is not None
    assert found.steady is not None
    assert found.steady.expected == pytest.approx(
        prediction.sliding.expected * 0.93 / 128, rel=0.01
    )


def test_no_length_no_ceiling() -> None:
    found = ceiling(kimi(HICACHE, BASELINE_LAUNCH), shape("kimi-k2.5"), Lengths(0, 0, 0, 0))
    assert (found.plain, found.steady) == (None, None)


def test_a_request_larger_than_the_pool_is_never_admitted() -> None:
    assert admits(159_277, 100_000, 60_000) is False
    assert admits(159_277, 1_000, 8_192) is True
    assert admits(None, 1_000, 8_192) is None


# --- what a log teaches ------------------------------------------------------------------------


def test_ranks_are_taken_at_their_worst_and_a_draft_counts_with_the_weights() -> None:
    lines = """\
[2026-11-29 11:42:32 TP0] Load weight begin. avail mem=94.20 GB
[2026-11-29 11:42:32 TP1] Load weight begin. avail mem=94.10 GB
[2026-11-29 11:52:32 TP0] Load weight end. type=X, avail mem=22.00 GB, mem usage=72.20 GB.
[2026-11-29 11:52:32 TP1] Load weight end. type=X, avail mem=21.90 GB, mem usage=72.20 GB.
[2026-11-29 11:52:33 TP0] Load weight begin. avail mem=22.00 GB
[2026-11-29 11:52:34 TP0] Load weight end. type=Draft, avail mem=20.00 GB, mem usage=2.00 GB.
[2026-11-29 11:52:40 TP0] max_total_num_tokens=150000, max_running_requests=2048, available_gpu_mem=4.00 GB
"""  # noqa: E501
    launch = observed_launch("m", HICACHE, map(parse_line, lines.splitlines()))
    assert launch is not None
    assert launch.before_bytes == pytest.approx(94.10 * GIB)
    assert launch.after_bytes == pytest.approx(20.00 * GIB)
    assert (launch.pool_tokens, launch.max_running) == (150_000, 2048)
    assert launch.free_bytes == pytest.approx(4 * GIB)


def test_a_start_that_never_reached_its_pool_teaches_nothing() -> None:
    lines = ["[2026-11-29 11:42:32] Load weight begin. avail mem=94.20 GB"]
    assert observed_launch("m", HICACHE, map(parse_line, lines)) is None


def test_a_pool_at_its_cap_says_nothing_about_memory() -> None:
    capped = ObservedLaunch("m", replace(HICACHE, max_total_tokens=159_277), 159_277)
    assert is_capped(capped)
    assert not is_capped(replace(capped, pool_tokens=120_000))
    assert calibrate(shape("kimi-k2.5"), [capped]).is_empty
