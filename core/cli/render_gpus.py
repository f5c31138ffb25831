"""The GPUs as lines of plain text for `kvctl gpus` and `kvctl status`; pure."""

from collections.abc import Iterator

from kvctl.core.cli.lines import UNKNOWN, one_line, table
from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, Holder
from kvctl.core.domain.gpus.holding import every_holder, shown_holders, unexplained_bytes
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import GIB, duration, gib, mib

_TITLE = 60


def gpu_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield devices, whether each is clean, and what holds their memory."""
    view = snapshot.gpus
    if view.problem or not view.devices:
        yield one_line(f"GPUs: {view.problem or 'none was found'}")
    head = ("gpu", "memory", "of", "busy", "temp", "clean", "name")
    if view.devices:
        yield from table(head, [_device_row(d, view, snapshot.at) for d in view.devices])
    holders = every_holder(view)
    if holders:
        columns = ("gpu", "pid", "memory", "kind", "user", "process")
        yield from table(columns, [_holder_row(holder) for holder in holders])
    yield from _remarks(view)


def _remarks(view: GpuView) -> Iterator[str]:
    """Yield what is odd or not shown, one line each."""
    for device in view.devices:
        name = f"GPU {device.index} ({device.bus_id})"
        if problem := device.problem or device.processes_problem:
            yield one_line(f"{name}: {problem}")
        for xid in device.xids:
            yield one_line(f"{name}: Xid {xid.code} {xid.text}".rstrip())
        unexplained = unexplained_bytes(device, view.holders)
        if unexplained is not None and unexplained > GIB and device.problem is None:
            yield f"{name}: {mib(unexplained)} held by no process here"
    hidden = len({h.pid for h in view.holders} - {h.pid for h in every_holder(view)})
    if hidden:
        yield f"{hidden} more processes have a device file open and hold no memory (--json)"
    if view.left_processes:
        yield "leftovers end with: kvctl kill --leftovers"
    yield from (one_line(limit) for limit in view.scan_limits)


def _device_row(device: GpuDevice, view: GpuView, now: float) -> tuple[str, ...]:
    busy, temperature = device.utilisation_ratio.value, device.temperature_c.value
    return (
        str(device.index),
        mib(device.memory_used_bytes.value),
        gib(device.memory_total_bytes.value),
        UNKNOWN if busy is None else f"{busy:.0%}",
        UNKNOWN if temperature is None else f"{temperature:.0f} C",
        clean_words(device, view, now),
        one_line(device.name) + _kind_of(device),
    )


def clean_words(device: GpuDevice, view: GpuView, now: float) -> str:
    """Return what the last reading proves of a device: "clean 12 s", "held by 1", "no proof"."""
    proof = view.proof_of(device.uuid)
    if proof is None or device.problem is not None:
        return "no proof"
    if proof.is_clean:
        return (
            f"clean {duration(max(0.0, now - (proof.since if proof.since is not None else now)))}"
        )
    count = len({holder.pid for holder in shown_holders(view, device)})
    return f"held by {count}" if count else "not clean"


def _kind_of(device: GpuDevice) -> str:
    words = [
        "unified memory" if device.is_unified else "",
        f"MIG, {len(device.mig_instances)} instances" if device.is_mig else "",
        device.virtualisation if device.virtualisation not in (None, "none") else "",
    ]
    told = ", ".join(word for word in words if word)
    return f" ({told})" if told else ""


def _holder_row(holder: Holder) -> tuple[str, ...]:
    owner = f"  [{holder.owner}]" if holder.owner else ""
    return (
        UNKNOWN if holder.gpu_index is None else str(holder.gpu_index),
        str(holder.pid),
        mib(holder.memory_bytes),
        holder.kind.value,
        one_line(holder.user or UNKNOWN),
        one_line(holder.title, _TITLE) + one_line(owner),
    )
