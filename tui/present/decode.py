"""Pane 1, decoding: pool, running, queued, both throughputs, each with history and meaning."""

from collections.abc import Callable
from dataclasses import dataclass

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.servers.server import Decode
from kvctl.core.domain.snapshot import Series, Snapshot
from kvctl.core.domain.units import duration, kilo_tokens, thousands
from kvctl.tui.present.figures import (
    LOADS_STALE_S,
    METRICS_STALE_S,
    MISSING,
    Reading,
    Slot,
    bar,
    put_figure,
    seconds_short,
    spark,
)
from kvctl.tui.present.line import Cell, Ink, Line, Pen, plain
from kvctl.tui.present.line import row as row_of
from kvctl.tui.present.view import View
from kvctl.tui.present.words import minute, open_partition, wall_of

EFFECTIVE_STALE_S = 900.0


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of the pane."""

    label: str
    figure: Figure
    unit: str = ""
    series: str = ""
    top: float | None = None
    """Upper end of the sparkline; None for the largest value of the window."""
    note: str = ""
    more: str = ""
    """A second note, for screens of one column."""
    scale: float = 1.0
    decimals: int = 0
    stale_after: float = LOADS_STALE_S


def title(snapshot: Snapshot, *, is_short: bool = False) -> str:
    """Return the pane's title: whether figures may be quoted, and how old they are."""
    server = snapshot.server
    if server is None:
        return "1 Decode ── no server"
    decode = server.decode
    parts = ["1 Decode"]
    if decode.is_frozen:
        parts.append("frozen: counts of the moment of the pause")
    elif decode.steady_since is not None:
        parts.append(f"steady since {minute(wall_of(snapshot, decode.steady_since))}")
    elif decode.running.value:
        parts.append("not steady yet")
    source = decode.running.source
    if source:
        name = source.rsplit("/", 1)[-1] if is_short else source
        parts.append(f"{name} {seconds_short(decode.running.age_s(snapshot.at))} ago")
    return " ── ".join(parts)


