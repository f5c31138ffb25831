"""Pane 1 while a server starts or stops: the stages with proof and time."""

from kvctl.core.domain.servers.server import Server, Stage, StageState
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import duration
from kvctl.tui.present.figures import MISSING, bar, seconds_short
from kvctl.tui.present.line import Cell, Ink, Line, Pen, plain, row
from kvctl.tui.present.text import literal, width, wrap
from kvctl.tui.present.view import View

MARKS = {
    StageState.TODO: "·",
    StageState.DOING: ">",
    StageState.DONE: "✓",
    StageState.FAILED: "✗",
    StageState.SKIPPED: "–",
}
_INKS = {
    StageState.TODO: Ink.DIM,
    StageState.DOING: Ink.BOLD,
    StageState.DONE: Ink.GOOD,
    StageState.FAILED: Ink.BAD,
    StageState.SKIPPED: Ink.DIM,
}


def position(server: Server) -> str:
    """Return which step goes on: "6 of 10"."""
    for number, stage in enumerate(server.stages, 1):
        if stage.state in (StageState.DOING, StageState.FAILED):
            return f"{number} of {len(server.stages)}"
    done = sum(s.state in (StageState.DONE, StageState.SKIPPED) for s in server.stages)
    return f"{done} of {len(server.stages)} done"


def title(snapshot: Snapshot, *, is_short: bool = False) -> str:
    """Return the pane's title: the step, and how old the last log line is."""
    server = snapshot.server
    if server is None or not server.stages:
        return "1 Start"
    word = "Stop" if server.state.value == "stopping" else "Start"
    parts = [f"1 {word}", position(server)]
    if server.last_log_at is not None:
        parts.append(f"log {seconds_short(max(0.0, snapshot.at - server.last_log_at))} ago")
    return " ── ".join(parts)


def body(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return one row a stage, the one that goes on with its bar."""
    server = snapshot.server
    if server is None or not server.stages:
        return [plain(columns, " The start has not reported a step yet.", Ink.DIM)]
    drawn: list[Line] = []
    for number, stage in enumerate(server.stages, 1):
        drawn += stage_lines(stage, number, snapshot, columns, wraps=False)
    if server.last_log_line and height > len(drawn):
        drawn.append(plain(columns, f" {server.last_log_line}", Ink.DIM))
    return drawn


def stage_lines(
    stage: Stage, number: int, snapshot: Snapshot, columns: int, *, wraps: bool
) -> list[Line]:
    """Return a stage: mark, number, name, time, then proof, progress or cause."""
    pen = Pen(columns)
    pen.put(1, MARKS[stage.state], _INKS[stage.state])
    pen.right(5, str(number), Ink.DIM)
    is_wide = columns >= 90
    name_room, end, column = (16, 27, 31) if is_wide else (12, 27, 29)
    pen.put(6, stage.name, Ink.BOLD if stage.state is StageState.DOING else Ink.PLAIN, name_room)
    pen.right(end, stage_time(stage, snapshot.at), room=10)
    if stage.progress_ratio is not None and stage.state is StageState.DOING:
        cells = 20 if is_wide else 10
        pen.put(column, bar(stage.progress_ratio, cells), Ink.BAR)
        column = pen.put(column + cells + 2, f"{stage.progress_ratio * 100:.0f} %", Ink.BOLD) + 2
    ink = Ink.BAD if stage.state is StageState.FAILED else Ink.PLAIN
    texts = wrap(stage.detail, columns - column - 1) or [""]
    pen.put(column, texts[0] if wraps else stage.detail, ink)
    rest = [row(columns, Cell(" " * column), Cell(text, ink)) for text in texts[1:4]]
    return [pen.line(), *(rest if wraps else ())]


def stage_time(stage: Stage, now: float) -> str:
    """Return how long a stage took or takes, "" before it begins."""
    if stage.started_at is None:
        return ""
    end = now if stage.ended_at is None else stage.ended_at
    return seconds_short(max(0.0, end - stage.started_at))


def compact(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return done stages on a line, the one that goes on with its bar, those to come."""
    server = snapshot.server
    if server is None or not server.stages:
        return body(snapshot, view, columns, height)
    past = [s for s in server.stages if s.state in (StageState.DONE, StageState.SKIPPED)]
    now = [s for s in server.stages if s.state in (StageState.DOING, StageState.FAILED)]
    todo = [s for s in server.stages if s.state is StageState.TODO]
    drawn = _in_a_row(past, columns) + [_doing_line(s, snapshot, columns) for s in now]
    drawn += _in_a_row(todo, columns)
    if len(drawn) < height and server.last_log_line:
        drawn.append(plain(columns, f" {server.last_log_line}", Ink.DIM))
    return drawn


def _in_a_row(stages: list[Stage], columns: int) -> list[Line]:
    if not stages:
        return []
    pen = Pen(columns)
    column = 1
    for stage in stages:
        name = literal(stage.name)
        if column + width(name) + 2 > columns:
            break
        column = pen.put(column, f"{MARKS[stage.state]} ", _INKS[stage.state])
        column = pen.put(column, name) + 2
    return [pen.line()]


def _doing_line(stage: Stage, snapshot: Snapshot, columns: int) -> Line:
    pen = Pen(columns)
    pen.put(1, MARKS[stage.state], _INKS[stage.state])
    pen.put(3, stage.name, Ink.BOLD, 12)
    column = 15
    if stage.progress_ratio is not None and stage.state is StageState.DOING:
        cells = max(10, columns - 50)
        pen.put(15, bar(stage.progress_ratio, cells), Ink.BAR)
        pen.right(19 + cells, f"{stage.progress_ratio * 100:.0f}", Ink.BOLD)
        column = pen.put(20 + cells, "%") + 2
    elapsed = duration(snapshot.at - stage.started_at) if stage.started_at is not None else MISSING
    ink = Ink.BAD if stage.state is StageState.FAILED else Ink.PLAIN
    pen.put(column, stage.detail or elapsed, ink)
    if stage.detail and column + width(literal(stage.detail)) + len(elapsed) + 2 < columns:
        pen.right(columns - 1, elapsed, Ink.DIM)
    return pen.line()
