"""Pane 2, GPUs: what is alike is one line, what differs stands alone in words."""

from dataclasses import dataclass
from statistics import median

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus import GpuDevice, GpuView, Holder, HolderKind
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import GIB, MIB, thousands
from kvctl.tui.present.figures import MISSING, Reading, Slot, bar, put_figure
from kvctl.tui.present.line import Ink, Line, Pen
from kvctl.tui.present.text import literal, wrap
from kvctl.tui.present.view import View

_ODD_SHARE = 0.1
_NOTEWORTHY = (
    HolderKind.LEFTOVER,
    HolderKind.FOREIGN,
    HolderKind.OTHER_SGLANG,
    HolderKind.INVISIBLE,
    HolderKind.EXITING,
)
KIND_WORDS = {
    HolderKind.RANK: "rank",
    HolderKind.LAUNCHING: "launching",
    HolderKind.LEFTOVER: "leftover",
    HolderKind.OTHER_SGLANG: "other SGLang",
    HolderKind.FOREIGN: "foreign",
    HolderKind.INVISIBLE: "not visible here",
    HolderKind.EXITING: "exiting",
}


@dataclass(frozen=True, slots=True)
class Odd:
    """A device that is not like the others, with the process that makes it so."""

    device: GpuDevice
    holder: Holder | None


def title(snapshot: Snapshot, *, is_short: bool = False) -> str:
    """Return the pane's title: memory, or how many are alike, and who holds it."""
    view = snapshot.gpus
    if view.problem or not view.devices:
        return "2 GPUs ── none visible"
    alike = len(view.devices) - len(odd_ones(view))
    total = sum_of(view, "memory_total_bytes")
    used = sum_of(view, "memory_used_bytes")
    memory = f"{_whole_gib(used)} of {_whole_gib(total)} GiB"
    share = f"{alike} of {len(view.devices)} alike"
    return f"2 GPUs ── {share if is_short else memory} ── {holders_in_words(view)}"


def holders_in_words(view: GpuView) -> str:
    """Return who holds memory: "8 ranks, nothing else", "1 leftover: K"."""
    counts = {kind: {h.pid for h in view.holders if h.kind is kind} for kind in HolderKind}
    extra = [f"{len(pids)} {KIND_WORDS[k]}" for k in _NOTEWORTHY if (pids := counts[k])]
    ranks, launching = len(counts[HolderKind.RANK]), len(counts[HolderKind.LAUNCHING])
    own = [f"{ranks} rank{'s' * (ranks != 1)}"] if ranks else []
    own += [f"{launching} ranks loading"] if launching else []
    if extra:
        key = ": K" if counts[HolderKind.LEFTOVER] else ""
        return ", ".join([*own, *extra]) + key
    return f"{own[0]}, nothing else" if own else "no process holds memory"


def odd_ones(view: GpuView) -> list[Odd]:
    """Return the devices that need a line of their own."""
    odd: list[Odd] = []
    levels = [d.memory_used_bytes.value for d in view.devices if d.memory_used_bytes.known]
    middle = median(v for v in levels if v is not None) if levels else 0
    for device in view.devices:
        strangers = [h for h in _holders(view, device) if h.kind in _NOTEWORTHY]
        used, total = device.memory_used_bytes.value, device.memory_total_bytes.value
        differs = used is not None and total and abs(used - middle) > _ODD_SHARE * total
        if strangers or device.problem or differs:
            odd.append(Odd(device, strangers[0] if strangers else None))
    return odd


def _holders(view: GpuView, device: GpuDevice) -> list[Holder]:
    return [holder for holder in view.holders if holder.gpu_uuid == device.uuid]


def sum_of(view: GpuView, name: str) -> float | None:
    """Return the sum of one figure over the devices that know it, None if none does."""
    known = [figure.value for figure in _figures(view.devices, name) if figure.value is not None]
    return sum(known) if known else None


def _figures(devices: tuple[GpuDevice, ...] | list[GpuDevice], name: str) -> list[Figure]:
    return [getattr(device, name) for device in devices]


