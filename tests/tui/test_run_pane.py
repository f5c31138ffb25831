"""Pane 3: what is left of a run, with what it may be off by."""

from dataclasses import replace

import pytest

from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.present.run import body
from kvctl.tui.present.view import View
from kvctl.tui.present.words import about, within
from tests.tui.mission import STEADY

HOUR, DAY = 3600.0, 86400.0


def steady() -> Run:
    assert STEADY.run is not None
    return STEADY.run


def sum_row(run: Run, columns: int) -> str:
    """The last row of the table, as text."""
    shot: Snapshot = replace(STEADY, run=run)
    lines = body(shot, View(), columns, 12)
    texts = ["".join(cell.text for cell in line.cells) for line in lines]
    return next(text for text in texts if text.startswith(" all"))


@pytest.mark.parametrize(
    ("middle", "half", "text"),
    [
        (34 * HOUR, 2 * HOUR, "34 ± 2 h"),
        (10 * HOUR, 0.4 * HOUR, "10.0 ± 0.4 h"),
        (52 * 60, 4 * 60, "52 ± 4 min"),
        (90.0, 12.0, "90 ± 12 s"),
        (12 * DAY, 1 * DAY, "12.0 ± 1.0 d"),
        (0.0, 0.0, "0 s"),
    ],
)
def test_a_duration_is_told_with_what_it_may_be_off_by(
    middle: float, half: float, text: str
) -> None:
    assert within(middle, middle - half, middle + half) == text
    assert len(text) <= 12, "it must fit its column"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "~0 s"),
        (59.0, "~59 s"),
        (1_344.0, "~22 m"),
        (3_599.0, "~1 h 00 m"),
        (9 * HOUR + 3_540, "~9 h 59 m"),
        (10 * HOUR, "~10 h"),
        (34.4 * HOUR, "~34 h"),
        (12 * DAY, "~288 h"),
    ],
)
def test_an_estimate_of_a_preset_fits_its_column(seconds: float, text: str) -> None:
    assert about(seconds) == text
    assert len(text) <= 9


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_the_whole_run_shows_its_interval(columns: int) -> None:
    run = replace(steady(), remaining_low_s=32 * HOUR, remaining_high_s=36.5 * HOUR)
    assert "34 ± 2 h" in sum_row(run, columns)


def test_it_says_that_the_end_is_not_yet_known_only_while_it_runs() -> None:
    young = replace(steady(), remaining_s=None, done_wall=None)
    assert sum_row(young, 200).rstrip().endswith("not known")
    held = replace(young, state=RunState.HOLDING, is_held=True)
    for silent in (held, replace(young, is_held=True), replace(young, target=0)):
        assert sum_row(silent, 200).rstrip().endswith("–")
