"""Memory that nobody explains, the idle level of a device, and what may be signalled.

Pure. The idle level of a device is the lowest use seen on this host while nothing held it; where
that was never seen, 1 GiB or 1.5 % of the memory, whichever is more. A level that was learnt is
never above that: memory that an unseen holder keeps must not become "idle".
"""

from collections.abc import Iterable, Mapping

from kvctl.core.domain.gpus.devices import (
    GpuDevice,
    GpuView,
    Holder,
    HolderKind,
    ProcessIdentity,
    short_title,
)
from kvctl.core.domain.units import GIB, MIB, mib

IDLE_FLOOR_BYTES = GIB
IDLE_SHARE = 0.015
"""Of the total, where no idle level was ever seen."""
IDLE_SLACK_BYTES = 64 * MIB
"""How far an idle device wanders above the lowest level that was seen."""


def default_idle_bytes(total_bytes: float | None) -> int:
    """Return the use that still counts as idle where no level was learnt."""
    return max(IDLE_FLOOR_BYTES, int((total_bytes or 0) * IDLE_SHARE))


def idle_limit(device: GpuDevice, idle_bytes: Mapping[str, int]) -> tuple[int, str]:
    """Return the highest use that is idle, and where that level comes from."""
    fallback = default_idle_bytes(device.memory_total_bytes.value)
    learnt = idle_bytes.get(device.uuid)
    if learnt is None or learnt > fallback:
        return fallback, f"idle level assumed: {mib(fallback)} at most"
    return min(fallback, learnt + IDLE_SLACK_BYTES), f"idle level {mib(learnt)}, seen before"


def learn_idle(idle_bytes: Mapping[str, int], view: GpuView) -> dict[str, int]:
    """Return the levels with every lower one that this view shows on a device without holders."""
    levels = dict(idle_bytes)
    held = {holder.gpu_uuid for holder in view.holders if holder.is_driver_listed}
    for device in view.devices:
        used = device.memory_used_bytes.value
        is_bare = device.uuid not in held and device.processes_problem is None
        if used is None or not is_bare or device.is_unified or device.problem:
            continue
        if used <= default_idle_bytes(device.memory_total_bytes.value):
            levels[device.uuid] = min(int(used), levels.get(device.uuid, int(used)))
    return levels


def unexplained_bytes(device: GpuDevice, holders: Iterable[Holder]) -> int | None:
    """Return used memory that no listed process accounts for; None where that cannot be told.

    Used minus the sum over its processes, never below 0. It contains what the device uses
    when idle.
    """
    used = device.memory_used_bytes.value
    if used is None or device.is_unified or device.processes_problem is not None:
        return None
    explained = 0
    for holder in holders:
        if holder.gpu_uuid != device.uuid or not holder.is_driver_listed:
            continue
        if holder.memory_bytes is None:
            return None
        explained += holder.memory_bytes
    return max(0, int(used) - explained)


def is_left_behind(holder: Holder) -> bool:
    """Return whether it is a leftover, or was one that can no longer be ended by a signal."""
    if holder.kind is HolderKind.LEFTOVER:
        return True
    return holder.kind is HolderKind.EXITING and (
        holder.server is not None or (holder.is_mine and holder.title.startswith("sglang::"))
    )


def identity_of(holder: Holder) -> ProcessIdentity | None:
    """Return its identity; None where it is not visible here and so is never signalled."""
    if holder.start_ticks is None:
        return None
    return ProcessIdentity(holder.pid, holder.start_ticks)


def shown_holders(view: GpuView, device: GpuDevice) -> tuple[Holder, ...]:
    """Return the holders of a device that a list shows.

    Who only has the device file open (main processes, monitors) is left out, unless it was left
    behind, or the driver lists nobody although memory is in use.
    """
    here = [holder for holder in view.holders if holder.gpu_uuid == device.uuid]
    told = [holder for holder in here if holder.is_driver_listed or is_left_behind(holder)]
    used = device.memory_used_bytes.value or 0
    is_idle = used <= default_idle_bytes(device.memory_total_bytes.value)
    return tuple(told if told or is_idle else here)