def _whole_gib(value: float | None) -> str:
    return MISSING if value is None else f"{value / GIB:,.0f}"


def body(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return one row a device, and their sum."""
    gpus = snapshot.gpus
    if gpus.problem or not gpus.devices:
        return _absent(gpus, columns)
    rows = [_head(gpus, columns)]
    odd = {o.device.uuid: o for o in odd_ones(gpus)}
    room = height - 2
    shown = sorted(gpus.devices, key=lambda d: d.uuid not in odd)[:room]
    for device in sorted(shown, key=lambda d: d.index):
        rows.append(_row(device, odd.get(device.uuid), snapshot, columns))
    rows.append(_sum(gpus, columns, len(gpus.devices) - len(shown)))
    return rows


def _absent(gpus: GpuView, columns: int) -> list[Line]:
    text = gpus.problem or "no device was read yet"
    drawn = []
    for part in wrap(text, columns - 2):
        pen = Pen(columns)
        pen.put(1, part, Ink.BOLD)
        drawn.append(pen.line())
    return drawn


def _head(gpus: GpuView, columns: int) -> Line:
    pen = Pen(columns)
    totals = {d.memory_total_bytes.value for d in gpus.devices}
    total = totals.pop() if len(totals) == 1 else None
    shift = columns - 58
    pen.put(1, "#", Ink.DIM)
    pen.right(9, "GiB", Ink.DIM)
    if total is not None:
        pen.put(10, f"of {total / GIB:.1f}", Ink.DIM)
    for end, word in ((30, "util"), (37, "°C"), (44, "W")):
        pen.right(end + shift, word, Ink.DIM)
    pen.put(46 + shift, "held by", Ink.DIM)
    return pen.line()


def _row(device: GpuDevice, odd: Odd | None, snapshot: Snapshot, columns: int) -> Line:
    pen = Pen(columns)
    shift = columns - 58
    pen.put(1, str(device.index))
    if device.problem:
        pen.put(5, device.problem, Ink.ALARM)
        return pen.line()
    used, total = device.memory_used_bytes, device.memory_total_bytes.value
    put_figure(pen, Slot(9, 6), Reading(used, snapshot.at, 1 / GIB, 1))
    ratio = used.value / total if used.value is not None and total else None
    pen.put(10, bar(ratio, 14 + shift), Ink.BAR)
    if odd is not None and odd.holder is not None:
        pen.put(26 + shift, holder_phrase(odd.holder), Ink.WARN)
        return pen.line()
    put_figure(pen, Slot(30 + shift, 4), Reading(device.utilisation_ratio, snapshot.at, 100.0))
    if device.utilisation_ratio.known:
        pen.put(31 + shift, "%", Ink.DIM)
    _plain_figure(pen, 37 + shift, device.temperature_c, snapshot.at)
    _plain_figure(pen, 44 + shift, device.power_w, snapshot.at)
    pen.put(46 + shift, _held_by(snapshot.gpus, device))
    return pen.line()


def _plain_figure(pen: Pen, end: int, figure: Figure, now: float) -> None:
    reading = Reading(figure, now)
    ink = Ink.DIM if reading.is_stale or not figure.known else Ink.PLAIN
    pen.right(end, reading.text, ink, 6)


def holder_phrase(holder: Holder) -> str:
    """Return what a holder is: "leftover scheduler_TP4 pid 41822"."""
    name = literal(holder.title).split(" ")[0].rsplit("/", 1)[-1].replace("sglang::", "")
    return f"{KIND_WORDS[holder.kind]} {name} pid {holder.pid}"


def _held_by(gpus: GpuView, device: GpuDevice) -> str:
    holders = _holders(gpus, device)
    if device.processes_problem and not holders:
        return "– not listed"
    if not holders:
        return MISSING
    first = holders[0]
    name = first.rank or literal(first.title).split(" ")[0].rsplit("/", 1)[-1]
    return f"{name} +{len(holders) - 1}" if len(holders) > 1 else name


def _sum(gpus: GpuView, columns: int, hidden: int) -> Line:
    pen = Pen(columns)
    shift = columns - 58
    used, total = sum_of(gpus, "memory_used_bytes"), sum_of(gpus, "memory_total_bytes")
    pen.put(1, "Σ")
    pen.right(9, _whole_gib(used), Ink.BOLD)
    more = f", {hidden} more alike" if hidden else ""
    pen.put(10, f"of {_whole_gib(total)}{more}", Ink.DIM)
    utils = _known(gpus.devices, "utilisation_ratio")
    temps, watts = _known(gpus.devices, "temperature_c"), _known(gpus.devices, "power_w")
    if utils:
        pen.right(30 + shift, f"{sum(utils) / len(utils) * 100:.0f}", Ink.BOLD)
        pen.put(31 + shift, "%", Ink.DIM)
    pen.right(37 + shift, f"{max(temps):.0f}" if temps else MISSING)
    pen.right(44 + shift, thousands(sum(watts)) if watts else MISSING)
    leftovers = len(gpus.leftovers)
    text = f"{leftovers} leftover" if leftovers else _clocks(gpus) or "no leftover"
    pen.put(46 + shift, text, Ink.WARN if leftovers else Ink.DIM)
    return pen.line()


def _clocks(gpus: GpuView) -> str:
    reasons = {reason for device in gpus.devices for reason in device.throttle_reasons}
    return f"clocks: {', '.join(sorted(reasons))}" if reasons else ""


def _known(devices: tuple[GpuDevice, ...] | list[GpuDevice], name: str) -> list[float]:
    return [f.value for f in _figures(devices, name) if f.value is not None]


def compact(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return one line for what is alike and one for each device that is not."""
    gpus = snapshot.gpus
    if gpus.problem or not gpus.devices:
        return _absent(gpus, columns)
    odd = odd_ones(gpus)
    strange = {o.device.uuid for o in odd}
    alike = [d for d in gpus.devices if d.uuid not in strange]
    drawn = [_alike_line(alike, gpus, columns)] if alike else []
    return drawn + [_odd_line(o, columns) for o in odd]


def _alike_line(alike: list[GpuDevice], gpus: GpuView, columns: int) -> Line:
    pen = Pen(columns)
    shift = min(12, max(0, columns - 80) // 4)
    total = max(_known(alike, "memory_total_bytes"), default=None)
    size = f" of {total / GIB:.1f} GiB" if total else ""
    pen.put(1, memory_range(_known(alike, "memory_used_bytes")) + size)
    utils = [u * 100 for u in _known(alike, "utilisation_ratio")]
    pen.put(25 + shift, f"util {_range(utils)} %" if utils else "util –")
    temps = _known(alike, "temperature_c")
    pen.put(40 + 2 * shift, f"{_range(temps)} °C" if temps else "– °C")
    watts = _known(gpus.devices, "power_w")
    pen.right(56 + 3 * shift, thousands(sum(watts)) if watts else MISSING)
    pen.put(57 + 3 * shift, "W", Ink.DIM)
    pen.put(61 + 3 * shift, _clocks(gpus) or "clocks free", Ink.DIM)
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


def _odd_line(odd: Odd, columns: int) -> Line:
    pen = Pen(columns)
    device, holder = odd.device, odd.holder
    pen.put(1, f"GPU {device.index}", Ink.BOLD)
    if device.problem:
        pen.put(8, device.problem, Ink.ALARM)
        return pen.line()
    used = device.memory_used_bytes.value
    pen.right(12, MISSING if used is None else f"{used / GIB:.1f}", Ink.BOLD)
    pen.put(13, "GiB", Ink.DIM)
    pen.put(18, _odd_words(device, holder), Ink.WARN if holder else Ink.PLAIN)
    return pen.line()


def _odd_words(device: GpuDevice, holder: Holder | None) -> str:
    if holder is None:
        return device.processes_problem or "differs from the others, no process explains it"
    owner = "yours" if holder.is_mine else f"of {literal(holder.user or 'another user')}"
    name = literal(holder.title).split(" ")[0]
    kind = KIND_WORDS[holder.kind]
    return f"{kind} {name} pid {holder.pid}, {owner}, {literal(holder.evidence)}"
