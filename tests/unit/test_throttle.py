"""The queue-hold law: never starve the server's queue, keep it short."""

from dataclasses import replace

import pytest

from kvctl.core.domain.throttle.parameters import ServerSample, ThrottleParameters
from kvctl.core.domain.throttle.queue_hold import QueueHold


def sample(at: float, running: int, queued: int, usage: float = 0.6) -> ServerSample:
    return ServerSample(at=at, running=running, queued=queued, usage=usage)


def fed(law: QueueHold, samples: list[ServerSample], in_flight: int) -> list[int]:
    return [law.observe(s, in_flight) for s in samples]


def followed(law: QueueHold, usage: float, seconds: int) -> list[int]:
    """The targets of a client that fills every slot at a server that runs them all."""
    targets = [law.decide(0.0).allowed]
    for at in range(1, seconds):
        targets.append(law.observe(sample(at, targets[-1], 0, usage), targets[-1]))
    return targets


def test_before_any_sample_the_start_value_is_allowed() -> None:
    assert QueueHold().decide(0.0).allowed == 32


def warm(n: float, usage: float = 0.6) -> QueueHold:
    """A law past its cold start that stands at `n`."""
    law = QueueHold()
    law.observe(sample(0, round(n), 0, usage), round(n))
    law._n = n
    return law


# -- the start from an empty server -----------------------------------------------------------


def test_an_empty_pool_is_filled_by_its_room_threefold_a_sample_at_most() -> None:
    law = QueueHold()
    assert law.observe(sample(1, 32, 0, usage=0.05), 32) == 96
    assert law.observe(sample(2, 96, 0, usage=0.30), 96) == 112  # 96 x .35 / .30


def test_the_leaps_end_at_128_and_growth_goes_on_by_a_quarter() -> None:
    assert followed(QueueHold(), usage=0.01, seconds=5) == [32, 96, 128, 160, 200]


def test_no_leap_by_a_sample_taken_before_the_server_ran_what_was_sent() -> None:
    law = QueueHold()
    assert law.observe(sample(1, 0, 0, usage=0.0), 32) == 35
    assert law.observe(sample(2, 12, 0, usage=0.02), 35) == 38
    assert law.observe(sample(3, 38, 0, usage=0.05), 38) == 114


def test_a_queue_while_the_first_requests_are_prefilled_lowers_nothing() -> None:
    law = QueueHold()
    allowed = fed(law, [sample(at, 2 * at, 30, 0.1) for at in range(1, 9)], 32)
    assert allowed == [32] * 8


def test_a_queue_that_stays_ends_the_start_though_the_pool_is_empty() -> None:
    law = QueueHold()
    allowed = fed(law, [sample(at, 8, 24, 0.05) for at in range(14)], 32)
    assert allowed[9] == 32 and allowed[13] == 8 + 4


def test_a_first_sample_of_a_busy_server_is_no_cold_start() -> None:
    law = QueueHold()
    assert law.observe(sample(0, 60, 30, usage=0.9), 0) == 32 + 3


# -- growth, queue and the way down -----------------------------------------------------------


def test_an_empty_queue_and_used_slots_raise_the_target() -> None:
    assert warm(16.0).observe(sample(1, 16, 0, usage=0.6), 16) == 18
    assert warm(100.0).observe(sample(1, 100, 0, usage=0.6), 100) == 110


def test_with_a_known_fit_growth_is_a_quarter() -> None:
    law = warm(100.0)
    law.set_fit(200.0)
    assert law.observe(sample(1, 100, 0, usage=0.6), 100) == 125


def test_no_growth_where_the_pool_will_be_full_within_seconds() -> None:
    slow, fast = warm(100.0, usage=0.5), warm(100.0, usage=0.5)
    for at in range(1, 6):
        slow.observe(sample(at, 100, 0, 0.5 + 0.01 * at), 50)
        fast.observe(sample(at, 100, 0, 0.5 + 0.06 * at), 50)
    assert slow.observe(sample(6, 100, 0, 0.56), 100) == 110
    assert fast.observe(sample(6, 100, 0, 0.86), 100) == 100


def test_a_long_queue_lowers_the_target_at_once_to_running_plus_a_short_queue() -> None:
    law = QueueHold()
    law.observe(sample(0, 72, 0), 72)
    law._n = 150.0
    assert law.observe(sample(1, 72, 78), 150) == 72 + 15


def test_a_raise_waits_for_a_sample_taken_after_it() -> None:
    law = warm(50.0)
    assert law.observe(sample(1, 50, 0), 50, now=6.0) == 55
    assert law.observe(sample(2, 50, 0), 55, now=7.0) == 55
    assert law.observe(sample(7, 55, 0), 55, now=12.0) == 60


def test_no_growth_near_a_full_pool() -> None:
    law = warm(32.0, usage=0.98)
    assert law.observe(sample(1, 32, 0, 0.98), 32) == 32


def test_slots_left_unused_by_a_pause_do_not_shrink_the_target() -> None:
    law = QueueHold()
    law.observe(sample(0, 80, 16, 0.9), 96)
    law._n = 96.0
    assert law.observe(sample(1, 40, 0, 0.5), 40) == 96
    assert law.observe(sample(2, 0, 0, 0.0), 0) == 96


