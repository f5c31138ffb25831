"""The header: who and what runs, what this panel is, and the clock of the data."""

import time

from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.domain.servers.server import Server
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import thousands
from kvctl.tui.present.line import Cell, Ink, Line, Pen
from kvctl.tui.present.text import literal, width
from kvctl.tui.present.view import View
from kvctl.tui.present.words import moment, run_word, server_age, server_word

_ALARMING = ("FAILED", "STALLED", "UNREACHABLE")


def one_line(snapshot: Snapshot, view: View, columns: int) -> Line:
    """Return the header where host, server and run share a line."""
    pen = Pen(columns)
    end = _right(pen, snapshot, view, weekday=False)
    room = end - 1
    shapes = [_cells(snapshot, model=m, host=h) for m, h in ((True, True), (False, True))]
    shapes += [_shortest(snapshot, host=True), _shortest(snapshot, host=False)]
    fitting = [cells for cells in shapes if sum(width(c.text) for c in cells) <= room]
    pen.cells(1, fitting[0] if fitting else shapes[-1], room)
    return pen.line()


def two_lines(snapshot: Snapshot, view: View, columns: int) -> list[Line]:
    """Return the header on narrow screens: host and server, then the run."""
    first = Pen(columns)
    end = _right(first, snapshot, view, weekday=True)
    cells = [*_host(snapshot), *_server(snapshot.server, snapshot, model=True)]
    if sum(width(cell.text) for cell in cells) > end - 1:
        cells = [*_host(snapshot), *_server(snapshot.server, snapshot, model=False)]
    first.cells(1, cells, end - 1)
    second = Pen(columns)
    second.cells(1, _run_line(snapshot, columns))
    return [first.line(), second.line()]


def _cells(snapshot: Snapshot, *, model: bool, host: bool) -> list[Cell]:
    cells = _host(snapshot) if host else []
    cells += _server(snapshot.server, snapshot, model=model)
    cells.append(Cell(" │ ", Ink.FRAME))
    if snapshot.run is None:
        return [*cells, Cell("no run")]
    return [*cells, Cell("run "), *_run(snapshot.run, snapshot)]


def _shortest(snapshot: Snapshot, *, host: bool) -> list[Cell]:
    """Return the header where marks take the room: numbers without their words."""
    cells = _host(snapshot) if host else []
    cells += [*_server(snapshot.server, snapshot, model=False), Cell(" │ ", Ink.FRAME)]
    run = snapshot.run
    if run is None:
        return [*cells, Cell("no run")]
    mode = "AUTO" if run.is_auto else "MANUAL"
    word = Cell(run_word(snapshot, run), Ink.BOLD)
    counts = Cell(f"{run.in_flight} of {_slots(run)}", Ink.BOLD)
    return [*cells, Cell(f"{literal(run.name)} · "), word, Cell(f" · {mode} "), counts]


def _host(snapshot: Snapshot) -> list[Cell]:
    return [Cell(literal(snapshot.host), Ink.BOLD), Cell(" │ ", Ink.FRAME)]


def _server(server: Server | None, snapshot: Snapshot, *, model: bool) -> list[Cell]:
    if server is None:
        return [Cell("no server")]
    parts: list[str] = []
    if model and server.model:
        ranks = f" tp{server.tp_size}" if server.tp_size else ""
        ranks += f" dp{server.dp_size}" if (server.dp_size or 1) > 1 else ""
        parts.append(literal(server.model.rstrip("/").rsplit("/", 1)[-1]) + ranks)
    parts.append(literal(server.preset or server.name))
    word = server_word(server)
    ink = Ink.ALARM if word in _ALARMING else Ink.BOLD
    age = server_age(snapshot, server)
    return [Cell(" · ".join(parts) + " · "), Cell(word, ink), Cell(f" {age}")]


def _run(run: Run, snapshot: Snapshot) -> list[Cell]:
    mode = "AUTO" if run.is_auto else "MANUAL"
    return [
        Cell(literal(run.name), Ink.BOLD),
        Cell(" · "),
        Cell(run_word(snapshot, run), Ink.BOLD),
        Cell(f" · slots {mode} "),
        Cell(f"{_slots(run):>3}", Ink.BOLD),
        Cell(", in flight "),
        Cell(f"{run.in_flight:>3}", Ink.BOLD),
    ]


def _slots(run: Run) -> str:
    """Return the target; "–" while a hold leaves none."""
    return str(run.target) if run.target or run.state is not RunState.HOLDING else "–"


def _run_line(snapshot: Snapshot, columns: int) -> list[Cell]:
    run = snapshot.run
    if run is None:
        return [Cell("no run · s starts one")]
    when = moment(run.done_wall, snapshot.wall)
    count = f"  {thousands(run.done)} of {thousands(run.total)} · {when}"
    cells = _run(run, snapshot)
    if sum(width(cell.text) for cell in cells) + width(count) > columns - 1:
        count = f" · {100 * run.done // run.total} %" if run.total else ""
    return [*cells, Cell(count)]


def _right(pen: Pen, snapshot: Snapshot, view: View, *, weekday: bool) -> int:
    """Put marks and the clock at the right edge; return the column where they begin."""
    pattern = "%a %H:%M:%S" if weekday else "%H:%M:%S"
    clock = time.strftime(pattern, time.localtime(snapshot.wall))
    start = pen.width - 1 - len(clock)
    pen.put(start, clock, Ink.DIM if view.lost else Ink.PLAIN)
    for mark in reversed(marks(snapshot, view)):
        start -= width(mark) + 3
        pen.put(start, f" {mark} ", Ink.REVERSE)
    return start - 1


def marks(snapshot: Snapshot, view: View) -> list[str]:
    """Return what stands in reverse video: how far this screen may be taken for the live host."""
    others = [name for name in snapshot.operators if name != view.operator]
    found = []
    if view.lost:
        found.append(view.lost)
    if view.is_held:
        found.append("HELD DISPLAY")
    if view.is_locked:
        found.append("READ-ONLY")
    if snapshot.is_simulated:
        found.append("SIMULATED")
    if len(snapshot.operators) > 1 and others:
        found.append(f"2nd operator: {literal(others[0])}")
    return found
