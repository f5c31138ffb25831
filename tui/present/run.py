"""Pane 3, the run: progress of each partition, and what is left."""

from dataclasses import dataclass

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.runs.run import Partition, PartitionState, Run, RunState
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import kilo_tokens, thousands
from kvctl.tui.present.figures import MISSING, bar, seconds_short
from kvctl.tui.present.line import Ink, Line, Pen, plain
from kvctl.tui.present.text import width, wrap
from kvctl.tui.present.view import View
from kvctl.tui.present.words import hours, minute, moment, within

GB = 10**9
_LONGEST_NAME = 14
_LONGEST_BAR = 60
_WIDE = 118
_COMPACT = 72


@dataclass(frozen=True, slots=True)
class Tally:
    """One row of the table: a partition, or all of them."""

    name: str
    done: int
    total: int
    mean: float | None
    capped: float | None
    """0..1 of the answers ended at the token limit."""
    failed: int
    in_flight: int
    effective: Figure
    left: str
    state: str
    ink: Ink = Ink.PLAIN

    @property
    def ratio(self) -> float | None:
        """Share that is done, 0..1."""
        return self.done / self.total if self.total else None


def title(snapshot: Snapshot, *, is_short: bool = False) -> str:
    """Return the pane's title: counts, what is open, and how safe the answers are."""
    run = snapshot.run
    if run is None:
        return "3 Run ── none"
    parts = [f"3 Run {run.name}"]
    if not is_short:
        parts.append(f"{thousands(run.done)} of {thousands(run.total)}")
        names = [p.name for p in run.partitions if p.state is PartitionState.OPEN]
        parts += [f"open: {', '.join(names)}"] if 0 < len(names) <= 3 else []
        parts += [f"{len(names)} partitions open"] if len(names) > 3 else []
    if run.partials:
        parts.append(f"{run.partials} partials kept ({kilo_tokens(run.partial_tokens)} tokens)")
    parts.append(_journal(snapshot, run, is_short=is_short))
    return " ── ".join(parts)


def _journal(snapshot: Snapshot, run: Run, *, is_short: bool) -> str:
    age = None if run.journal_at is None else max(0.0, snapshot.at - run.journal_at)
    is_idle = run.state is not RunState.RUNNING and (age is None or age > 10)
    text = "journal idle" if is_idle or age is None else f"journal {seconds_short(age)} ago"
    if run.disk_free_bytes is None or is_short:
        return text
    free = run.disk_free_bytes / GB
    return f"{text}, {free:,.0f} GB free" if free >= 10 else f"{text}, {free:.1f} GB free"