def test_manual_replaces_the_result_and_the_way_back_has_no_jump() -> None:
    law = QueueHold()
    law.observe(sample(0, 80, 16, 0.9), 96)
    law._n = 96.0
    law.set_manual(10)
    assert law.decide(0.0).allowed == 10
    for at in range(1, 5):
        assert law.observe(sample(at, 10, 0, 0.2), 10) == 10
    law.set_manual(None)
    assert law.decide(5.0).allowed < 20


def test_a_known_fit_is_the_start_and_bounds_growth() -> None:
    law = QueueHold()
    law.set_fit(75.0)
    assert law.decide(0.0).target == 75 + 15
    grown = followed(law, usage=0.4, seconds=60)
    assert 90 < max(grown) <= 1.25 * 75 + 5


def test_a_fit_that_starves_the_server_is_not_believed_for_ever() -> None:
    law = QueueHold()
    law.set_fit(20.0)
    grown = followed(law, usage=0.3, seconds=200)
    assert grown[60] <= 29
    assert grown[-1] > 100


def test_a_pool_that_was_full_and_empties_is_filled_again_beyond_the_fit() -> None:
    law = warm(40.0, usage=0.9)
    law.set_fit(32.0)
    assert law.observe(sample(1, 40, 0, 0.80), 40) <= 45
    law._n = 40.0
    assert law.observe(sample(2, 40, 0, 0.70), 40) == 60


@pytest.mark.parametrize(
    "change", [{"pool_tokens": 376_029}, {"launch": "another"}], ids=["capacity", "launch"]
)
def test_another_server_starts_over(change: dict[str, object]) -> None:
    law = QueueHold()
    before = replace(sample(0, 70, 14, 0.9), pool_tokens=159_277, launch="one")
    law.observe(before, 84)
    law._n = 84.0
    after = replace(before, at=1.0, running=0, queued=0, usage=0.0, **change)  # type: ignore[arg-type]
    assert law.observe(after, 0) == 32


def test_a_gap_freezes_then_holds_then_starts_over() -> None:
    law = QueueHold()
    law.observe(sample(0, 70, 14, 0.9), 84)
    law._n = 84.0
    assert law.decide(30.0).allowed == 84
    held = law.decide(61.0)
    assert held.is_held and held.allowed == 0 and "61 s" in held.reason
    assert law.observe(sample(70, 3, 0, 0.1), 3, now=70.0) == 32


def test_staleness_holds_in_manual_too() -> None:
    law = QueueHold()
    law.set_manual(150)
    law.observe(sample(0, 70, 80, 0.9), 150)
    assert law.decide(61.0).allowed == 0


def hot(at: float, retracted: int) -> ServerSample:
    return replace(sample(at, 70, 40, 0.98), retracted_total=retracted)


def test_three_full_samples_with_rising_retractions_hold_in_auto_only() -> None:
    for manual in (None, 150):
        law = QueueHold()
        law.observe(replace(sample(0, 70, 10, 0.9), retracted_total=5), 80)
        law.set_manual(manual)
        allowed = [law.observe(hot(at, 5 + int(at)), 110) for at in (1.0, 2.0, 3.0)]
        assert (allowed[-1] == 0) is (manual is None)
        assert allowed[0] > 0


def test_a_full_pool_without_retractions_does_not_hold() -> None:
    law = QueueHold()
    assert all(n > 0 for n in fed(law, [hot(at, 5) for at in range(6)], 110))


def test_a_hold_ends_after_ten_seconds_at_a_short_queue() -> None:
    law = QueueHold()
    fed(law, [hot(at, 5 + at) for at in range(5)], 110)
    assert law.decide(5.0).is_held
    assert law.observe(sample(6, 70, 2, 0.95), 72) == 0
    assert law.observe(sample(16, 70, 2, 0.95), 72) > 0


def test_a_queue_twice_as_long_as_wanted_for_ten_seconds_holds() -> None:
    law = QueueHold()
    samples = [sample(at, 70, 79, 0.93) for at in range(13)]
    allowed = fed(law, samples, 60)
    assert allowed[5] > 0 and allowed[-1] == 0
    assert "79 already wait" in law.decide(12.0).reason


def test_a_queue_of_what_was_sent_before_n_fell_does_not_hold() -> None:
    law = QueueHold()
    assert all(n > 0 for n in fed(law, [sample(at, 70, 79, 0.93) for at in range(13)], 150))


def test_a_sample_older_than_the_last_changes_nothing() -> None:
    law = QueueHold()
    now = law.observe(sample(5, 16, 0, 0.1), 16)
    assert law.observe(sample(4, 100, 100, 0.99), 16) == now


def test_suspended_allows_nothing_and_says_why() -> None:
    law = QueueHold()
    law.suspend("the engine is paused")
    assert law.decide(0.0).allowed == 0
    law.suspend(None)
    assert law.decide(0.0).allowed == 32


def test_the_target_stays_within_the_operators_bounds() -> None:
    law = QueueHold(ThrottleParameters(least=6, most=40))
    grown = fed(law, [sample(at, 400, 0, 0.1) for at in range(1, 60)], 400)
    assert max(grown) == 40
    assert QueueHold(ThrottleParameters(least=6)).observe(sample(0, 0, 5, 0.9), 5) == 6