def every_holder(view: GpuView) -> tuple[Holder, ...]:
    """Return the shown holders of every device, then the strays."""
    shown = (holder for device in view.devices for holder in shown_holders(view, device))
    return (*shown, *view.strays)


def leftover_bytes(view: GpuView) -> int:
    """Return the memory that leftovers hold, those included that no signal can end."""
    return sum(holder.memory_bytes or 0 for holder in view.holders if is_left_behind(holder))


def usable_text(view: GpuView) -> str:
    """Return how many devices can be used: "2 of 4 GPUs usable"."""
    usable = sum(1 for device in view.devices if device.problem is None)
    whole = max(view.expected_count or 0, len(view.devices))
    return f"{usable} of {whole} GPUs usable"


def describe(holder: Holder) -> str:
    """Return one line: "GPU 4: 93,699 MiB held by 41822 sglang::scheduler_TP4, ours, …"."""
    title = f" {short_title(holder.title)}" if holder.title else ""
    if holder.gpu_index is None:
        what = holder.kind.replace("_", " ")
        return f"no GPU: {holder.pid}{title} (user {holder.user}), {what}: {holder.evidence}"
    memory = mib(holder.memory_bytes) if holder.memory_bytes is not None else "memory"
    user = "" if holder.is_mine or holder.user is None else f" (user {holder.user})"
    owner = f", owner {holder.owner}" if holder.owner else ""
    verb = "held by" if holder.is_driver_listed else "perhaps held by"
    head = f"GPU {holder.gpu_index}: {memory} {verb} {holder.pid}{title}{user}"
    return f"{head}, {holder.kind.replace('_', ' ')}: {holder.evidence}{owner}"


def signal_refusal(holder: Holder) -> str | None:
    """Return why no signal may be sent to it at all, None where one may (after asking)."""
    if holder.start_ticks is None or not holder.is_certain:
        return f"{holder.evidence}; it cannot be signalled from here"
    if not holder.is_permitted:
        return f"not permitted: it belongs to user {holder.user}; run kvctl as them, or as root"
    if holder.owner_restarts:
        typed = f": {holder.owner_command}" if holder.owner_command else ""
        return f"{holder.owner} would start it again; stop it through its owner{typed}"
    if holder.state in ("Z", "X"):
        return f"it has ended; only its parent {holder.parent_pid} can collect it"
    return None


def standing_holders(view: GpuView) -> frozenset[ProcessIdentity]:
    """Return who holds GPUs without being ours: not what a stop of ours has to wait for."""
    return frozenset(
        identity
        for holder in view.holders
        if (identity := identity_of(holder)) is not None
        and holder.server is None
        and holder.kind in (HolderKind.FOREIGN, HolderKind.OTHER_SGLANG)
    )


def stuck_advice(gpu_index: int | None) -> str:
    """Return what can help where KILL cannot."""
    which = "" if gpu_index is None else f" -i {gpu_index}"
    return (
        "KILL cannot work until the kernel lets go; what can help: wait, or reset the GPU"
        f" (nvidia-smi --gpu-reset{which}, with nothing else on it), or reboot"
    )


def confirmation_text(holder: Holder) -> str | None:
    """Return what the operator must agree to before a signal, None for leftovers of ours."""
    if holder.kind is HolderKind.LEFTOVER and holder.is_mine and holder.owner_restarts is False:
        return None
    user = "your user" if holder.is_mine else f"user {holder.user}"
    user += ", holds no GPU" if holder.gpu_index is None else ""
    owner = f"; {holder.owner}" if holder.owner else ""
    if holder.owner and holder.owner_restarts is None:
        owner += ", which may start it again"
    boxed = f"; container {holder.container}" if holder.container else ""
    return f"{holder.pid} {holder.title[:80]} ({user}): {holder.evidence}{owner}{boxed}"
