import pytest

from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.snapshot import Series
from kvctl.tui.present.figures import Reading, Slot, bar, put_figure, rounded_tokens, spark
from kvctl.tui.present.line import Pen


@pytest.mark.parametrize(
    ("ratio", "cells", "drawn"),
    [
        (0.93, 31, "█" * 28 + "▊··"),
        (90.6 / 95.6, 14, "█" * 13 + "▎"),
        (1604 / 5600, 20, "█████▋" + "·" * 14),
        (12 / 20_000, 20, "·" * 20),
        (1.0, 4, "████"),
        (1.7, 4, "████"),
        (-0.2, 4, "····"),
        (None, 4, "····"),
    ],
)
def test_a_bar_is_exact_to_an_eighth_of_a_cell(ratio: float | None, cells: int, drawn: str) -> None:
    assert bar(ratio, cells) == drawn


def series(*values: float | None) -> Series:
    return Series(600 / len(values), values)


@pytest.mark.parametrize(
    ("values", "top", "drawn"),
    [
        ((0, 0, 0, 0), None, "▁▁▁▁"),
        ((38, 38, 38, 38), 46, "▇▇▇▇"),
        ((8, 8, 4, 8), 46, "▂▂▁▂"),
        ((0, 50, 100, None), 100, "▁▅█ "),
        ((600, 610, 305, 0), None, "██▅▁"),
    ],
)
def test_a_sparkline_has_a_fixed_scale_from_zero_and_leaves_gaps(
    values: tuple[float | None, ...], top: float | None, drawn: str
) -> None:
    assert spark(series(*values), 4, top) == drawn


def test_a_short_history_stands_at_the_right_end_of_the_ten_minutes() -> None:
    assert spark(Series(60.0, (5.0, 5.0)), 10, 10) == " " * 8 + "▅▅"


def test_a_history_fills_more_cells_than_it_has_points() -> None:
    assert spark(Series(60.0, (5.0,) * 10), 25, 10) == "▅" * 25


def drawn(figure: Figure, now: float = 100.0) -> str:
    pen = Pen(24)
    put_figure(pen, Slot(10, 7, "tok/s"), Reading(figure, now))
    return pen.line().text.rstrip()


def test_a_fresh_figure_is_right_aligned_with_its_unit() -> None:
    assert drawn(Figure(640.4, "/v1/loads", 99.6)) == "       640 tok/s"


def test_an_old_figure_carries_its_age_in_the_unit_field() -> None:
    assert drawn(Figure(640.4, "/v1/loads", 77.0)) == "       640 23 s"


def test_a_missing_figure_is_a_dash_in_the_same_field_and_never_zero() -> None:
    assert drawn(unknown("no server answers yet")) == "         –"


@pytest.mark.parametrize(
    ("tokens", "text"), [(116_000, "116 K"), (159_277, "159,277"), (None, "–"), (0, "0")]
)
def test_a_round_pool_is_a_published_one(tokens: int | None, text: str) -> None:
    assert rounded_tokens(tokens) == text
