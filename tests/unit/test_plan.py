"""Presets side by side: the mission's, planned from the ledger of the mission's own launches."""

from dataclasses import replace

import pytest
from tests.fakes.plans import BASELINE, LAUNCH, MEASURED, SCENE, candidate, planned, point

from kvctl.core.domain.capacity.ceiling import BoundBy
from kvctl.core.domain.launches.plan import lengths_that_hold, plan, works_of
from kvctl.core.domain.presets.serving_flags import Layout
from kvctl.core.domain.runs.run import Partition, PartitionState, Run, RunState
from kvctl.core.domain.units import GIB


def test_one_launch_of_the_ledger_calibrates_every_preset_of_its_model() -> None:
    found = planned()["hicache-bf16"]
    assert found.pool is not None
    assert found.pool.expected == pytest.approx(159_277, rel=0.005)
    assert (found.pool.error_ratio or 1) < 0.03
    assert found.calibrated_by is not None
    assert found.calibrated_by.startswith("baseline (server-1): 116,000 tokens")
    uncalibrated = planned(replace(SCENE, launches=()))["hicache-bf16"]
    assert uncalibrated.pool is not None
    assert uncalibrated.calibrated_by is None
    assert (uncalibrated.pool.error_ratio or 0) > 0.1


def test_a_launch_of_another_model_calibrates_nothing() -> None:
    other = replace(LAUNCH, model="/models/other")
    assert planned(replace(SCENE, launches=(other,)))["baseline"].calibrated_by is None


def test_each_partition_has_the_ceiling_by_the_law_beside_the_plain_one() -> None:
    parts = {part.name: part for part in planned()["hicache-bf16"].parts}
    assert parts["B2"].plain == pytest.approx(159_277 / 4112, abs=1)
    assert parts["B3"].plain == pytest.approx(159_277 / 1500, abs=2)
    steady = parts["B2"].steady
    assert steady is not None
    assert steady.expected == pytest.approx(159_277 * 0.93 / (4112 / 2), rel=0.01)
    assert steady.low < steady.expected < steady.high
    assert parts["B2"].bound_by is BoundBy.KV


def test_hicache_is_weighed_against_the_hosts_memory_on_every_rank() -> None:
    found = planned()
    assert found["hicache-bf16"].host_bytes == 8 * 48e9
    assert found["hicache-bf16"].host_fits is True
    tight = planned(replace(SCENE, host_available_bytes=300e9))["hicache-bf16"]
    assert (tight.host_fits, tight.may_start) == (False, False)
    assert found["baseline"].host_bytes is None
    unread = planned(replace(SCENE, host_available_bytes=None))["hicache-bf16"]
    assert (unread.host_fits, unread.may_start) == (None, True)


def test_a_refused_preset_is_planned_and_still_refused() -> None:
    found = planned()["hicache-fp8"]
    assert found.pool is not None
    assert found.pool.expected == pytest.approx(376_029, rel=0.005)
    assert (found.refused, found.may_start) == ("rule on kv-cache-dtype: degrades the model", False)


def test_without_a_steady_window_there_is_no_rate_and_no_time_and_why_is_said() -> None:
    found = planned()["baseline"]
    assert [part.rate for part in found.parts] == [None, None]
    assert found.left_s is None
    assert "no launch of this model was steady yet" in found.rate_from


def test_measured_windows_of_the_model_give_rate_and_time_under_another_preset() -> None:
    found = planned(replace(SCENE, launches=(MEASURED,)))
    rates = {part.name: part.rate for part in found["hicache-bf16"].parts}
    assert rates["B2"] is not None and rates["B3"] is not None
    assert rates["B2"].expected == pytest.approx(930, rel=0.01)  # ~72 fit at B2's lengths
    assert rates["B3"].expected > rates["B2"].expected
    assert "2 steady windows of baseline" in found["hicache-bf16"].rate_from
    left = found["hicache-bf16"].left_s
    assert left is not None
    share = (600 + 912) / (606 + 930)
    assert left == pytest.approx(
        (4_000 * 4112 / rates["B2"].expected + 20_000 * 1500 / rates["B3"].expected) / share,
        rel=0.001,
    )
    # Of this very command line what was measured on the partition counts.
    own = {part.name: part.left_s for part in found["baseline"].parts}
    assert own["B2"] == pytest.approx(4_000 * 4112 / 600)


def test_fixed_slots_below_the_ceiling_bound_the_rate() -> None:
    measured = replace(
        LAUNCH, points=(point("B2", 35, 606, 600, 90), point("B3", 72, 930, 912, 90))
    )
    scene = replace(SCENE, launches=(measured,), slots=35)
    rate = planned(scene)["hicache-bf16"].parts[0].rate
    assert rate is not None
    assert rate.expected == pytest.approx(606, rel=0.01)


def test_a_model_that_is_not_here_is_planned_from_its_last_launch() -> None:
    blind = candidate(
        "baseline", BASELINE, shape=None, weights=None, shape_problem="no such folder"
    )
    (found,) = plan([blind], SCENE)
    assert found.pool is not None
    assert (found.pool.expected, found.measured_tokens) == (116_000, 116_000)
    assert found.calibrated_by == "baseline (server-1)"
    (other,) = plan([replace(blind, argv=("sglang", "other"))], SCENE)
    assert other.pool is None
    assert "no such folder" in other.reason
    assert other.parts[0].steady is None


def test_where_the_gpus_are_not_known_that_is_said() -> None:
    (found,) = plan([candidate("x", BASELINE, room=None)], replace(SCENE, launches=()))
    assert found.pool is None
    assert "the GPUs it would take are not known" in found.reason


def test_weights_that_do_not_fit_may_not_start() -> None:
    flags = replace(BASELINE, layout=Layout(tp=4))
    (found,) = plan([candidate("x", flags)], replace(SCENE, launches=()))
    assert (found.fits, found.may_start) == (False, False)


def test_a_runs_open_partitions_are_planned_with_their_live_lengths() -> None:
    done = Partition("B1", PartitionState.DONE, 10, 10, 0, 0, 0, 0, 14_000, 1400, 2000, 0)
    live = Partition(
        "B2", PartitionState.OPEN, 10, 3, 1, 0, 4, 0, 12_000, 4000, 8000, 0,
        held_tokens=2600, prompt_tokens=300, left_tokens=24_000,
    )  # fmt: skip
    fresh = Partition("B3", PartitionState.WAITING, 10, 0, 0, 0, 0, 0, 0, None, None, 0)
    run = Run("r", "r.toml", "out", RunState.RUNNING, 0.0, partitions=(done, live, fresh))
    works = works_of(run)
    assert [(work.name, work.rows_left) for work in works] == [("B2", 6), ("B3", 10)]
    assert works[0].lengths.held == pytest.approx(2600)
    assert works[0].lengths.mean == 4000
    assert works[1].lengths.held is None
    assert works_of(None) == ()


def test_lengths_from_mean_and_k_give_both_back() -> None:
    found = lengths_that_hold(1500, 1400, 250)
    assert found.mean == 1500
    assert found.held == pytest.approx(1400)
    assert lengths_that_hold(None, 1400, 250).held is None


def test_what_is_free_when_ready_follows_where_a_launch_told_it() -> None:
    told = replace(LAUNCH, free_gpu_memory_gb=8.3)
    free = planned(replace(SCENE, launches=(told,)))["hicache-bf16"].free
    assert free is not None
    assert free.expected / GIB == pytest.approx(8.3 - 0.03 * 94, abs=0.3)