def body(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return the pane for wide screens: figure, history, meaning."""
    server = snapshot.server
    if server is None:
        return _no_server(columns)
    decode = server.decode
    rows = _rows(snapshot, decode)
    drawn = [_pool_line(snapshot, decode, columns), _pool_note(snapshot, decode, columns)]
    if height > len(rows) + len(drawn):
        drawn.append(_head(columns))
    draw = _row_drawer(snapshot, columns)
    drawn += [draw(row) for row in rows]
    if height > len(drawn) + 1:
        drawn += [draw(row) for row in _more_rows(snapshot, decode)]
    return drawn


def compact(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return the pane for screens of one column."""
    server = snapshot.server
    if server is None:
        return _no_server(columns)
    decode = server.decode
    drawn = [_compact_pool(snapshot, decode, columns)]
    rows = _rows(snapshot, decode)
    return drawn + [_compact_row(row, snapshot, columns) for row in rows]


def _no_server(columns: int) -> list[Line]:
    """Return what can be done where no server runs."""
    drawn = [plain(columns, " No server answers here.", Ink.BOLD)]
    for key, text in (
        ("S", "start one from a preset; every check comes first"),
        ("A", "watch one that runs already, by URL or pid"),
        ("s", "open a run; it waits until a server is ready"),
    ):
        drawn.append(row_of(columns, Cell(f"  {key}", Ink.KEY), Cell(f"  {text}")))
    return drawn


def _rows(snapshot: Snapshot, decode: Decode) -> list[Row]:
    run = snapshot.run
    slots = float(run.target) if run and run.target else None
    each = _each(decode, " tok/s each")
    return [
        Row("running", decode.running, "", "running", slots, _fit(run), each),
        Row("queued", decode.queued, "", "queued", slots, _wait(decode), _retraction(decode)),
        Row("generation", decode.generation_tokens_per_s, "tok/s", "generation", None,
            _each(decode, " a request"), "server, now"),
        _effective(decode),
        Row("retracted", decode.retracted_per_min, "/min", "retracted", None, _redone(decode),
            stale_after=METRICS_STALE_S),
        Row("answer", decode.answer_s, "s", "answer", None, _answer(decode),
            stale_after=EFFECTIVE_STALE_S),
        _length(run, snapshot),
    ]  # fmt: skip


def _more_rows(snapshot: Snapshot, decode: Decode) -> list[Row]:
    """Return what there is room for when the pane is zoomed."""
    old = METRICS_STALE_S
    return [
        Row("prefill", decode.prefill_tokens_per_s, "tok/s", stale_after=old),
        Row("prefill time", decode.prefill_share, "%", scale=100.0),
        Row(
            "completed",
            decode.completed_per_s,
            "/s",
            decimals=2,
            note=_effective(decode).note,
            stale_after=EFFECTIVE_STALE_S,
        ),
        Row("cache hit", decode.cache_hit_ratio, "%", scale=100.0, stale_after=old),
        Row("accepted", decode.accept_length, "tok", decimals=2, stale_after=old),
        Row("max running", decode.max_running, ""),
    ]


def _effective(decode: Decode) -> Row:
    count, window = decode.completed_in_window, decode.effective_window_s
    short = more = ""
    if count is not None and window:
        short = f"{count} answers, {_span(window)}"
        more = f"{count} answers written in {_span(window)}"
    return Row("effective", decode.effective_tokens_per_s, "tok/s", "effective", None, short, more,
               stale_after=EFFECTIVE_STALE_S)  # fmt: skip


def _span(seconds: float) -> str:
    """Return a window in one unit: "10 min", "40 s"."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _length(run: Run | None, snapshot: Snapshot) -> Row:
    part = open_partition(run)
    if part is None or part.mean_tokens is None:
        return Row("length", Figure(None, "journal", None, "no answer yet"), "tok", "length")
    word = "limit" if (part.max_new_tokens or 0) < 10_000 else "max"
    limit = f", {word} {kilo_tokens(part.max_new_tokens)}" if part.max_new_tokens else ""
    note = f"p95 {kilo_tokens(part.p95_tokens)}{limit}" if part.p95_tokens else limit[2:]
    figure = Figure(part.mean_tokens, "journal", snapshot.at)
    return Row("length", figure, "tok", "length", part.max_new_tokens, note)


def _fit(run: Run | None) -> str:
    part = open_partition(run)
    if run is None or run.fit_at_mean is None:
        return ""
    at = f" at {kilo_tokens(part.mean_tokens)}" if part and part.mean_tokens else ""
    if sum(one.in_flight > 0 for one in run.partitions) > 1:
        at = " in this mix"  # of lengths: pane 5 tells it for the largest partition alone
    return f"~{run.fit_at_mean:.0f} fit{at}"


def _wait(decode: Decode) -> str:
    wait = decode.queue_wait_s.value
    return "" if wait is None else f"waits ~{duration(wait)}"


def _each(decode: Decode, unit: str) -> str:
    rate, running = decode.generation_tokens_per_s.value, decode.running.value
    return f"{rate / running:.1f}{unit}" if rate and running else ""


def _retraction(decode: Decode) -> str:
    rate = decode.retracted_per_min.value
    return "" if rate is None else f"{rate:.0f} retracted/min"


def _redone(decode: Decode) -> str:
    if not decode.retracted_per_min.known:
        return decode.retracted_per_min.reason or ""
    redone = decode.recomputed_tokens_per_min.value
    return "" if redone is None else f"{kilo_tokens(redone)} tokens redone"


def _answer(decode: Decode) -> str:
    whole, wait = decode.answer_s.value, decode.queue_wait_s.value
    if whole is None or wait is None or wait > whole:
        return ""
    return f"{wait:.0f} wait + {whole - wait:.0f} decode"


def _head(columns: int) -> Line:
    pen = Pen(columns)
    pen.right(18, "now", Ink.DIM)
    pen.put(26, "10 min", Ink.DIM)
    return pen.line()


def _usage(snapshot: Snapshot, decode: Decode) -> Reading:
    return Reading(decode.token_usage, snapshot.at, scale=100.0)


def _pool_line(snapshot: Snapshot, decode: Decode, columns: int) -> Line:
    pen = Pen(columns)
    pen.put(1, "KV pool")
    put_figure(pen, Slot(18, 7, "%"), _usage(snapshot, decode))
    pen.put(26, bar(decode.token_usage.value, columns - 27), Ink.BAR)
    return pen.line()


def _pool_note(snapshot: Snapshot, decode: Decode, columns: int) -> Line:
    pen = Pen(columns)
    text = _tokens(decode)
    if decode.used_tokens.value and decode.running.value:
        text += f" · {kilo_tokens(decode.used_tokens.value / decode.running.value)} each"
    pool = f"{decode.worst_pool} pool, " if decode.worst_pool not in (None, "full") else ""
    # The tokens are those of all ranks; the bar above is the fullest one's.
    fullest = f" · {decode.worst_rank} fullest" if decode.worst_rank else ""
    end = pen.put(26, f"{pool}{text}{fullest}", Ink.DIM)
    if decode.imbalance:
        pen.put(end, f" · {decode.imbalance}", Ink.WARN, max(0, columns - end - 1))
    return pen.line()


def _tokens(decode: Decode) -> str:
    used, pool = decode.used_tokens, decode.pool_tokens
    if not used.known and not pool.known:
        return used.reason or MISSING
    return f"{thousands(used.value)} of {thousands(pool.value)}"


def _row_drawer(snapshot: Snapshot, columns: int) -> Callable[[Row], Line]:
    cells = max(10, 10 + columns - 58)

    def draw(row: Row) -> Line:
        pen = Pen(columns)
        pen.put(1, row.label)
        _put(pen, Slot(18, 7, row.unit), row, snapshot)
        pen.put(26, spark(_series(snapshot, row), cells, row.top), Ink.SPARK)
        pen.put(28 + cells, _note(row, row.note), Ink.DIM)
        return pen.line()

    return draw


def _series(snapshot: Snapshot, row: Row) -> Series | None:
    return snapshot.series.get(row.series)


def _note(row: Row, text: str) -> str:
    """Return the meaning of a figure, or why it is missing."""
    return text if row.figure.known or text else row.figure.reason or ""


def _put(pen: Pen, slot: Slot, row: Row, snapshot: Snapshot) -> None:
    reading = Reading(row.figure, snapshot.at, row.scale, row.decimals, row.stale_after)
    put_figure(pen, slot, reading)


def _compact_pool(snapshot: Snapshot, decode: Decode, columns: int) -> Line:
    pen = Pen(columns)
    pen.put(1, "KV pool")
    put_figure(pen, Slot(17, 6, "%"), _usage(snapshot, decode))
    cells = columns - 50
    pen.put(25, bar(decode.token_usage.value, cells), Ink.BAR)
    pen.put(27 + cells, _tokens(decode), Ink.DIM)
    return pen.line()


def _compact_row(row: Row, snapshot: Snapshot, columns: int) -> Line:
    cells = max(12, columns - 68)
    pen = Pen(columns)
    pen.put(1, row.label)
    _put(pen, Slot(17, 6, row.unit), row, snapshot)
    pen.put(25, spark(_series(snapshot, row), cells, row.top), Ink.SPARK)
    note = _note(row, row.note)
    if row.more and row.note and row.label in ("running", "queued"):
        pen.put(27 + cells, note, Ink.DIM, 17)
        pen.put(45 + cells, row.more, Ink.DIM)
    else:
        pen.put(27 + cells, row.more if row.more and row.figure.known else note, Ink.DIM)
    return pen.line()
