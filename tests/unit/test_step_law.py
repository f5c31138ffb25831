"""Tokens a second at another number of requests, from what was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.core.domain.launches.step_law import RatePoint, expected_rate


def point(running: float, rate: float, window_s: float = 120.0) -> RatePoint:
    return RatePoint(running, rate, window_s)


def law(running: float, fixed: float = 0.03, each: float = 0.0005) -> float:
    return running / (fixed + each * running)


def test_two_counts_give_the_law_and_so_the_rate_at_a_third() -> None:
    found = expected_rate([point(35, law(35)), point(140, law(140))], 72)
    assert found is not None
    assert found.expected == pytest.approx(law(72), rel=1e-6)
    assert found.low < found.expected < found.high


def test_the_missions_bf16_points_tell_the_rate_of_48_running() -> None:
    """606 tok/s at 34.5 and 930 at 72 were published; 989 at 48 was a young pool."""
    found = expected_rate([point(34.5, 606), point(72, 930)], 48)
    assert found is not None
    assert found.expected == pytest.approx(748, rel=0.01)
    assert found.high < 989


def test_one_count_bounds_the_rate_between_the_same_and_proportional() -> None:
    found = expected_rate([point(38, 640), point(39, 640)], 76)
    assert found is not None
    assert found.low < 640 < found.expected < 1280 < found.high * 1.02
    fewer = expected_rate([point(38, 640)], 19)
    assert fewer is not None
    assert fewer.low < 320 * 1.01
    assert fewer.high > 640


def test_a_long_window_counts_more_than_a_short_one() -> None:
    points = [point(40, 700, 3600), point(40, 400, 30), point(80, 1000, 3600)]
    found = expected_rate(points, 40)
    assert found is not None
    assert found.expected == pytest.approx(700, rel=0.02)


def test_points_that_do_not_fit_the_law_widen_the_interval() -> None:
    tight = expected_rate([point(20, law(20)), point(80, law(80))], 40)
    loose = expected_rate([point(20, law(20)), point(40, 0.7 * law(40)), point(80, law(80))], 40)
    assert tight is not None and loose is not None
    assert (loose.error_ratio or 0) > 3 * (tight.error_ratio or 0)


def test_far_beyond_what_was_measured_the_rate_may_as_well_not_grow() -> None:
    found = expected_rate([point(20, law(20)), point(40, law(40))], 200)
    assert found is not None
    assert found.low <= law(40) * 1.01


def test_nothing_measured_is_not_known() -> None:
    assert expected_rate([], 40) is None
    assert expected_rate([point(0, 0)], 40) is None
    assert expected_rate([point(40, 600)], 0) is None


@given(
    st.lists(
        st.tuples(st.floats(0.6, 500), st.floats(1, 5000), st.floats(30, 4000)),
        min_size=1,
        max_size=6,
    ),
    st.floats(0.6, 1000),
)
def test_a_rate_is_never_negative_and_lies_in_its_interval(
    rows: list[tuple[float, float, float]], running: float
) -> None:
    found = expected_rate([RatePoint(*row) for row in rows], running)
    assert found is not None
    assert 0 < found.low <= found.expected * 1.0000001
    assert found.expected <= found.high * 1.0000001
