"""Lengths with censored ones among them, and what is left of a run."""

import math
import random
from collections import Counter

import pytest

from kvctl.core.domain.runs.eta import Estimate, Part, estimate, own_work, why_not_known
from kvctl.core.domain.runs.pace import Pace, PaceTrack
from kvctl.core.domain.runs.survival import Survival, survival

PACE = Pace(tokens_per_s=100.0, slots=10.0)


def lengths(
    *values: float, unfinished: tuple[float, ...] = (), limit: float | None = None
) -> Survival:
    found = survival(sorted(Counter(values).items()), unfinished, limit)
    assert isinstance(found, Survival)
    return found


def test_without_unfinished_answers_it_is_the_plain_distribution() -> None:
    found = lengths(*[100, 200, 600] * 10)
    assert found.mean == pytest.approx(300)
    assert found.variance == pytest.approx((200**2 + 100**2 + 300**2) / 3)
    assert found.residual(0) == pytest.approx((300, found.variance))
    assert found.residual(150)[0] == pytest.approx(250)
    assert found.residual(600) == (0.0, 0.0)


def test_a_textbook_case_with_censored_lengths() -> None:
    # At risk 50, 40, 20 at the three events: S = 4/5, 4/5 * 3/4, 4/5 * 3/4 * 1/2.
    found = survival([(6, 10), (7, 10), (10, 10)], [*[9.0] * 10, *[11.0] * 10], None)
    assert found is not None
    assert found.mass[:3] == pytest.approx((0.2, 0.2, 0.3))
    assert sum(found.mass[3:]) == pytest.approx(0.3)


def test_unfinished_answers_lengthen_what_is_expected() -> None:
    """The first answers of a lognormal partition are its short ones."""
    draw = random.Random(1)
    drawn = [draw.lognormvariate(7.0, 0.9) for _ in range(400)]
    now = 1200.0
    finished = sorted(length for length in drawn if length <= now)
    found = survival([(v, 1) for v in finished], [now] * (400 - len(finished)), None)
    assert found is not None
    true = sum(drawn) / 400
    naive = sum(finished) / len(finished)
    assert naive < 0.5 * true
    assert found.mean == pytest.approx(true, rel=0.15)


def test_a_limit_bounds_what_was_never_seen_to_end() -> None:
    found = lengths(50, unfinished=(100.0, 120.0), limit=128)
    assert found.values[-1] == 128
    assert found.residual(120)[0] <= 8


def test_nothing_finished_is_unknown() -> None:
    assert survival([], [5.0], None) is None


def test_answers_seen_in_full_swing_are_the_longer_ones() -> None:
    found = lengths(*[100, 900] * 10).in_progress([0.1, 0.5, 0.9])
    assert found == pytest.approx([50, 400, 800])


def test_the_rest_takes_its_tokens_over_the_pace() -> None:
    same = lengths(*[200.0] * 50)
    found = estimate([Part(1000, (), same)], PACE)
    assert found is not None
    # 200,000 tokens at 100 tok/s, and a drain in which fewer and fewer decode.
    assert found.middle_s == pytest.approx(2000, rel=0.05)
    assert found.low_s < found.middle_s < found.high_s


def test_what_is_in_flight_counts_with_what_it_still_needs() -> None:
    same = lengths(*[200.0] * 50)
    fresh = estimate([Part(100, (0.0,) * 10, same)], PACE)
    begun = estimate([Part(100, (150.0,) * 10, same)], PACE)
    assert fresh is not None and begun is not None
    assert fresh.middle_s - begun.middle_s == pytest.approx(10 * 150 / 100.0, rel=0.01)


def test_the_last_answers_run_out_slower_than_the_pace() -> None:
    spread = lengths(*(float(n) for n in range(100, 2100, 20)))
    found = estimate([Part(0, tuple(float(n) for n in range(0, 1000, 100)), spread)], PACE)
    assert found is not None
    at_full_pace = sum(spread.residual(float(n))[0] for n in range(0, 1000, 100)) / 100.0
    assert found.middle_s > 1.3 * at_full_pace


def test_few_answers_make_a_wide_interval() -> None:
    few = estimate([Part(1000, (), lengths(100, 150, 200, 300, 900))], PACE)
    many = estimate([Part(1000, (), lengths(*[100.0, 150, 200, 300, 900] * 40))], PACE)
    assert few is not None and many is not None
    assert few.high_s - few.low_s > 3 * (many.high_s - many.low_s)


@pytest.mark.parametrize(
    ("parts", "pace", "why"),
    [
        ({"B": Part(10, (), None)}, PACE, "B has 0 of the 5 answers it takes"),
        ({"B": Part(10, (), lengths(1, 2))}, PACE, "B has 2 of the 5 answers it takes"),
        ({"B": Part(3, (), lengths(1, 2))}, PACE, "B has 2 of the 3 answers it takes"),
        ({"B": Part(9, (), lengths(*range(1, 9)))}, None, "no answer was completed"),
    ],
)
def test_it_says_why_it_is_not_yet_known(
    parts: dict[str, Part], pace: Pace | None, why: str
) -> None:
    assert estimate(list(parts.values()), pace) is None
    assert why_not_known(parts, pace).startswith(why)


def test_nothing_left_is_now_whatever_is_known() -> None:
    assert estimate([Part(0, (), None)], None) == Estimate(0.0, 0.0, 0.0)
    assert own_work(Part(0, (), None), None) == Estimate(0.0, 0.0, 0.0)


def test_a_partition_that_fits_more_requests_runs_faster() -> None:
    same = lengths(*[200.0] * 50)
    plain, faster = own_work(Part(100, (), same), PACE), own_work(Part(100, (), same, 2.0), PACE)
    assert plain is not None and faster is not None
    assert faster.middle_s == pytest.approx(plain.middle_s / 2)
    assert faster.high_s - faster.middle_s > plain.high_s / 2 - plain.middle_s / 2


def test_the_pace_is_the_mean_of_the_last_minutes_with_its_error() -> None:
    track = PaceTrack()
    assert track.pace() is None

    def rate(second: int) -> float:
        return 600.0 if second < 500 else 900.0 + 90 * (-1) ** second

    for second in range(1500):
        track.add(float(second), rate(second), 40.0, 9000.0)
    pace = track.pace()
    assert pace is not None
    assert pace.tokens_per_s == pytest.approx(900, rel=0.01) and pace.slots == 40
    assert pace.spread == pytest.approx(0.1 / math.sqrt(6), rel=0.05)
    assert pace.used_tokens == 9000
    track.clear()
    assert track.pace() is None


def test_what_a_step_takes_is_learned_from_its_size() -> None:
    track = PaceTrack()
    for requests in (*range(10, 50), *[50] * 100):
        track.add(float(requests), requests / (0.02 + 0.001 * requests), float(requests), 0.0)
    pace = track.pace()
    assert pace is not None
    assert pace.at(10) == pytest.approx(10 / 0.03, rel=0.05)
    assert pace.at(100) == pytest.approx(100 / 0.12, rel=0.05)
