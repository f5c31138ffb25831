"""Pane 2 on the whole screen: each GPU with its history and every process that holds it."""

from dataclasses import dataclass, replace

from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, Holder, HolderKind
from kvctl.core.domain.gpus.holding import shown_holders
from kvctl.core.domain.snapshot import GpuSeries, Snapshot
from kvctl.core.domain.units import GIB, duration
from kvctl.tui.present.figures import MISSING, Reading, spark
from kvctl.tui.present.gpus import KIND_WORDS, absent
from kvctl.tui.present.line import Ink, Line, Pen, plain
from kvctl.tui.present.text import literal, wrap
from kvctl.tui.present.view import View

WIDE = 108
Mark = tuple[int, int]
"""A process that was marked: pid and start time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the pane: a GPU with its first holder, a further holder, or a stray."""

    device: GpuDevice | None
    """None for a process that holds no GPU."""
    holder: Holder | None
    is_first: bool
    """Whether the device's own figures stand here."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the columns stand: right ends, or first cells."""

    spark: int
    cells: int
    util: int
    busy: int | None
    """First cell of the utilisation's history; None where there is no room."""
    temp: int
    watt: int
    pid: int
    own: int | None
    """End of the process's own memory; None where there is no room."""
    kind: int
    user: int | None
    what: int


_NARROW = _Places(13, 8, 25, None, 30, 35, 44, None, 46, None, 60)
_BROAD = _Places(13, 12, 29, 32, 49, 55, 65, 73, 75, 92, 102)


def rows(gpus: GpuView) -> list[Row]:
    """Return the lines of the pane: every GPU with who holds it, then what holds none.

    Where the driver does not answer, the devices of before are not shown as if they were of now.
    """
    found: list[Row] = []
    for device in () if gpus.problem else gpus.devices:
        shown = shown_holders(gpus, device)
        found += [Row(device, holder, number == 0) for number, holder in enumerate(shown)]
        if not shown:
            found.append(Row(device, None, True))
    return found + [Row(None, holder, True) for holder in gpus.strays]


def mark_of(row: Row) -> Mark | None:
    """Return what marks a row's process; None where there is none that a signal can reach."""
    if row.holder is None or row.holder.start_ticks is None:
        return None
    return row.holder.pid, row.holder.start_ticks


def selected(gpus: GpuView, view: View) -> Row | None:
    """Return the row under the cursor of the zoomed pane."""
    found = rows(gpus) if view.zoom == 2 else []
    return found[min(view.cursor, len(found) - 1)] if found else None


