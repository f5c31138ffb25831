"""The kill dialog: which process, what it is and why we think so, whose it is, what follows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvctl.core.domain.gpus import Holder, HolderKind
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import mib
from kvctl.tui.present.box import Box
from kvctl.tui.present.gpus import KIND_WORDS
from kvctl.tui.present.line import Ink, Line, Pen
from kvctl.tui.present.text import literal

BUTTONS = ("Cancel", "TERM, KILL after 15 s", "KILL")
_ORDER = (
    HolderKind.LEFTOVER,
    HolderKind.EXITING,
    HolderKind.INVISIBLE,
    HolderKind.FOREIGN,
    HolderKind.OTHER_SGLANG,
    HolderKind.LAUNCHING,
    HolderKind.RANK,
)


@dataclass(slots=True)
class KillState:
    """What the dialog holds while it is open."""

    cursor: int = 0
    focus: int = 0
    marked: set[int] = field(default_factory=set)
    """Pids; none marked means the one under the cursor."""
    is_awake: bool = False
    is_sent: bool = False
    result: tuple[str, ...] = ()
    """What was observed afterwards."""
    said: str = ""


def candidates(snapshot: Snapshot) -> list[Holder]:
    """Return holders, one a pid, those that should not be there first."""
    seen: dict[int, Holder] = {}
    for holder in snapshot.gpus.holders:
        seen.setdefault(holder.pid, holder)
    return sorted(seen.values(), key=lambda h: (_ORDER.index(h.kind), h.gpu_index, h.pid))


def targets(snapshot: Snapshot, state: KillState) -> list[Holder]:
    """Return what would be killed: the marked ones, else the one under the cursor."""
    found = candidates(snapshot)
    marked = [holder for holder in found if holder.pid in state.marked]
    if marked or not found:
        return marked
    return [found[state.cursor % len(found)]]


def why_not(chosen: Sequence[Holder]) -> str:
    """Return why these cannot be signalled, "" if they can."""
    for holder in chosen:
        if holder.start_ticks is None or holder.kind is HolderKind.INVISIBLE:
            return f"pid {holder.pid} is not visible here: no signal can reach it for certain"
        if holder.owner and holder.owner_restarts:
            ask = holder.owner_command or f"stop it through {holder.owner}"
            return f"{holder.owner} would start it again: {ask}"
    return "" if chosen else "nothing is chosen"


def dialog(snapshot: Snapshot, state: KillState, columns: int, rows: int) -> list[Line]:
    """Return the dialog in at most `rows` lines."""
    box = Box(columns)
    found = candidates(snapshot)
    holders = "1 process holds" if len(found) == 1 else f"{len(found)} processes hold"
    box.section(f"Kill ── {holders} GPU memory ── no signal was sent yet")
    if state.is_sent:
        box.drawn.clear()
        box.section("Kill ── sent")
    room = max(1, rows - 15)
    cursor = state.cursor % len(found) if found else 0
    first = max(0, min(cursor - room + 1, len(found) - room))
    for number, holder in enumerate(found[first : first + room], first):
        box.lines([_row(holder, number == cursor, holder.pid in state.marked, box.inner)])
    if not found and not state.is_sent:
        box.text("No process holds GPU memory now.")
    if state.is_sent:
        return _after(box, state)
    if found:
        _details(box, found[cursor])
    chosen = targets(snapshot, state)
    _warnings(box, chosen)
    if state.said:
        box.text(state.said, Ink.WARN, 2)
    box.buttons(BUTTONS, state.focus, "space mark  y TERM  Esc leave")
    return box.end()


def _row(holder: Holder, is_cursor: bool, is_marked: bool, columns: int) -> Line:
    pen = Pen(columns)
    pen.put(1, ">" if is_cursor else " ", Ink.BOLD)
    pen.put(3, "*" if is_marked else " ", Ink.BOLD)
    pen.put(5, f"GPU {holder.gpu_index}")
    pen.right(20, str(holder.pid), Ink.BOLD)
    pen.right(33, mib(holder.memory_bytes))
    ink = Ink.WARN if holder.kind is HolderKind.LEFTOVER else Ink.PLAIN
    pen.put(35, KIND_WORDS[holder.kind], ink, 16)
    pen.put(52, holder.title)
    line = pen.line()
    return line.inked(Ink.CURSOR) if is_cursor else line


def _details(box: Box, holder: Holder) -> None:
    box.section(f"pid {holder.pid}")
    identity = "not visible here" if holder.start_ticks is None else f"start {holder.start_ticks}"
    for label, text in (
        ("title", literal(holder.title)),
        ("identity", f"pid {holder.pid}, {identity}; checked again when the signal is sent"),
        ("user", f"{holder.user or 'unknown'} ({'yours' if holder.is_mine else 'not yours'})"),
        ("parent", "none (1)" if holder.parent_pid == 1 else str(holder.parent_pid or "–")),
        ("owner", holder.owner or "none: nothing starts it again"),
        ("evidence", f"{KIND_WORDS[holder.kind]}: {holder.evidence}"),
    ):
        pen = Pen(box.inner)
        pen.put(1, label, Ink.DIM)
        pen.put(11, text)
        box.lines([pen.line()])


def _warnings(box: Box, chosen: Sequence[Holder]) -> None:
    box.section(f"What happens ── {len(chosen)} chosen")
    ranks = [h for h in chosen if h.kind in (HolderKind.RANK, HolderKind.LAUNCHING)]
    others = [h for h in chosen if not h.is_mine]
    if ranks:
        box.text(f"! {ranks[0].title} belongs to a live server, which ends with it; S stops it "
                 "properly and keeps the answers.", Ink.WARN, 2)  # fmt: skip
    if others:
        names = ", ".join(f"{h.pid} of {h.user or 'another user'}" for h in others)
        box.text(f"! not yours: {names}. Going ahead confirms that.", Ink.WARN, 2)
    problem = why_not(chosen)
    if problem:
        box.text(f"✗ {problem}", Ink.BAD, 2)
    else:
        box.text("TERM first, KILL to what is left after 15 s; then each GPU is proven clean.",
                 Ink.PLAIN, 1)  # fmt: skip


def _after(box: Box, state: KillState) -> list[Line]:
    if not state.result:
        box.text("waiting for the proof …", Ink.BOLD)
    for text in state.result:
        box.text(text, most=2)
    box.buttons(("Close",), 0, "Esc close; the outcome is an event too")
    return box.end()
