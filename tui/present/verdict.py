"""The verdict and its lever: one sentence on top of every screen."""

from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.verdict import Verdict, VerdictWord
from kvctl.tui.present.line import Ink, Line, Pen
from kvctl.tui.present.text import width, wrap
from kvctl.tui.present.view import View
from kvctl.tui.present.words import is_changing, single

INDENT = 8
_INKS = {
    VerdictWord.FAILED: Ink.ALARM,
    VerdictWord.STALLED: Ink.ALARM,
    VerdictWord.ACT: Ink.ALARM,
    VerdictWord.OK: Ink.PLAIN,
}
_NOTHING = Verdict(VerdictWord.WAIT, "The first readings are on their way.", "")


def current(snapshot: Snapshot, view: View) -> Verdict:
    """Return the verdict that is shown."""
    if not snapshot.verdicts:
        return _NOTHING
    return snapshot.verdicts[view.note % len(snapshot.verdicts)]


def lines(snapshot: Snapshot, view: View, columns: int, height: int = 2) -> list[Line]:
    """Return the sentence, then the lever, on `height` lines with the key that explains it."""
    verdict = current(snapshot, view)
    hint = "w stages" if is_changing(snapshot.server) else "w why"
    room = columns - INDENT - 1
    texts = _texts(verdict, room, len(hint), height)
    drawn: list[Line] = []
    for number, text in enumerate(texts):
        pen = Pen(columns)
        if number == 0:
            pen.put(1, verdict.word.value, _INKS.get(verdict.word, Ink.BOLD))
        last = number == height - 1
        pen.put(INDENT, text, Ink.PLAIN, room - len(hint) - 2 if last else room + 1)
        if last:
            pen.right(columns - 1, hint, Ink.DIM)
        drawn.append(pen.line())
    return drawn


def _texts(verdict: Verdict, room: int, hint: int, height: int) -> list[str]:
    """Return the text of each line: full words where they fit, the short ones where not."""
    full = _arranged(verdict.sentence, verdict.lever, room, height)
    if full is not None and width(full[-1]) <= room - hint - 2:
        return full
    short = _arranged(verdict.short or verdict.sentence, verdict.short_lever, room, height)
    if short is not None and verdict.short:
        return short
    joined = wrap(f"{verdict.sentence} {_lever(verdict.lever)}", room)
    head, rest = joined[: height - 1], " ".join(joined[height - 1 :])
    return [*head, *[""] * (height - 1 - len(head)), rest]


def _lever(lever: str) -> str:
    return lever if not lever or lever.startswith("No ") else f"→ {lever}"


def _arranged(sentence: str, lever: str, room: int, height: int) -> list[str] | None:
    """Return the sentence with the lever on the lines below it, None where that does not fit."""
    above = wrap(sentence, room + 1)
    below = wrap(lever, room) if lever else []
    if len(above) + max(1, len(below)) > height:
        return None
    empty = [""] * (height - len(above) - len(below))
    return [*above, *below, *empty]


def note_line(snapshot: Snapshot, view: View, columns: int, flash: str = "") -> Line:
    """Return the line above the footer: what a restart would cost now, and how many notes."""
    pen = Pen(columns)
    count = len(snapshot.verdicts)
    end = columns - 1
    if count > 1:
        text = f"{view.note % count + 1} of {count} notes  n next"
        pen.right(end, text, Ink.DIM)
        end -= width(text) + 2
    pen.put(1, flash or restart_note(snapshot), Ink.BOLD if flash else Ink.DIM, end - 1)
    return pen.line()


def restart_note(snapshot: Snapshot) -> str:
    """Return what a restart would do to answers in flight now."""
    server, run = snapshot.server, snapshot.run
    if snapshot.busy_command:
        return f"In progress: {single(snapshot.busy_command)}."
    if server is None or not server.state.is_ready:
        return ""
    foreign = server.foreign_requests.value
    if foreign:
        return f"{foreign:,} requests are not this run's: a restart would cut them."
    if run is None or not run.in_flight:
        return "Safe to restart under: nothing is in flight."
    return f"Safe to restart under: a harvest would keep all {run.in_flight} answers in flight."
