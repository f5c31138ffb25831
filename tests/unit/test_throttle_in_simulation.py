"""The queue-hold law against the simulated pool: as good as the best fixed number, unasked.

A short part of `python -m tests.benchmarks.law_regression`, which has all cases and more seeds.
"""

from dataclasses import replace

import pytest
from tests.fakes.throttled import (
    CAP,
    H200,
    LONG,
    SHORT,
    Lengths,
    Second,
    Setting,
    ThrottledClient,
    pace,
)

from kvctl.core.domain.throttle.parameters import ThrottleParameters
from kvctl.core.domain.throttle.queue_hold import QueueHold
from kvctl.core.sim.model import StepLaw

WARM_S, END_S = 600, 2400
MIXED = tuple(Lengths(mean, 0.6, 6000, prompts=(400, 600)) for mean in (1000.0, 2000.0, 3000.0))
COLD = Setting(159_277, MIXED, H200)


def auto(setting: Setting, until_s: int = END_S, seed: int = 1) -> list[Second]:
    return ThrottledClient(setting, QueueHold(), seed=seed).run(until_s)


def fixed(setting: Setting, slots: int, until_s: int = END_S, seed: int = 1) -> list[Second]:
    return ThrottledClient(setting, fixed=slots, seed=seed).run(until_s)


@pytest.mark.parametrize(
    ("capacity", "lengths", "best_fixed"),
    [(116_000, LONG, 64), (159_277, CAP, 100), (376_029, SHORT, 250)],
    ids=["116K long", "159K at the limit", "376K short"],
)
def test_auto_is_as_good_as_the_best_fixed_number_with_a_short_queue(
    capacity: int, lengths: Lengths, best_fixed: int
) -> None:
    setting = Setting(capacity, (lengths,))
    course, best = auto(setting), fixed(setting, best_fixed)
    assert pace(course, WARM_S, END_S) >= 0.97 * pace(best, WARM_S, END_S)
    after = [second.queued for second in course[WARM_S:]]
    assert sum(after) / len(after) < 45


def test_telemetry_five_seconds_late_costs_next_to_nothing() -> None:
    setting = Setting(159_277, (CAP,))
    stale = auto(replace(setting, every_s=5.0, late_s=5.0))
    assert pace(stale, WARM_S, END_S) >= 0.97 * pace(fixed(setting, 100), WARM_S, END_S)


def test_a_fixed_150_starves_where_auto_does_not() -> None:
    setting = Setting(376_029, (SHORT,))
    held, starving = auto(setting), fixed(setting, 150)
    assert pace(starving, WARM_S, END_S) < 0.9 * pace(held, WARM_S, END_S)
    assert sum(second.is_starved for second in starving[WARM_S:]) > 600
    assert sum(second.is_starved for second in held[WARM_S:]) < 60


def test_other_lengths_leave_the_pool_idle_for_seconds_only() -> None:
    setting = Setting(159_277, (LONG,), later=(SHORT,), switch_s=900)
    course = auto(setting)
    assert sum(second.is_starved for second in course[900:]) <= 10


@pytest.mark.parametrize("limit", [None, 6000], ids=["exact limits", "one generous limit"])
def test_from_an_empty_h200_auto_fills_the_pool_as_fast_as_150_slots(limit: int | None) -> None:
    setting = replace(COLD, loads=tuple(replace(load, limit=limit) for load in MIXED))
    seeds = (1, 2, 3)
    ours = [auto(setting, 105, seed) for seed in seeds]
    flood = [fixed(setting, 150, 105, seed) for seed in seeds]
    assert sum(course[-1].decoded for course in ours) >= 0.975 * sum(
        course[-1].decoded for course in flood
    )
    assert sum(c[-1].retracted for c in ours) <= sum(c[-1].retracted for c in flood)


def test_the_retraction_probe_repairs_slow_prefill() -> None:
    setting = Setting(376_029, (CAP,), StepLaw(prefill_tokens_per_s=800.0))
    end = 6600
    probed = auto(setting, end)
    law = QueueHold(ThrottleParameters(probe_ratio=100.0))
    plain = ThrottledClient(setting, law).run(end)
    assert pace(probed, 5400, end) > 1.05 * pace(plain, 5400, end)
