"""Pane 2 in a small terminal: one line for what is alike, one for what is not."""

from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, Holder, HolderKind
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import GIB, MIB, thousands
from kvctl.tui.present.figures import MISSING
from kvctl.tui.present.gpus import (
    KIND_WORDS,
    Odd,
    absent,
    clock_words,
    holders_of,
    known_values,
    odd_ones,
)
from kvctl.tui.present.line import Ink, Line, Pen
from kvctl.tui.present.text import literal
from kvctl.tui.present.view import View

_MOST_COMPACT = 4
"""Lines, before devices that differ in the same way become one line."""


def compact(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return one line for what is alike and one for each device that is not."""
    gpus = snapshot.gpus
    if gpus.problem or not gpus.devices:
        return absent(gpus, columns)
    odd = odd_ones(gpus)
    strange = {o.device.uuid for o in odd}
    alike = [d for d in gpus.devices if d.uuid not in strange]
    drawn = [_alike_line(alike, gpus, columns)] if alike else []
    room = max(1, min(height, _MOST_COMPACT) - len(drawn))
    if len(odd) <= room:
        return drawn + [_odd_line(o, gpus, columns) for o in odd]
    groups: dict[tuple[HolderKind | None, bool], list[Odd]] = {}
    for one in odd:
        kind = one.holder.kind if one.holder is not None else None
        groups.setdefault((kind, one.device.problem is not None), []).append(one)
    return drawn + [_group_line(group, gpus, columns) for group in groups.values()]


def _group_line(group: list[Odd], gpus: GpuView, columns: int) -> Line:
    """Return one line for several devices that differ in the same way."""
    if len(group) == 1:
        return _odd_line(group[0], gpus, columns)
    pen = Pen(columns)
    pen.put(1, f"GPU {_indices([one.device.index for one in group])}", Ink.BOLD)
    memory = memory_range(known_values([one.device for one in group], "memory_used_bytes"))
    memory += "" if memory.endswith("MiB") else " GiB"
    kinds = {one.holder.kind for one in group if one.holder is not None}
    pids = {
        holder.pid
        for one in group
        for holder in holders_of(gpus, one.device)
        if holder.kind in kinds
    }
    words = group[0].device.problem or _unheld(group[0].device, gpus)
    if group[0].holder is not None and not group[0].device.problem:
        words = f"{len(pids)} {KIND_WORDS[group[0].holder.kind]}, {memory} each"
    ink = Ink.ALARM if group[0].device.problem else Ink.WARN if kinds else Ink.PLAIN
    pen.put(18, f"{words}; 2 shows each", ink)
    return pen.line()


def _indices(numbers: list[int]) -> str:
    """Return numbers as ranges: "0–7", "0, 3–5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def _alike_line(alike: list[GpuDevice], gpus: GpuView, columns: int) -> Line:
    pen = Pen(columns)
    shift = min(12, max(0, columns - 80) // 4)
    total = max(known_values(alike, "memory_total_bytes"), default=None)
    size = f" of {total / GIB:.1f} GiB" if total else ""
    pen.put(1, memory_range(known_values(alike, "memory_used_bytes")) + size)
    utils = [u * 100 for u in known_values(alike, "utilisation_ratio")]
    pen.put(25 + shift, f"util {_range(utils)} %" if utils else "util –")
    temps = known_values(alike, "temperature_c")
    pen.put(40 + 2 * shift, f"{_range(temps)} °C" if temps else "– °C")
    watts = known_values(gpus.devices, "power_w")
    pen.right(56 + 3 * shift, thousands(sum(watts)) if watts else MISSING)
    pen.put(57 + 3 * shift, "W", Ink.DIM)
    pen.put(61 + 3 * shift, clock_words(gpus) or "clocks free", Ink.DIM)
    return pen.line()


def memory_range(values: list[float]) -> str:
    """Return least and most memory of a group without the unit of GiB: "90.1–90.6", "4 MiB"."""
    if not values:
        return MISSING
    low, high = min(values), max(values)
    if high < GIB:
        return f"{_pair(low / MIB, high / MIB, 0)} MiB"
    return _pair(low / GIB, high / GIB, 1)


def _range(values: list[float]) -> str:
    return _pair(min(values), max(values), 0)


def _pair(low: float, high: float, decimals: int) -> str:
    first, last = f"{low:.{decimals}f}", f"{high:.{decimals}f}"
    return first if first == last else f"{first}–{last}"


def _odd_line(odd: Odd, gpus: GpuView, columns: int) -> Line:
    pen = Pen(columns)
    device, holder = odd.device, odd.holder
    pen.put(1, f"GPU {device.index}", Ink.BOLD)
    if device.problem:
        pen.put(8, device.problem, Ink.ALARM)
        return pen.line()
    used = device.memory_used_bytes.value
    pen.right(12, MISSING if used is None else f"{used / GIB:.1f}", Ink.BOLD)
    pen.put(13, "GiB", Ink.DIM)
    pen.put(18, _odd_words(device, holder, gpus), Ink.WARN if holder else Ink.PLAIN)
    return pen.line()


def _odd_words(device: GpuDevice, holder: Holder | None, gpus: GpuView) -> str:
    if holder is None:
        return device.processes_problem or _unheld(device, gpus)
    owner = f"of {literal(holder.user)}" if holder.user else "user unknown"
    owner = "yours" if holder.is_mine else owner
    name = literal(holder.title).split(" ")[0]
    kind = KIND_WORDS[holder.kind]
    return f"{kind} {name} pid {holder.pid}, {owner}, {literal(holder.evidence)}"


def _unheld(device: GpuDevice, gpus: GpuView) -> str:
    """Return why a device without a strange holder is not like the others."""
    proof = gpus.proof_of(device.uuid)
    if proof is not None and proof.is_clean:
        return "clean, nobody holds it"
    held = holders_of(gpus, device)
    if held:
        return f"differs from the others, held by {held[0].pid} {literal(held[0].title)}"
    return "differs from the others, no process explains it"
