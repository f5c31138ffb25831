"""The overview: every pane at once, arranged for the size the terminal has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvctl.core.domain.servers.server import ServerState
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.present import (
    decode,
    events,
    failure,
    footer,
    gpus,
    gpus_compact,
    header,
    holders,
    presets,
    run,
    server,
    small,
    stages,
    verdict,
)
from kvctl.tui.present.footer import Hint
from kvctl.tui.present.line import Line, beside, blank, fitted, in_ascii, plain, rule, sided
from kvctl.tui.present.view import View
from kvctl.tui.present.words import is_changing

WIDE, TALL = 112, 34
COMPACT_WIDTH, COMPACT_HEIGHT = 72, 20
SMALL_WIDTH, SMALL_HEIGHT = 48, 13
TINY_WIDTH, TINY_HEIGHT = 36, 8

Drawer = Callable[[Snapshot, View, int, int], list[Line]]


class Titled(Protocol):
    """The title of a pane, long or short."""

    def __call__(self, snapshot: Snapshot, *, is_short: bool = False) -> str:
        """Return it."""


@dataclass(frozen=True, slots=True)
class Pane:
    """One pane with its three renderings."""

    title: Titled
    body: Drawer
    compact: Drawer
    zoomed: Drawer


_DECODE = Pane(decode.title, decode.body, decode.compact, decode.body)
_STAGES = Pane(stages.title, stages.body, stages.compact, stages.body)
_FAILURE = Pane(failure.title, failure.body, failure.body, failure.body)
_GPUS = Pane(gpus.title, gpus.body, gpus_compact.compact, holders.zoomed)
_RUN = Pane(run.title, run.body, run.body, run.body)
_SERVER = Pane(server.title, server.body, server.body, server.zoomed)
_PRESETS = Pane(presets.title, presets.body, presets.body, presets.body)
_EVENTS = Pane(events.title, events.body, events.body, events.body)


@dataclass(frozen=True, slots=True)
class Size:
    """Columns and rows of the screen."""

    columns: int
    rows: int


def pane(snapshot: Snapshot, number: int) -> Pane:
    """Return a pane by its key; the first one follows the server's state."""
    if number == 1:
        return _first(snapshot)
    return {2: _GPUS, 3: _RUN, 4: _SERVER, 5: _PRESETS, 6: _EVENTS}[number]


def _first(snapshot: Snapshot) -> Pane:
    shown = snapshot.server
    if shown is not None and shown.state is ServerState.FAILED and not is_changing(shown):
        return _FAILURE
    return _STAGES if is_changing(shown) else _DECODE


def overview(
    snapshot: Snapshot, view: View, size: Size, hints: Sequence[Hint], flash: str = ""
) -> list[Line]:
    """Return exactly `size.rows` lines of exactly `size.columns` cells."""
    if size.columns <= 0 or size.rows <= 0:
        return []
    lines = _arranged(snapshot, view, size, hints, flash)
    lines = fitted(lines, size.rows, size.columns)
    return in_ascii(lines) if view.is_ascii else lines


def _arranged(
    snapshot: Snapshot, view: View, size: Size, hints: Sequence[Hint], flash: str
) -> list[Line]:
    columns, rows = size.columns, size.rows
    if columns < TINY_WIDTH or rows < TINY_HEIGHT:
        return small.one(snapshot, view, columns, rows)
    last = plain(columns, f" {flash}") if flash else footer.line(hints, columns)
    if columns < SMALL_WIDTH or rows < SMALL_HEIGHT:
        return [*small.tiny(snapshot, view, columns, rows - 1), last]
    if columns < COMPACT_WIDTH or rows < COMPACT_HEIGHT:
        return [*small.small(snapshot, view, columns, rows - 1), last]
    if view.zoom is not None:
        return [*_zoomed(snapshot, view, columns, rows - 1), last]
    if columns < WIDE or rows < TALL:
        return [*_compact(snapshot, view, columns, rows - 1), last]
    note = verdict.note_line(snapshot, view, columns, flash)
    return [*_wide(snapshot, view, columns, rows - 2), note, footer.line(hints, columns)]


def _zoomed(snapshot: Snapshot, view: View, columns: int, rows: int) -> list[Line]:
    number = view.zoom or 1
    shown = pane(snapshot, number)
    top = header.two_lines(snapshot, view, columns)
    if columns >= WIDE:
        top = [header.one_line(snapshot, view, columns)]
    top += verdict.lines(snapshot, view, columns)
    room = rows - len(top) - 2
    inner = fitted(shown.zoomed(snapshot, view, columns - 2, room), room, columns - 2)
    title, foot = shown.title(snapshot), f"{number} or Esc: back"
    return [*top, rule(columns, title, "┌┐"), *sided(inner, columns), rule(columns, foot, "└┘")]


