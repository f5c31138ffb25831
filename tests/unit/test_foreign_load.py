"""What is on a server and not ours, from counts that are never of one instant."""

from kvctl.core.domain.diagnosis.foreign_load import ForeignLoad


def seen(*readings: tuple[float, int, int]) -> int | None:
    """The count after readings of (at, total there, ours in flight)."""
    load = ForeignLoad()
    for at, total, own in readings:
        load.observe(at, total, own)
    return load.count


def test_before_a_reading_nothing_is_known() -> None:
    assert ForeignLoad().count is None


def test_an_answer_that_has_just_ended_here_is_not_anothers() -> None:
    assert seen((0, 4, 4), (1, 5, 4), (2, 4, 4)) == 0
    assert seen((0, 30, 30), (1, 30, 4)) == 0


def test_what_stays_over_in_three_readings_is() -> None:
    assert seen((0, 4, 4), (1, 35, 4), (2, 35, 4)) == 0
    assert seen((0, 4, 4), (1, 35, 4), (2, 35, 4), (3, 36, 4)) == 31


def test_what_has_gone_is_gone_at_once() -> None:
    assert seen((0, 35, 4), (1, 35, 4), (2, 35, 4), (3, 4, 4)) == 0


def test_our_own_of_long_ago_hide_nobody() -> None:
    assert seen((0, 30, 30), (10, 30, 2), (11, 30, 2), (12, 30, 2)) == 28


def test_without_requests_of_ours_every_reading_counts() -> None:
    assert seen((0, 0, 0), (1, 31, 0)) == 31


def test_a_pause_makes_it_unknown() -> None:
    load = ForeignLoad()
    load.observe(0, 31, 0)
    load.forget()
    assert load.count is None
