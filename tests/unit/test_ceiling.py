"""The KV ceiling: the pause policy's marks, and how many requests fit."""

import json
from pathlib import Path

import pytest

from kvctl.core.domain.capacity.fit import fit, held_tokens, whole_fit
from kvctl.core.domain.runs.run import CeilingPolicy
from kvctl.core.domain.throttle.ceiling_policy import (
    CeilingAction,
    CeilingMarks,
    CeilingReading,
    step,
)

CASES = Path(__file__).parents[1] / "data" / "cases"
PAUSE = CeilingMarks(CeilingPolicy.PAUSE)


def test_the_recorded_sequence_pauses_and_resumes_where_it_should() -> None:
    readings = json.loads((CASES / "o14-ceiling.json").read_text())
    is_paused, actions, states = False, [], []
    for r in readings:
        reading = CeilingReading(r["token_usage"], r["queue"], r["retractions"])
        came = step(is_paused, reading, PAUSE)
        is_paused = came.is_paused
        actions.append(came.action)
        states.append(is_paused)
    assert actions == ["none", "none", "warn", "pause", "stay paused", "resume", "no data"]
    assert states == [False, False, False, True, True, False, False]


def test_no_data_keeps_a_pause_and_says_so() -> None:
    came = step(True, CeilingReading(None, None, None), PAUSE)
    assert came.is_paused and "no data" in came.reason


def test_low_usage_with_a_long_queue_never_pauses() -> None:
    assert not step(False, CeilingReading(0.2, 500, 3), PAUSE).is_paused


@pytest.mark.parametrize("policy", [CeilingPolicy.THROTTLE, CeilingPolicy.NOTIFY])
def test_other_policies_only_warn_at_the_ceiling(policy: CeilingPolicy) -> None:
    came = step(False, CeilingReading(0.99, 44, 5), CeilingMarks(policy))
    assert came.action is CeilingAction.WARN and not came.is_paused


def test_the_reason_names_the_figures_that_caused_it() -> None:
    came = step(False, CeilingReading(0.99, 44, 5), PAUSE)
    assert (
        came.reason
        == "usage 0.99, 44 queued, 5 retracted: sending stops until usage is 0.8 or less"
    )


def test_equal_lengths_hold_half_of_them_and_spread_lengths_more() -> None:
    assert held_tokens(100, 4000 * 10, 4000**2 * 10) == 100 + 2000
    spread = [1000] * 5 + [7000] * 5
    held = held_tokens(0, sum(spread), sum(n * n for n in spread))
    assert held is not None and held > 2000


def test_what_is_unknown_stays_unknown() -> None:
    assert held_tokens(100, 0, 0) is None
    assert fit(None, 2000) is None and fit(159_277, None) is None
    assert whole_fit(159_277, None) is None


def test_the_operators_plain_figure() -> None:
    assert whole_fit(159_277, 4000) == 39