def body(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return the table in the columns the width allows; finished partitions give way first."""
    run = snapshot.run
    if run is None:
        return _no_run(columns)
    tallies, hidden = _chosen(run, snapshot, height, columns)
    name_room = _name_room(run)
    drawn = [_head(columns, name_room)]
    for number, tally in enumerate(tallies):
        line = _row(tally, columns, name_room)
        is_cursor = view.zoom == 3 and number == view.cursor
        drawn.append(line.inked(Ink.CURSOR) if is_cursor else line)
    if hidden:
        drawn.append(plain(columns, f" {hidden}", Ink.DIM))
    return drawn


def _no_run(columns: int) -> list[Line]:
    text = "No run is open. s starts one from its run file, or resumes it from its journal."
    return [plain(columns, f" {part}") for part in wrap(text, columns - 2)]


def _name_room(run: Run) -> int:
    longest = max((width(p.name) for p in run.partitions), default=3)
    return max(3, min(_LONGEST_NAME, longest))


def _chosen(run: Run, snapshot: Snapshot, height: int, columns: int) -> tuple[list[Tally], str]:
    """Return the rows that fit below the head, and words for those that do not."""
    with_sum = columns >= _WIDE or height >= len(run.partitions) + 2
    room = height - 1 - with_sum
    parts = run.partitions
    hidden = ""
    if len(parts) > room:
        kept = set(sorted(range(len(parts)), key=lambda i: (_yield(parts[i]), i))[: room - 1])
        gone = [p for i, p in enumerate(parts) if i not in kept]
        parts = tuple(p for i, p in enumerate(parts) if i in kept)
        hidden = _gone_in_words(gone)
    tallies = [_tally(part, snapshot, columns) for part in parts]
    return ([*tallies, _whole(run, snapshot)] if with_sum else tallies), hidden


def _yield(part: Partition) -> int:
    """Return how readily a partition gives up its row: open last, done first."""
    order = (PartitionState.OPEN, PartitionState.WAITING, PartitionState.SCOUTED)
    return order.index(part.state) if part.state in order else len(order)


def _gone_in_words(gone: list[Partition]) -> str:
    done = sum(part.state is PartitionState.DONE for part in gone)
    waiting = len(gone) - done
    words = [f"{done} more done"] if done else []
    words += [f"{waiting} more wait"] if waiting else []
    return ", ".join(words)


def _tally(part: Partition, snapshot: Snapshot, columns: int) -> Tally:
    is_done = part.state is PartitionState.DONE
    left = hours(part.remaining_s)
    if is_done:
        left = MISSING if columns >= _WIDE else "done"
    elif part.is_estimate_rough and part.remaining_s is not None:
        left = f"~ {left}"
    state = part.state.value
    if is_done and part.done_wall is not None:
        state = f"done {minute(part.done_wall)}"
    capped = part.length_capped / part.done if part.done else None
    ink = Ink.BOLD if part.state is PartitionState.OPEN else Ink.PLAIN
    return Tally(part.name, part.done, part.total, part.mean_tokens, capped, part.failed,
                 part.in_flight, part.effective_tokens_per_s, left, state, ink)  # fmt: skip


def _whole(run: Run, snapshot: Snapshot) -> Tally:
    mean = run.tokens / run.done if run.done and run.tokens else None
    capped = sum(part.length_capped for part in run.partitions)
    left = within(run.remaining_s, run.remaining_low_s, run.remaining_high_s)
    is_young = run.remaining_s is None and run.is_sending
    when = "not known" if is_young else moment(run.done_wall, snapshot.wall)
    return Tally("all", run.done, run.total, mean, capped / run.done if run.done else None,
                 run.failed, run.in_flight, run.effective_tokens_per_s, left, when)  # fmt: skip


_WIDE_HEADS = (
    (33, "done"), (42, "total"), (48, "%"), (58, "mean tok"), (65, "cut %"), (73, "failed"),
    (84, "in flight"), (92, "eff t/s"), (105, "left"),
)  # fmt: skip
_COMPACT_HEADS = (
    (28, "done"), (36, "total"), (45, "mean"), (51, "cut%"), (56, "err"), (65, "flight"),
    (78, "left"),
)  # fmt: skip
_SMALL_HEADS = ((16, "done"), (25, "total"), (32, "err"), (41, "flight"), (54, "left"))


def _head(columns: int, name_room: int) -> Line:
    pen = Pen(columns)
    geometry = _geometry(columns, name_room)
    pen.put(1, "part", Ink.DIM)
    for end, word in geometry.heads:
        pen.right(end, word, Ink.DIM)
    if geometry.state is not None:
        pen.put(geometry.state, "state", Ink.DIM)
    return pen.line()


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where the columns of the table end at a width."""

    heads: tuple[tuple[int, str], ...]
    bar: int
    """Cells of the bar, 0 for none."""
    state: int | None = None
    """Column of the state's word."""


def _geometry(columns: int, name_room: int) -> Geometry:
    """Return the columns: a bar of at most 60 cells, what is left over spread between them."""
    if columns < _COMPACT:
        shift = min(columns - 56, name_room)
        return Geometry(tuple((end + shift, word) for end, word in _SMALL_HEADS), 0)
    is_wide = columns >= _WIDE
    heads, base, narrowest = (_WIDE_HEADS, _WIDE, 20) if is_wide else (_COMPACT_HEADS, 80, 15)
    longer = min(columns - base, _LONGEST_BAR - narrowest)
    gap = (columns - base - longer) // (len(heads) + 1)
    moved = tuple((end + longer + gap * n, word) for n, (end, word) in enumerate(heads, 1))
    cells = narrowest + longer - (name_room - 3)
    return Geometry(moved, cells, 107 + longer + gap * (len(heads) + 1) if is_wide else None)


def _row(tally: Tally, columns: int, name_room: int) -> Line:
    pen = Pen(columns)
    geometry = _geometry(columns, name_room)
    pen.put(1, tally.name, Ink.BOLD if tally.ink is Ink.BOLD else Ink.PLAIN, name_room)
    pen.put(name_room + 2, bar(tally.ratio, geometry.bar), Ink.BAR)
    texts = _texts(tally)
    for end, word in geometry.heads:
        text, ink = texts[word]
        pen.right(end, text, ink, 12 if word == "left" else 10)
    if geometry.state is not None:
        pen.put(geometry.state, tally.state)
    return pen.line()


def _texts(tally: Tally) -> dict[str, tuple[str, Ink]]:
    """Return what stands under each head."""
    ratio = MISSING if tally.ratio is None else f"{int(tally.ratio * 100)}"
    capped = MISSING if tally.capped is None else f"{tally.capped * 100:.1f}"
    effective = tally.effective.value
    failed = (thousands(tally.failed), Ink.WARN if tally.failed else tally.ink)
    flight = (thousands(tally.in_flight), tally.ink)
    mean = (thousands(tally.mean), tally.ink)
    return {
        "done": (thousands(tally.done), tally.ink),
        "total": (thousands(tally.total), Ink.PLAIN),
        "%": (ratio, tally.ink),
        "mean tok": mean,
        "mean": mean,
        "cut %": (capped, Ink.PLAIN),
        "cut%": (capped, Ink.PLAIN),
        "failed": failed,
        "err": failed,
        "in flight": flight,
        "flight": flight,
        "eff t/s": (thousands(effective), tally.ink),
        "left": (tally.left, tally.ink),
    }
