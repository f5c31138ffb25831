import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvctl.tui.present.line import Ink, Pen
from kvctl.tui.present.text import clip, literal, to_ascii, width, wrap, wrap_most

HOSTILE = Path(__file__).parents[1] / "data" / "cases" / "o17-hostile-text.log"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("ERR[/red] [bold]x[/] [@click=app.quit]", "ERR[/red] [bold]x[/] [@click=app.quit]"),
        ("\x1b[36m(RayWorker)\x1b[0m ERROR", "(RayWorker) ERROR"),
        ("\x1b]0;title\x07\x1b[2J\x1b[Hwiped?", "wiped?"),
        ("\x1b]52;c;ZXZpbA==\x1b\\after", "after"),
        ("\x9b31mred", "red"),
        ("progress 10%\rprogress 99%", "progress 99%"),
        ("progress 10%\rprogress 99%\r", "progress 99%"),
        ("nul\x00tab\tbel\x07", "nultab bel"),
        ("left \u202eRTL", "left RTL"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("👩\u200d👩\u200d👧", "👩👩👧"),
        ("🇩🇪", "DE"),
        ("👍🏽", "👍"),
        ("e\u0301", "é"),
        ("a\u0335\u0336\u0337", "a\u0335"),
        ("\u0301alone", "alone"),
        ("line\u2028sep", "line\ufffdsep"),
    ],
)
def test_text_from_outside_loses_what_a_terminal_would_act_on(raw: str, shown: str) -> None:
    assert literal(raw) == shown


def test_a_very_long_line_is_cut_with_an_ellipsis() -> None:
    shown = literal("x" * 20_000)
    assert len(shown) == 2001
    assert shown.endswith("…")


def test_a_long_progress_line_shows_its_last_state() -> None:
    assert literal("\r".join(f"step {n:05d}" for n in range(2000))) == "step 01999"


@given(ANY_TEXT)
def test_literal_text_has_no_control_character_and_is_stable(text: str) -> None:
    shown = literal(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cf") for c in shown)
    assert literal(shown) == shown


@given(ANY_TEXT, st.integers(0, 30))
def test_clipped_text_never_takes_more_cells_than_it_was_given(text: str, cells: int) -> None:
    assert width(clip(text, cells)) <= cells


@given(ANY_TEXT, st.integers(2, 30))
def test_wrapped_lines_never_take_more_cells_than_they_were_given(text: str, cells: int) -> None:
    assert all(width(line) <= cells for line in wrap(text, cells))


def test_wrapped_text_keeps_every_word_in_order() -> None:
    text = "KV-bound on B2: 159,277 tokens decode about 39 answers"
    assert " ".join(wrap(text, 12)) == text


@given(st.lists(st.tuples(st.integers(0, 40), ANY_TEXT), max_size=6), st.integers(1, 40))
def test_a_row_keeps_its_width_whatever_is_put_on_it(
    puts: list[tuple[int, str]], columns: int
) -> None:
    pen = Pen(columns)
    for column, text in puts:
        if column < columns:
            pen.put(column, text)
            pen.right(column, text, Ink.BOLD, 7)
    assert pen.line().width == columns


@given(ANY_TEXT)
def test_ascii_text_takes_the_same_cells(text: str) -> None:
    shown = literal(text)
    plain = to_ascii(shown)
    assert plain.isascii()
    assert len(plain) == width(shown)


def test_every_line_of_the_hostile_log_keeps_its_columns() -> None:
    for line in HOSTILE.read_bytes().decode("utf-8", "replace").split("\n"):
        pen = Pen(80)
        pen.put(1, line, room=70)
        pen.put(72, "│")
        drawn = pen.line()
        assert drawn.width == 80
        assert drawn.text.endswith("│       ")


def test_what_does_not_fit_in_so_many_lines_ends_with_a_mark() -> None:
    text = "one two three four five six"
    assert wrap_most(text, 10, 9) == wrap(text, 10)
    assert wrap_most(text, 10, 2) == ["one two", "three fou…"]
