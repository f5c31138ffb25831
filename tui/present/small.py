"""Small screens: no sparklines and no bars, then the verdict and four lines, then one line."""

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.servers.server import Decode
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import kilo_tokens, thousands
from kvctl.tui.present import events, gpus_compact, run, stages, verdict
from kvctl.tui.present.figures import LOADS_STALE_S, MISSING, Reading, Slot, age_text, put_figure
from kvctl.tui.present.header import two_lines
from kvctl.tui.present.line import Ink, Line, Pen, fitted, plain
from kvctl.tui.present.text import wrap
from kvctl.tui.present.view import View
from kvctl.tui.present.words import hours, is_changing


def small(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return header, verdict, figures, GPUs, the open partitions and events, without frames."""
    drawn = two_lines(snapshot, view, columns)
    drawn += verdict.lines(snapshot, view, columns, 3)
    drawn += _figures(snapshot, columns)
    drawn += gpus_compact.compact(snapshot, view, columns, 1)[:2]
    room = height - len(drawn)
    table = run.body(snapshot, view, columns, max(3, room - 1))[:room]
    drawn += table
    drawn += events.body(snapshot, view, columns, max(0, height - len(drawn)))
    return fitted(drawn, height, columns)


def tiny(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return the verdict and what a glance needs."""
    current = verdict.current(snapshot, view)
    lines = wrap(f"{current.word.value} {current.sentence}", columns - 1)[:3]
    mark = view.lost or ("SIMULATED" if snapshot.is_simulated else "")
    drawn = [
        plain(columns, text, Ink.BOLD if n == 0 else Ink.PLAIN) for n, text in enumerate(lines)
    ]
    drawn += _figures(snapshot, columns)[:3]
    drawn.append(_progress(snapshot, columns))
    if mark:
        drawn.append(plain(columns, mark, Ink.REVERSE))
    return fitted(drawn, height, columns)


def one_line(snapshot: Snapshot, view: View, columns: int) -> str:
    """Return the whole state in one line: "LIMIT 38+8 640 t/s 15 %"."""
    word = verdict.current(snapshot, view).word.value
    server, run_ = snapshot.server, snapshot.run
    decode = server.decode if server else Decode()
    running, queued = _count(decode.running), _count(decode.queued)
    share = f"{100 * run_.done // run_.total} %" if run_ and run_.total else MISSING
    rate = _count(decode.generation_tokens_per_s)
    lost = "? " if view.lost else ""
    text = f"{lost}{word} {running}+{queued} {rate} t/s {share}"
    return text if len(text) <= columns else text.replace(" t/s", "")


def one(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return a screen for the smallest terminals."""
    text = one_line(snapshot, view, columns)
    sentence = wrap(verdict.current(snapshot, view).sentence, columns)
    lines = [text, *sentence][:height]
    return fitted([plain(columns, t) for t in lines], height, columns)


def _count(figure: Figure) -> str:
    return MISSING if figure.value is None else f"{figure.value:,.0f}"


def _figures(snapshot: Snapshot, columns: int) -> list[Line]:
    """Return pool, requests and throughputs in three lines (four while a server starts)."""
    server = snapshot.server
    decode = server.decode if server else Decode()
    now = snapshot.at
    pool = Pen(columns)
    pool.put(0, "pool")
    put_figure(pool, Slot(10, 5, "%"), Reading(decode.token_usage, now, 100.0))
    if decode.pool_tokens.known:
        tokens = f"of {thousands(decode.pool_tokens.value)} tokens"
        pool.put(22 if age_text(decode.token_usage, now, LOADS_STALE_S) else 16, tokens, Ink.DIM)
    counts = _pair(("running", decode.running, 14), ("queued", decode.queued, 33), now, columns)
    rates = _pair(
        ("gen t/s", decode.generation_tokens_per_s, 14),
        ("eff t/s", decode.effective_tokens_per_s, 33),
        now,
        columns,
    )
    steps = stages.compact(snapshot, View(), columns, 3)[1:2] if is_changing(server) else []
    return [pool.line(), counts, rates, *steps]


def _pair(
    left: tuple[str, Figure, int], right: tuple[str, Figure, int], now: float, columns: int
) -> Line:
    pen = Pen(columns)
    for (label, figure, end), start in ((left, 0), (right, 20)):
        pen.put(start, label)
        reading = Reading(figure, now)
        is_old = reading.is_stale and label != "eff t/s"
        pen.right(end, reading.text, Ink.DIM if is_old else Ink.BOLD, 6)
    return pen.line()


def _progress(snapshot: Snapshot, columns: int) -> Line:
    run_ = snapshot.run
    if run_ is None:
        return plain(columns, "no run")
    done = f"done {kilo_tokens(run_.done)} of {kilo_tokens(run_.total)}"
    return plain(columns, f"{done}, left {hours(run_.remaining_s)}, flight {run_.in_flight}")
