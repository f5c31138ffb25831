"""Pane 2 on the whole screen: the devices, then every process that holds their memory."""

from kvctl.core.domain.gpus import Holder
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import GIB
from kvctl.tui.present.figures import MISSING
from kvctl.tui.present.gpus import KIND_WORDS, body
from kvctl.tui.present.line import Ink, Line, Pen
from kvctl.tui.present.view import View


def zoomed(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return devices, then every holder with its identity; the cursor is on a holder."""
    gpus = snapshot.gpus
    devices = body(snapshot, view, columns, min(height // 2, len(gpus.devices) + 2))
    if not gpus.devices:
        return devices
    drawn = [*devices, _holder_head(columns)]
    room = max(1, height - len(drawn))
    first = max(0, min(view.cursor - room + 1, len(gpus.holders) - room))
    for number, holder in enumerate(gpus.holders[first : first + room], first):
        line = _holder_line(holder, columns)
        drawn.append(line.inked(Ink.CURSOR) if number == view.cursor else line)
    return drawn


_HOLDER_COLUMNS = ((1, "GPU"), (6, "pid"), (15, "GiB"), (22, "kind"), (40, "user"), (50, "what"))


def _holder_head(columns: int) -> Line:
    pen = Pen(columns)
    for column, word in _HOLDER_COLUMNS:
        pen.put(column, word, Ink.DIM)
    return pen.line()


def _holder_line(holder: Holder, columns: int) -> Line:
    pen = Pen(columns)
    memory = holder.memory_bytes
    pen.right(4, str(holder.gpu_index))
    pen.right(13, str(holder.pid), Ink.BOLD)
    pen.right(20, MISSING if memory is None else f"{memory / GIB:.1f}")
    pen.put(22, KIND_WORDS[holder.kind], Ink.PLAIN, 17)
    pen.put(40, holder.user or MISSING, Ink.PLAIN, 9)
    pen.put(50, f"{holder.title} · {holder.evidence}", Ink.PLAIN)
    return pen.line()
