"""Lines for people: whatever stands in names and logs, they stay lines."""

from dataclasses import replace
from typing import Any

import pytest
from tests.tui.mission import NOTHING, STEADY

from kvctl.core.cli.panel import is_ascii_locale
from kvctl.core.cli.progress import event_line
from kvctl.core.cli.render import facts, status_lines, table, watch_line
from kvctl.core.cli.watching import thinned
from kvctl.core.daemon.news import events_since
from kvctl.core.domain.events import Event
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.snapshot import Snapshot

HOSTILE = "[red]x[/] \x1b[2J\x1b]0;title\x07 \u202eabc\r\nsecond\x00"


def hostile() -> Snapshot:
    """The steady picture with hostile text wherever text comes from outside."""
    assert STEADY.run is not None and STEADY.server is not None
    return replace(
        STEADY,
        host=HOSTILE,
        servers=(replace(STEADY.server, model=HOSTILE, name=HOSTILE, state_reason=HOSTILE),),
        run=replace(STEADY.run, name=HOSTILE, reason=HOSTILE, output=HOSTILE),
        verdicts=(replace(STEADY.verdicts[0], sentence=HOSTILE),),
        busy_command=HOSTILE,
        gpus=replace(
            STEADY.gpus,
            holders=tuple(replace(h, title=HOSTILE, user=HOSTILE) for h in STEADY.gpus.holders),
        ),
    )


def test_hostile_text_is_shown_literally_and_controls_nothing() -> None:
    lines = [*status_lines(hostile()), watch_line(hostile())]
    lines += [f"{name}: {value}" for name, value in facts(hostile()).items()]
    lines.append(event_line(Event(1.0, 2.0, "log", HOSTILE)))
    text = "\n".join(lines)
    assert "[red]x[/]" in text
    assert all(line.isprintable() for line in lines), [x for x in lines if not x.isprintable()]


def test_an_empty_host_says_what_to_do() -> None:
    text = "\n".join(status_lines(NOTHING))
    assert "kvctl server start PRESET" in text
    assert "kvctl run start FILE" in text
    assert "No NVIDIA driver" in text


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert list(table(("a", "b"), [("long", "x"), ("y", "z")])) == [
        "  a     b",
        "  long  x",
        "  y     z",
    ]


def test_watching_keeps_to_its_interval_and_shows_the_first_at_once() -> None:
    moments = [replace(NOTHING, at=at) for at in (0.0, 0.5, 1.9, 2.0, 2.5, 4.1)]
    assert [snapshot.at for snapshot in thinned(moments, 2.0)] == [0.0, 2.0, 4.1]


def test_new_events_are_told_once_also_when_old_ones_were_dropped() -> None:
    events = tuple(Event(float(n), float(n), "note", str(n)) for n in range(6))
    before, after = replace(NOTHING, events=events[:3]), replace(NOTHING, events=events[2:])
    assert events_since(before, after) == events[3:]
    assert events_since(NOTHING, before) == events[:3]
    assert events_since(before, replace(NOTHING, events=events[4:])) == events[4:]
    assert events_since(after, after) == ()


@pytest.mark.parametrize(
    ("environ", "ascii_only"),
    [
        ({}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, True),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "", "LC_ALL": "C.utf8"}, False),
    ],
    ids=str,
)
def test_a_locale_without_utf_8_draws_ascii(environ: dict[str, str], ascii_only: bool) -> None:
    assert is_ascii_locale(environ) is ascii_only


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"remaining_low_s": 120_000.0, "remaining_high_s": 127_000.0},
            "remaining 1 d 10 h (1 d 09 h to 1 d 11 h)  done about",
        ),
        (
            {
                "remaining_s": None,
                "done_wall": None,
                "remaining_reason": "B2 has 2 of the 5 answers",
            },
            "remaining not yet known (B2 has 2 of the 5 answers)  output",
        ),
        (
            {
                "state": RunState.HOLDING,
                "is_held": True,
                "remaining_s": None,
                "remaining_reason": "nothing is sent now",
            },
            "remaining – (nothing is sent now)  output",
        ),
    ],
)
def test_what_is_left_comes_with_its_interval_or_the_reason_why_it_is_not_known(
    change: dict[str, Any], line: str
) -> None:
    assert STEADY.run is not None
    shown = "\n".join(status_lines(replace(STEADY, run=replace(STEADY.run, **change))))
    assert line in shown
    assert ("(held)" in shown) == change.get("is_held", False)
