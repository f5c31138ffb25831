"""Pane 2, GPUs: what is alike is one line, what differs stands alone in words."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, Holder, HolderKind
from kvctl.core.domain.gpus.holding import every_holder, shown_holders
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import GIB, thousands
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
        left = f" ── {len(view.strays)} leftover: K" if view.strays else ""
        return f"2 GPUs ── none visible{left}"
    alike = len(view.devices) - len(odd_ones(view))
    total = sum_of(view, "memory_total_bytes")
    used = sum_of(view, "memory_used_bytes")
    memory = f"{_whole_gib(used)} of {_whole_gib(total)} GiB"
    share = f"{alike} of {len(view.devices)} alike"
    return f"2 GPUs ── {share if is_short else memory} ── {holders_in_words(view)}"


def holders_in_words(view: GpuView) -> str:
    """Return who holds memory: "8 ranks, nothing else", "1 leftover: K"."""
    counts = {kind: {h.pid for h in every_holder(view) if h.kind is kind} for kind in HolderKind}
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
        strangers = [h for h in holders_of(view, device) if h.kind in _NOTEWORTHY]
        used, total = device.memory_used_bytes.value, device.memory_total_bytes.value
        differs = used is not None and total and abs(used - middle) > _ODD_SHARE * total
        if strangers or device.problem or differs:
            odd.append(Odd(device, strangers[0] if strangers else None))
    return odd


def holders_of(view: GpuView, device: GpuDevice) -> list[Holder]:
    """Return who is shown as holding a device."""
    return list(shown_holders(view, device))


def sum_of(view: GpuView, name: str) -> float | None:
    """Return the sum of one figure over the devices that know it, None if none does."""
    known = [figure.value for figure in _figures(view.devices, name) if figure.value is not None]
    return sum(known) if known else None


def _figures(devices: Iterable[GpuDevice], name: str) -> list[Figure]:
    return [getattr(device, name) for device in devices]


def _whole_gib(value: float | None) -> str:
    return MISSING if value is None else f"{value / GIB:,.0f}"


def body(snapshot: Snapshot, view: View, columns: int, height: int) -> list[Line]:
    """Return one row a device, and their sum."""
    gpus = snapshot.gpus
    if gpus.problem or not gpus.devices:
        return absent(gpus, columns)
    rows = [_head(gpus, columns)]
    odd = {o.device.uuid: o for o in odd_ones(gpus)}
    room = height - 2
    shown = sorted(gpus.devices, key=lambda d: d.uuid not in odd)[:room]
    for device in sorted(shown, key=lambda d: d.index):
        rows.append(_row(device, odd.get(device.uuid), snapshot, columns))
    hidden = [device for device in gpus.devices if device not in shown]
    rows.append(_sum(gpus, columns, hidden, any(device.uuid in odd for device in hidden)))
    return rows


def absent(gpus: GpuView, columns: int) -> list[Line]:
    """Return why there is nothing to show, and what is left behind nevertheless."""
    text = gpus.problem or "no device was read yet"
    drawn = []
    for part in wrap(text, columns - 2):
        pen = Pen(columns)
        pen.put(1, part, Ink.BOLD)
        drawn.append(pen.line())
    if gpus.strays:
        pen = Pen(columns)
        count = len(gpus.strays)
        first = f"{gpus.strays[0].pid} {literal(gpus.strays[0].title)}"
        pen.put(1, f"{count} leftover process{'es' * (count != 1)}: {first}", Ink.WARN)
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
    _put_utilisation(pen, 30 + shift, Reading(device.utilisation_ratio, snapshot.at, 100.0))
    _plain_figure(pen, 37 + shift, device.temperature_c, snapshot.at)
    _plain_figure(pen, 44 + shift, device.power_w, snapshot.at)
    pen.put(46 + shift, _held_by(snapshot.gpus, device))
    return pen.line()


def _put_utilisation(pen: Pen, end: int, reading: Reading) -> None:
    """Put it with its unit, or with its age in three cells: the next column begins behind them."""
    age = reading.figure.age_s(reading.now) or 0.0
    unit = f"{age:.0f}s" if age < 99.5 else f"{min(99.0, age / 60):.0f}m"
    if not reading.figure.known:
        unit = ""
    elif not reading.is_stale:
        unit = "%"
    pen.right(end, reading.text, Ink.BOLD if unit == "%" else Ink.DIM, 4)
    pen.put(end + 1, unit, Ink.DIM, 3)


def _plain_figure(pen: Pen, end: int, figure: Figure, now: float) -> None:
    reading = Reading(figure, now)
    ink = Ink.DIM if reading.is_stale or not figure.known else Ink.PLAIN
    pen.right(end, reading.text, ink, 6)


def holder_phrase(holder: Holder) -> str:
    """Return what a holder is: "leftover scheduler_TP4 pid 41822"."""
    name = literal(holder.title).split(" ")[0].rsplit("/", 1)[-1].replace("sglang::", "")
    return f"{KIND_WORDS[holder.kind]} {name} pid {holder.pid}"


def _held_by(gpus: GpuView, device: GpuDevice) -> str:
    holders = holders_of(gpus, device)
    if device.processes_problem and not holders:
        return "– not listed"
    if not holders:
        return MISSING
    first = holders[0]
    name = first.rank or literal(first.title).split(" ")[0].rsplit("/", 1)[-1]
    return f"{name} +{len(holders) - 1}" if len(holders) > 1 else name


def _sum(gpus: GpuView, columns: int, hidden: list[GpuDevice], are_odd: bool) -> Line:
    pen = Pen(columns)
    shift = columns - 58
    used, total = sum_of(gpus, "memory_used_bytes"), sum_of(gpus, "memory_total_bytes")
    pen.put(1, "Σ")
    pen.right(9, _whole_gib(used), Ink.BOLD)
    more = f", {len(hidden)} more{'' if are_odd else ' alike'}" if hidden else ""
    pen.put(10, f"of {_whole_gib(total)}{more}", Ink.DIM)
    utils = known_values(gpus.devices, "utilisation_ratio")
    temps = known_values(gpus.devices, "temperature_c")
    watts = known_values(gpus.devices, "power_w")
    if utils:
        pen.right(30 + shift, f"{sum(utils) / len(utils) * 100:.0f}", Ink.BOLD)
        pen.put(31 + shift, "%", Ink.DIM)
    pen.right(37 + shift, f"{max(temps):.0f}" if temps else MISSING)
    pen.right(44 + shift, thousands(sum(watts)) if watts else MISSING)
    leftovers = gpus.left_processes
    text = f"{leftovers} leftover" if leftovers else clock_words(gpus) or "no leftover"
    pen.put(46 + shift, text, Ink.WARN if leftovers else Ink.DIM)
    return pen.line()


def clock_words(gpus: GpuView) -> str:
    """Return why clocks are held down anywhere, "" where they are free."""
    reasons = {reason for device in gpus.devices for reason in device.throttle_reasons}
    return f"clocks: {', '.join(sorted(reasons))}" if reasons else ""


def known_values(devices: Iterable[GpuDevice], name: str) -> list[float]:
    """Return one figure of the devices that know it."""
    return [f.value for f in _figures(devices, name) if f.value is not None]