def zoomed(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return one line a GPU and holder, then what is known of the selected one."""
    gpus = snapshot.gpus
    found = rows(gpus)
    if not found:
        return absent(gpus, columns)
    places = _BROAD if columns >= WIDE else _NARROW
    cursor = min(view.cursor, len(found) - 1)
    drawn = absent(replace(gpus, strays=()), columns) if gpus.problem else []
    spare = height - len(drawn) - len(found)
    drawn += [_head(places, columns)] if spare > 0 else []
    below = _details(found[cursor], gpus, snapshot.at, columns)[: max(0, spare - 1)]
    room = max(1, height - len(drawn) - len(below))
    first = max(0, min(cursor - room + 1, len(found) - room))
    for number, row in enumerate(found[first : first + room], first):
        line = _line(row, places, snapshot, view, columns)
        drawn.append(line.inked(Ink.CURSOR) if number == cursor else line)
    return [*drawn, *below]


def _head(places: _Places, columns: int) -> Line:
    pen = Pen(columns)
    for end, word in ((4, "#"), (11, "GiB"), (places.util, "util"), (places.temp, "°C"),
                      (places.watt, "W"), (places.pid, "pid")):  # fmt: skip
        pen.right(end, word, Ink.DIM)
    pen.put(places.spark, "10 min", Ink.DIM)
    if places.busy is not None:
        pen.put(places.busy, "10 min", Ink.DIM)
    if places.own is not None:
        pen.right(places.own, "GiB", Ink.DIM)
    pen.put(places.kind, "kind", Ink.DIM)
    if places.user is not None:
        pen.put(places.user, "user", Ink.DIM)
    pen.put(places.what, "what", Ink.DIM)
    return pen.line()


def _line(row: Row, places: _Places, snapshot: Snapshot, view: View, columns: int) -> Line:
    pen = Pen(columns)
    is_marked = (mark := mark_of(row)) is not None and mark in view.marked
    pen.put(1, "*" if is_marked else " ", Ink.BOLD)
    if row.device is not None and row.is_first:
        _put_device(pen, row.device, places, snapshot)
    elif row.device is None:
        pen.right(11, "no GPU", Ink.DIM)
    if row.device is not None and row.device.problem:
        return pen.line()
    if row.holder is not None:
        _put_holder(pen, row, row.holder, places)
    elif row.device is not None:
        pen.put(places.kind, _nobody(row.device, snapshot.gpus, snapshot.at), Ink.DIM)
    return pen.line()


def _put_device(pen: Pen, device: GpuDevice, places: _Places, snapshot: Snapshot) -> None:
    pen.right(4, str(device.index))
    if device.problem:
        pen.put(6, f"{device.problem} ({device.bus_id})", Ink.ALARM)
        return
    series = snapshot.gpu_series.get(device.uuid)
    memory = Reading(device.memory_used_bytes, snapshot.at, 1 / GIB, 1)
    pen.right(11, memory.text, Ink.DIM if memory.is_stale else Ink.BOLD)
    pen.put(places.spark, _spark(series, places.cells, is_memory=True), Ink.SPARK)
    busy = Reading(device.utilisation_ratio, snapshot.at, 100.0)
    pen.right(places.util, busy.text, Ink.DIM if busy.is_stale else Ink.PLAIN)
    if busy.figure.known:
        pen.put(places.util, "%", Ink.DIM)
    if places.busy is not None:
        pen.put(places.busy, _spark(series, places.cells, is_memory=False), Ink.SPARK)
    for end, figure in ((places.temp, device.temperature_c), (places.watt, device.power_w)):
        reading = Reading(figure, snapshot.at)
        pen.right(end, reading.text, Ink.DIM if reading.is_stale else Ink.PLAIN, 5)


def _spark(series: GpuSeries | None, cells: int, *, is_memory: bool) -> str:
    if series is None:
        return " " * cells
    return spark(series.memory if is_memory else series.utilisation, cells, 1.0)


def _put_holder(pen: Pen, row: Row, holder: Holder, places: _Places) -> None:
    is_left = holder.kind in (HolderKind.LEFTOVER, HolderKind.EXITING)
    ink = Ink.WARN if is_left else Ink.PLAIN
    pen.right(places.pid, str(holder.pid), Ink.BOLD)
    own = MISSING if holder.memory_bytes is None else f"{holder.memory_bytes / GIB:.1f}"
    if places.own is not None:
        pen.right(places.own, own)
    elif not row.is_first:
        pen.right(11, own, Ink.DIM)  # the GPU's own figures stand in the row above
    pen.put(places.kind, KIND_WORDS[holder.kind], ink, 13 if places.own is None else 17)
    if places.user is not None:
        pen.put(places.user, literal(holder.user or MISSING), Ink.PLAIN, 9)
    pen.put(places.what, literal(holder.title).replace("sglang::", ""), Ink.PLAIN)


def _nobody(device: GpuDevice, gpus: GpuView, now: float) -> str:
    """Return what is proven of a GPU that nobody is seen to hold."""
    if device.processes_problem:
        return "– not listed"
    proof = gpus.proof_of(device.uuid)
    if proof is None:
        return "no holder"
    if not proof.is_clean:
        return "no holder here, memory is in use"
    return f"clean {duration(max(0.0, now - (proof.since or now)))}"


def _details(row: Row, gpus: GpuView, now: float, columns: int) -> list[Line]:
    """Return what is known of the selected row: the process, then the proof of its GPU."""
    texts: list[str] = []
    if (holder := row.holder) is not None:
        owner = holder.owner or "none"
        boxed = f" · container {holder.container}" if holder.container else ""
        texts.append(
            f"pid {holder.pid} · parent {holder.parent_pid} · group {holder.group} · session"
            f" {holder.session} · user {holder.user} · owner {owner}{boxed}"
        )
        texts.append(f"{KIND_WORDS[holder.kind]}: {holder.evidence} · {holder.title}")
    if row.device is not None:
        texts += device_notes(row.device, gpus, now)
    lines = [part for text in texts for part in wrap(literal(text), columns - 2)[:2]]
    return [plain(columns, f" {line}", Ink.DIM) for line in lines]


def device_notes(device: GpuDevice, gpus: GpuView, now: float) -> list[str]:
    """Return the proof of a GPU, why its clocks are held, and its errors, one text each."""
    notes = []
    proof = gpus.proof_of(device.uuid)
    if proof is not None and proof.is_clean:
        since = duration(max(0.0, now - (proof.since or now)))
        notes.append(f"GPU {device.index} clean for {since}: no holder, {proof.basis}")
    elif proof is not None:
        notes.append(f"GPU {device.index} NOT clean: {'; '.join(proof.blockers)}")
    if device.throttle_reasons:
        notes.append(f"clocks: {', '.join(device.throttle_reasons)}")
    notes += [f"Xid {xid.code} {xid.text}".rstrip() for xid in device.xids[-2:]]
    if device.virtualisation not in (None, "none"):
        notes.append(f"virtualisation: {device.virtualisation}")
    notes += [f"MIG {i.gpu_instance} {i.name}" for i in device.mig_instances]
    return notes
