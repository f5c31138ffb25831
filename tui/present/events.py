"""Pane 6, events: what happened, newest first, each with what was observed."""

from kvctl.core.domain.events import Event
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import clock_time
from kvctl.tui.present.line import Ink, Line, Pen, plain
from kvctl.tui.present.view import View

_WIDE = 100
_LOUD = ("failed", "refused", "stalled", "lost")


def title(snapshot: Snapshot, *, is_short: bool = False) -> str:
    """Return the pane's title."""
    return "6 Events"


def body(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return the newest events that fit."""
    newest = snapshot.events[::-1]
    first = min(view.cursor, max(0, len(newest) - height)) if view.zoom == 6 else 0
    shown = newest[first : first + height]
    if not shown:
        return [plain(columns, " Nothing has happened yet.", Ink.DIM)]
    return [_line(event, columns) for event in shown]


def _line(event: Event, columns: int) -> Line:
    pen = Pen(columns)
    ink = Ink.WARN if event.kind in _LOUD else Ink.BOLD
    if columns >= _WIDE:
        pen.put(1, clock_time(event.wall), Ink.DIM)
        pen.put(11, event.kind, ink, 10)
        pen.put(22, event.text)
        return pen.line()
    pen.put(1, clock_time(event.wall), Ink.DIM)
    column = pen.put(10, event.kind, ink, 12)
    pen.put(column + 1, event.text)
    return pen.line()
