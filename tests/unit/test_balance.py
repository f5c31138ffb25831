"""Effective above generation contradicts itself; what was held before the stretch does not."""

import pytest

from kvctl.core.domain.telemetry.balance import Balance, Moment, contradiction, fold_moment
from kvctl.core.domain.telemetry.loads import parse_v1_loads
from kvctl.core.domain.telemetry.prefill_share import BusyTime, fold_busy, share_of
from kvctl.core.domain.telemetry.readings import LoadsReading


def stretch(seconds: int, generation: float, completed: float, held: float = 0.0) -> Balance | None:
    balance: Balance | None = None
    for at in range(seconds + 1):
        moment = Moment(float(at), generation, int(at * completed), held)
        balance = fold_moment(balance, moment)
    return balance


def test_completed_tokens_steadily_above_the_generated_ones_are_a_contradiction() -> None:
    told = contradiction(stretch(120, 400.0, 600.0))
    assert told is not None and told.startswith("600 tok/s completed but 400 generated in 120 s")


@pytest.mark.parametrize(
    ("seconds", "generation", "completed", "held"),
    [
        (119, 400.0, 600.0, 0.0),  # too short to be steady
        (600, 400.0, 400.0, 0.0),
        (600, 400.0, 430.0, 0.0),  # within the tolerance of two counts
        (120, 400.0, 600.0, 30_000.0),  # tokens made before the stretch
    ],
)
def test_what_the_windows_can_explain_is_none(
    seconds: int, generation: float, completed: float, held: float
) -> None:
    assert contradiction(stretch(seconds, generation, completed, held)) is None


def test_a_gap_an_unknown_moment_and_another_run_start_over() -> None:
    balance = stretch(200, 400.0, 600.0)
    assert contradiction(balance) is not None
    assert fold_moment(balance, None) is None
    later = Moment(300.0, 400.0, 10**9, 0.0)
    assert contradiction(fold_moment(balance, later)) is None
    other = Moment(201.0, 400.0, 5, 0.0)
    assert contradiction(fold_moment(balance, other)) is None


def reading(at: float, *busy_us: int | None) -> LoadsReading:
    entries = [
        {
            "dp_rank": n,
            "num_running_reqs": 1,
            **({} if us is None else {"total_prefill_busy_us": us}),
        }
        for n, us in enumerate(busy_us)
    ]
    found = parse_v1_loads({"loads": entries}, at, at, has_metrics=True)
    assert found is not None
    return found


def folded(*readings: LoadsReading) -> tuple[BusyTime, ...]:
    kept: tuple[BusyTime, ...] = ()
    for one in readings:
        kept = fold_busy(kept, one)
    return kept


def test_the_prefill_share_is_the_busiest_ranks_time_over_the_window() -> None:
    kept = folded(reading(0.0, 0, 0), reading(5.0, 1_000_000, 0), reading(10.0, 2_000_000, 500_000))
    share = share_of(kept, "/v1/loads", 10.0)
    assert (share.value, share.source) == (0.2, "/v1/loads, 10 s")


def test_the_prefill_share_is_unknown_without_its_field_at_first_and_after_a_restart() -> None:
    assert "does not tell" in (share_of(folded(reading(1.0, None)), "x", 1.0).reason or "")
    assert share_of(folded(reading(1.0, 5)), "x", 1.0).reason == "measuring"
    kept = folded(reading(0.0, 9_000_000), reading(5.0, 100))
    assert share_of(kept, "x", 5.0).value is None
    assert share_of(folded(reading(0.0, 0), reading(5.0, 10)), "x", 30.0).value is None


def test_busy_times_are_bounded() -> None:
    kept = folded(*(reading(n / 10, n * 1000) for n in range(2000)))
    assert len(kept) < 30
