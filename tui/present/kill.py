"""The kill dialog: which process, what it is and why we think so, whose it is, what follows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from kvctl.core.domain.gpus.devices import GpuView, Holder, HolderKind
from kvctl.core.domain.gpus.holding import every_holder, is_left_behind, stuck_advice
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import mib
from kvctl.tui.present.box import Box
from kvctl.tui.present.gpus import KIND_WORDS
from kvctl.tui.present.line import Ink, Line, Pen
from kvctl.tui.present.text import literal

BUTTONS = ("Cancel", "TERM, KILL after 15 s", "KILL")
Key = tuple[int, int | None]
"""A process: pid and start time."""
_ORDER = (
    HolderKind.LEFTOVER,
    HolderKind.EXITING,
    HolderKind.INVISIBLE,
    HolderKind.FOREIGN,
    HolderKind.OTHER_SGLANG,
    HolderKind.LAUNCHING,
    HolderKind.RANK,
)


class Scope(Enum):
    """How much one yes ends."""

    PROCESS = "this process"
    LAUNCH = "its launch"
    GPU = "its GPU"
    LEFTOVERS = "every leftover"


@dataclass(slots=True)
class KillState:
    """What the dialog holds while it is open."""

    at: Key | None = None
    """The process under the cursor; it stays so, whoever comes or goes."""
    focus: int = 0
    marked: set[Key] = field(default_factory=set)
    """None marked means the one under the cursor."""
    scope: Scope = Scope.PROCESS
    is_awake: bool = False
    is_sent: bool = False
    result: tuple[str, ...] = ()
    """What was observed afterwards."""
    said: str = ""


def key_of(holder: Holder) -> Key:
    """Return what tells a process apart."""
    return holder.pid, holder.start_ticks


def candidates(snapshot: Snapshot) -> list[Holder]:
    """Return holders and strays, one a process, those that should not be there first."""
    seen: dict[int, Holder] = {}
    for holder in every_holder(snapshot.gpus):
        seen.setdefault(holder.pid, holder)
    return sorted(seen.values(), key=_rank)


def _rank(holder: Holder) -> tuple[int, int, int]:
    gpu = 1 << 16 if holder.gpu_index is None else holder.gpu_index
    return _ORDER.index(holder.kind), gpu, holder.pid


def current(snapshot: Snapshot, state: KillState) -> Holder | None:
    """Return the process under the cursor; None once it has ended."""
    found = candidates(snapshot)
    if state.at is None:
        return found[0] if found else None
    return next((holder for holder in found if key_of(holder) == state.at), None)


def moved(snapshot: Snapshot, state: KillState, step: int) -> Key | None:
    """Return the process that many rows further on."""
    keys = [key_of(holder) for holder in candidates(snapshot)]
    if not keys:
        return None
    here = keys.index(state.at) if state.at in keys else 0
    return keys[(here + step) % len(keys)]


def targets(snapshot: Snapshot, state: KillState) -> list[Holder]:
    """Return what would be ended, as far as it is seen on the GPUs or left behind."""
    found, at = candidates(snapshot), current(snapshot, state)
    if state.scope is Scope.LEFTOVERS:
        return [holder for holder in found if is_left_behind(holder)]
    if state.scope is Scope.GPU:
        here = _gpus_of(snapshot.gpus, at)
        on_it = {h.pid for h in every_holder(snapshot.gpus) if h.gpu_uuid in here}
        return [holder for holder in found if holder.pid in on_it]
    marked = [holder for holder in found if key_of(holder) in state.marked]
    named = marked or ([at] if at is not None else [])
    if state.scope is Scope.PROCESS:
        return named
    return [holder for holder in found if any(_are_one_launch(holder, one) for one in named)]


def _gpus_of(gpus: GpuView, holder: Holder | None) -> set[str]:
    return {h.gpu_uuid for h in gpus.holders if holder is not None and h.pid == holder.pid}


def _are_one_launch(holder: Holder, one: Holder) -> bool:
    if key_of(holder) == key_of(one) or (one.server is not None and holder.server == one.server):
        return True
    is_sglang = one.kind in (HolderKind.LEFTOVER, HolderKind.OTHER_SGLANG)
    return is_sglang and one.session is not None and holder.session == one.session


def why_not(chosen: Sequence[Holder]) -> str:
    """Return why these cannot be signalled, "" if they can."""
    for holder in chosen:
        if holder.start_ticks is None or holder.kind is HolderKind.INVISIBLE:
            return f"pid {holder.pid} is not visible here: no signal can reach it for certain"
        if holder.owner and holder.owner_restarts:
            ask = holder.owner_command or f"stop it through {holder.owner}"
            return f"{holder.owner} would start it again: {ask}"
        if not holder.is_permitted:
            return f"pid {holder.pid} is user {holder.user}'s: no signal is permitted from here"
        if holder.state in ("Z", "X"):
            return f"pid {holder.pid} has ended: only its parent {holder.parent_pid} can collect it"
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
    elif not found:
        box.text("No process holds GPU memory now.")
    at = current(snapshot, state)
    below = [] if state.is_sent else _below(snapshot, state, at, columns)
    cursor = found.index(at) if at is not None else 0
    room = max(1, min(len(found), rows - len(box.drawn) - max(len(below), 6)))
    first = max(0, min(cursor - room + 1, len(found) - room))
    for holder in found[first : first + room]:
        is_marked = key_of(holder) in state.marked
        box.lines([_row(holder, holder is at, is_marked, box.inner)])
    return _after(box, state) if state.is_sent else [*box.drawn, *below]


def _below(snapshot: Snapshot, state: KillState, at: Holder | None, columns: int) -> list[Line]:
    """Return what stands below the list: the process, what happens, the buttons."""
    box = Box(columns)
    box.drawn.append(Line(()))  # so that the first section is drawn as a middle one
    if at is not None:
        _details(box, at, snapshot.gpus)
    elif state.at is not None:
        box.section(f"pid {state.at[0]}")
        box.text("It has ended meanwhile, or holds no GPU any more; ↑↓ choose another.", Ink.WARN)
    _warnings(box, targets(snapshot, state), state)
    if state.said:
        box.text(state.said, Ink.WARN, 2)
    box.buttons(BUTTONS, state.focus, "space mark  m how much  y TERM  Esc")
    return box.end()[1:]


def _row(holder: Holder, is_cursor: bool, is_marked: bool, columns: int) -> Line:
    pen = Pen(columns)
    pen.put(1, ">" if is_cursor else " ", Ink.BOLD)
    pen.put(3, "*" if is_marked else " ", Ink.BOLD)
    pen.put(5, "no GPU" if holder.gpu_index is None else f"GPU {holder.gpu_index}")
    pen.right(20, str(holder.pid), Ink.BOLD)
    pen.right(33, mib(holder.memory_bytes))
    ink = Ink.WARN if holder.kind is HolderKind.LEFTOVER else Ink.PLAIN
    pen.put(35, KIND_WORDS[holder.kind], ink, 16)
    pen.put(52, holder.title)
    line = pen.line()
    return line.inked(Ink.CURSOR) if is_cursor else line


def _details(box: Box, holder: Holder, gpus: GpuView) -> None:
    box.section(f"pid {holder.pid}")
    identity = "not visible here" if holder.start_ticks is None else f"start {holder.start_ticks}"
    if holder.session is not None:
        identity += f", group {holder.group}, session {holder.session}"
    parent = "none (1)" if holder.parent_pid == 1 else str(holder.parent_pid or "–")
    owner = holder.owner or "none: nothing starts it again"
    if holder.owner and holder.owner_restarts is None:
        owner += " (may start it again)"
    boxed = f" · container {holder.container}" if holder.container else ""
    rows = [
        ("title", literal(holder.title)),
        ("identity", f"pid {holder.pid}, {identity}; checked again at the signal"),
        ("user", f"{holder.user or 'unknown'} ({'yours' if holder.is_mine else 'not yours'})"),
        ("parent", parent + (f" · state {holder.state}" if holder.state else "")),
        ("owner", owner + boxed),
        ("evidence", f"{KIND_WORDS[holder.kind]}: {holder.evidence}"),
    ]
    proof = gpus.proof_of(holder.gpu_uuid)
    if proof is not None:
        rows.append(("proof", f"GPU {proof.index} not clean: {'; '.join(proof.blockers)}"))
    for label, text in rows:
        pen = Pen(box.inner)
        pen.put(1, label, Ink.DIM)
        pen.put(11, literal(text))
        box.lines([pen.line()])


def _warnings(box: Box, chosen: Sequence[Holder], state: KillState) -> None:
    box.section(f"What happens ── {len(chosen)} chosen")
    pen = Pen(box.inner)
    column = 1
    for scope in Scope:
        is_chosen = scope is state.scope
        text = f"{'(•)' if is_chosen else '( )'} {scope.value}"
        column = pen.put(column, text, Ink.BOLD if is_chosen else Ink.PLAIN) + 2
    box.lines([pen.line()])
    ranks = [h for h in chosen if h.kind in (HolderKind.RANK, HolderKind.LAUNCHING)]
    others = [h for h in chosen if not h.is_mine]
    if ranks:
        box.text(f"! {ranks[0].title} belongs to a live server, which ends with it; S stops it "
                 "properly and keeps the answers.", Ink.WARN, 2)  # fmt: skip
    if others:
        names = ", ".join(f"{h.pid} of {_whose(h)}" for h in others)
        box.text(f"! not yours: {names}. Going ahead confirms that.", Ink.WARN, 2)
    problem = why_not(chosen)
    if problem:
        box.text(f"✗ {problem}", Ink.BAD, 2)
        return
    stuck = [h for h in chosen if h.kind is HolderKind.EXITING]
    if stuck:
        box.text(f"! {stuck[0].pid}: {stuck_advice(stuck[0].gpu_index)}", Ink.WARN, 3)
    also = " and all else of the launch" if state.scope is Scope.LAUNCH else ""
    pids = ", ".join(str(holder.pid) for holder in chosen[:8])
    more = f" and {len(chosen) - 8} more" if len(chosen) > 8 else ""
    box.text(f"TERM to {pids}{more}{also}, KILL to what is left after 15 s; then each GPU is"
             " proven clean.", Ink.PLAIN, 2)  # fmt: skip


def _whose(holder: Holder) -> str:
    above = f" ({holder.owner})" if holder.owner else ""
    boxed = f" in container {holder.container}" if holder.container else ""
    return f"{holder.user or 'another user'}{above}{boxed}"


def _after(box: Box, state: KillState) -> list[Line]:
    if not state.result:
        box.text("waiting for the proof …", Ink.BOLD)
    for text in state.result:
        box.text(text, most=2)
    box.buttons(("Close",), 0, "Esc close; the outcome is an event too")
    return box.end()