def _wide(snapshot: Snapshot, view: View, columns: int, rows: int) -> list[Line]:
    """Return the panes in frames: two beside each other, the run, two beside, events."""
    top = [header.one_line(snapshot, view, columns), *verdict.lines(snapshot, view, columns)]
    parts = len(snapshot.run.partitions) if snapshot.run else 0
    first, table, middle, feed = _heights(
        rows - len(top) - 5, parts, _wanted(snapshot, view, columns)
    )
    drawn = top + _pair(snapshot, view, columns, first, {1: "┌┐", 2: "┌┐"})
    drawn += _framed(snapshot, view, columns, table, 3)
    drawn += _pair(snapshot, view, columns, middle, {4: "├┐", 5: "┌┤"})
    drawn += _framed(snapshot, view, columns, feed, 6)
    return [*drawn, rule(columns, "", "└┘")]


def _heights(rows: int, partitions: int, wanted: int) -> tuple[int, int, int, int]:
    """Return rows of the four bands: what is needed first, the rest to settings and events."""
    first, middle, feed = 10, 6, 2
    table = min(max(3, partitions + 2), max(3, rows - first - middle - feed))
    rest = rows - first - table - middle - feed
    if rest < 0:
        middle = max(3, middle + rest)
        rest = rows - first - table - middle - feed
    grown = max(0, min(wanted - middle, rest - 6))
    return first, table, middle + grown, max(1, feed + rest - grown)


def _wanted(snapshot: Snapshot, view: View, columns: int) -> int:
    """Return the rows that settings and presets could fill."""
    half = columns // 2 - 2
    return max(len(pane(snapshot, n).body(snapshot, view, half, 99)) for n in (4, 5))


def _pair(
    snapshot: Snapshot, view: View, columns: int, rows: int, corners: dict[int, str]
) -> list[Line]:
    """Return two panes beside each other; `corners` gives each one's upper corners."""
    boxes = []
    for number, cells in zip(corners, (columns // 2, columns - columns // 2), strict=True):
        shown = pane(snapshot, number)
        inner = fitted(shown.body(snapshot, view, cells - 2, rows), rows, cells - 2)
        boxes.append([rule(cells, shown.title(snapshot), corners[number]), *sided(inner, cells)])
    return beside(*boxes)


def _framed(snapshot: Snapshot, view: View, columns: int, rows: int, number: int) -> list[Line]:
    shown = pane(snapshot, number)
    inner = fitted(shown.body(snapshot, view, columns - 2, rows), rows, columns - 2)
    return [rule(columns, shown.title(snapshot), "├┤"), *sided(inner, columns)]


def _compact(snapshot: Snapshot, view: View, columns: int, rows: int) -> list[Line]:
    """Return the panes one below another, without side frames."""
    top = header.two_lines(snapshot, view, columns)
    top += verdict.lines(snapshot, view, columns)
    drawn = list(top)
    for number, height in _compact_heights(snapshot, view, columns, rows - len(top)):
        shown = pane(snapshot, number)
        body = shown.compact(snapshot, view, columns, height)
        drawn.append(rule(columns, shown.title(snapshot, is_short=True)))
        drawn += fitted(body, height, columns) if number != 2 else body[:height]
    return drawn[:rows] + [blank(columns)] * (rows - len(drawn))


def _compact_heights(
    snapshot: Snapshot, view: View, columns: int, rows: int
) -> list[tuple[int, int]]:
    """Return rows of each pane; when there is room more of each, then settings and presets."""
    parts = len(snapshot.run.partitions) + 1 if snapshot.run else 1
    odd = len(gpus_compact.compact(snapshot, view, columns, 8))
    heights = {1: 5, 2: odd, 3: parts, 6: 1}
    short = rows - sum(heights.values()) - len(heights)
    if short < 0:
        heights[3] = max(3, heights[3] + short)
        short = rows - sum(heights.values()) - len(heights)
    if short < 0:
        heights[2] = max(1, heights[2] + short)
    _grow(heights, rows)
    return sorted(heights.items())


def _grow(heights: dict[int, int], rows: int) -> None:
    """Give spare rows away: two more events, decode, the server, the presets, then events."""
    for number, wanted in ((6, 2), (1, 8), (3, heights[3] + 1), (4, 4), (5, 5), (6, 99)):
        title = 0 if number in heights else 1
        spare = rows - sum(heights.values()) - len(heights) - title
        more = min(wanted - heights.get(number, 0), spare)
        if more > 0 and (number in heights or more >= 3):
            heights[number] = heights.get(number, 0) + more
