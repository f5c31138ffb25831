"""Whatever a run has seen, its end is a number with an interval around it, or not yet known."""

import math

from hypothesis import given
from hypothesis import strategies as st

from kvctl.core.domain.runs.eta import Part, estimate, own_work, why_not_known
from kvctl.core.domain.runs.pace import Pace, PaceTrack
from kvctl.core.domain.runs.progress import Lengths
from kvctl.core.domain.runs.survival import survival

tokens = st.integers(1, 20_000)
ages = st.lists(st.floats(0, 20_000), max_size=30)
limits = st.one_of(st.none(), st.integers(1, 20_000).map(float))


@st.composite
def parts(draw: st.DrawFn) -> Part:
    lengths = Lengths()
    for length in draw(st.lists(tokens, max_size=40)):
        lengths.add(length)
    begun = tuple(draw(ages))
    limit = draw(limits)
    known = survival(lengths.histogram(), begun, limit)
    pace = draw(st.floats(0.05, 20))
    return Part(draw(st.integers(0, 100_000)), begun, known, pace)


@given(st.lists(tokens, min_size=1, max_size=60), ages, limits)
def test_a_distribution_is_one(values: list[int], begun: list[float], limit: float | None) -> None:
    lengths = Lengths()
    for value in values:
        lengths.add(value)
    found = survival(lengths.histogram(), begun, limit)
    assert found is not None
    assert math.isclose(sum(found.mass), 1.0, rel_tol=1e-9) and min(found.mass) >= 0
    assert list(found.values) == sorted(found.values)
    assert found.mean >= 0 and found.mean_variance >= 0
    for made in (0.0, *begun):
        mean, variance = found.residual(made)
        assert mean >= 0 and variance >= 0
        assert 0 <= found.residual_at(made, 0.1) <= found.residual_at(made, 0.9)
    swing = found.in_progress([0.1, 0.5, 0.9])
    assert swing == sorted(swing) and swing[0] >= 0


@given(st.lists(parts(), max_size=4), st.floats(0, 5000), st.floats(0, 400))
def test_an_estimate_lies_in_its_interval_or_says_why_there_is_none(
    found: list[Part], tokens_per_s: float, slots: float
) -> None:
    pace = Pace(tokens_per_s, slots)
    whole = estimate(found, pace)
    if whole is None:
        assert not pace.is_known or why_not_known({str(n): p for n, p in enumerate(found)}, pace)
    else:
        assert 0 <= whole.low_s <= whole.middle_s <= whole.high_s < math.inf
    for part in found:
        own = own_work(part, pace)
        assert own is None or 0 <= own.low_s <= own.middle_s <= own.high_s < math.inf


@given(st.lists(st.tuples(st.floats(0, 9000), st.floats(0, 500), st.floats(0, 1e6)), max_size=80))
def test_a_pace_is_positive_or_unknown(samples: list[tuple[float, float, float]]) -> None:
    track = PaceTrack()
    for second, (rate, running, used) in enumerate(samples):
        track.add(float(second), rate, running, used)
    pace = track.pace()
    if pace is not None:
        assert pace.is_known and 0 <= pace.fixed_share <= 1 and pace.spread >= 0
        assert 0 < pace.at(pace.slots) < math.inf
        assert 1.001 * pace.at(1e9) >= pace.at(1.0) > 0
