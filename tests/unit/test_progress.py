"""Lengths, rates over stated windows, and what is left."""

import pytest

from kvctl.core.domain.runs.progress import (
    Lengths,
    RateWindow,
    Work,
    expected_length,
    sum_lengths,
)


def lengths_of(values: list[int]) -> Lengths:
    lengths = Lengths()
    for value in values:
        lengths.add(value, prompt_tokens=10)
    return lengths


def test_no_answer_has_no_mean_and_no_quantile() -> None:
    assert Lengths().mean is None and Lengths().quantile(0.95) is None


@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
def test_a_quantile_is_within_two_percent(share: float) -> None:
    values = [7, *range(100, 5100, 13)]
    found = lengths_of(values).quantile(share)
    exact = sorted(values)[max(0, -(-len(values) * share // 1).__int__() - 1)]
    assert found == pytest.approx(exact, rel=0.02)


def test_sums_of_partitions_add_up() -> None:
    both = sum_lengths([lengths_of([10, 20]), lengths_of([30])])
    assert (both.count, both.total, both.squares) == (3, 60, 1400)
    assert both.mean == 20 and both.prompt_mean == 10


def test_a_rate_says_over_which_window_it_holds() -> None:
    window = RateWindow()
    for at in range(0, 100, 10):
        window.add(float(at), 50)
    young = window.rate(100.0, started_at=0.0)
    assert (young.window_s, young.answers, young.tokens_per_s) == (100.0, 10, 5.0)


def test_old_answers_leave_the_window() -> None:
    window = RateWindow(longest_s=60.0)
    window.add(0.0, 1000)
    window.add(100.0, 30)
    found = window.rate(120.0, started_at=0.0)
    assert (found.answers, found.tokens_per_s) == (1, 0.5)


def test_an_empty_window_is_unknown_not_zero() -> None:
    assert RateWindow().rate(100.0, started_at=0.0).tokens_per_s is None


def test_unfinished_answers_lengthen_the_expectation() -> None:
    early = lengths_of([100, 200])
    assert expected_length(early, 0.0) == 150
    assert expected_length(early, 10_000.0, limit=4096) == 4096
    assert expected_length(Lengths(), 5000.0) is None


def test_what_is_left_is_its_tokens_less_what_was_made() -> None:
    assert Work(10, 1000.0, 4000.0).tokens_left == 6000.0
    assert Work(10, None, 0.0).tokens_left is None
    assert Work(0, None, 0.0).tokens_left == 0.0


def test_a_histogram_keeps_the_mean() -> None:
    lengths = lengths_of([100, 117, 1300, 1301])
    values = lengths.histogram()
    assert sum(count for _, count in values) == 4
    assert sum(value * count for value, count in values) == pytest.approx(lengths.total)
    assert values == sorted(values)
