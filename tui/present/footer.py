"""The footer: the keys that work now, as many as fit, the important ones first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvctl.tui.present.line import Ink, Line, Pen
from kvctl.tui.present.text import width

_BARS_FROM = 112


@dataclass(frozen=True, slots=True)
class Hint:
    """One key with what it does now."""

    key: str
    labels: tuple[str, ...]
    """What it does, longest first; the last may be ""."""
    group: str
    rank: int
    """Lower ones stay when room is short."""
    wide_key: str = ""
    """How the key is written on a wide screen, "" for the same."""
    is_narrow_only: bool = False
    """Left out on a wide screen, which shows what it would open."""


def line(hints: Sequence[Hint], columns: int) -> Line:
    """Return the footer of exactly that width."""
    with_bars = columns >= _BARS_FROM
    if with_bars:
        shown = [hint for hint in hints if not hint.is_narrow_only]
        hints = [replace(hint, key=hint.wide_key or hint.key) for hint in shown]
    else:
        hints = [replace(h, labels=h.labels[-1:]) if h.wide_key else h for h in hints]
    chosen = _chosen(hints, columns - 1, with_bars=with_bars)
    pen = Pen(columns)
    column, group = 1, ""
    for hint in hints:
        label = chosen.get(hint.key)
        if label is None:
            continue
        if group:
            is_new = with_bars and group != hint.group
            column = pen.put(column, " │ " if is_new else "  ", Ink.FRAME)
        column = pen.put(column, hint.key, Ink.KEY)
        column = pen.put(column, f" {label}" if label else "")
        group = hint.group
    return pen.line()


def _chosen(hints: Sequence[Hint], room: int, *, with_bars: bool) -> dict[str, str]:
    """Return the label of every hint that fits: each first in its shortest form."""
    chosen: dict[str, str] = {}
    by_rank = sorted(hints, key=lambda hint: hint.rank)
    for hint in by_rank:
        trial = {**chosen, hint.key: hint.labels[-1]}
        if _cells(hints, trial, with_bars=with_bars) <= room:
            chosen = trial
    for hint in by_rank:
        for label in hint.labels if hint.key in chosen else ():
            trial = {**chosen, hint.key: label}
            if _cells(hints, trial, with_bars=with_bars) <= room:
                chosen = trial
                break
    return chosen


def _cells(hints: Sequence[Hint], chosen: dict[str, str], *, with_bars: bool) -> int:
    total, group = 0, ""
    for hint in hints:
        label = chosen.get(hint.key)
        if label is None:
            continue
        if group:
            total += 3 if with_bars and group != hint.group else 2
        total += width(hint.key) + (1 + width(label) if label else 0)
        group = hint.group
    return total
