"""The preflight's lines on GPUs: enough of them, well, and free once the old server has stopped."""

from collections.abc import Iterator, Mapping, Sequence

from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, Holder, HolderKind
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.domain.presets.preset import Value
from kvctl.core.domain.units import GIB, mib

Line = tuple[str, str, str]
"""(ok | warn | fail, name, text)."""

_HEAVY_BYTES = GIB
"""A holder above this takes so much that a KV pool would come out smaller or not at all."""

_ADVICE = {
    HolderKind.LEFTOVER: "clear the leftovers first (kvctl kill --leftovers)",
    HolderKind.INVISIBLE: "it lives in another container or the driver lost it; it must end first",
    HolderKind.EXITING: "it is ending; wait, or reset the GPU if it never does",
}


def ranks_of(flags: Mapping[str, Value]) -> int:
    """Return how many GPUs a launch takes on this host.

    Formula: tp x pp x dp over nnodes; with DP attention dp lies inside tp.
    Source: GPU layout in `entrypoints/engine.py`.
    """
    is_inside = "enable-dp-attention" in flags or "attn-dp-size" in flags
    dp = 1 if is_inside else _whole(flags, "dp-size")
    world = _whole(flags, "tp-size") * _whole(flags, "pp-size") * dp
    return max(1, world // _whole(flags, "nnodes"))


def _whole(flags: Mapping[str, Value], name: str) -> int:
    text = str(flags.get(name, 1))
    return max(1, int(text)) if text.isdigit() else 1


def gpu_lines(
    plan: LaunchPlan, flags: Mapping[str, Value], view: GpuView, replaced: str | None
) -> Iterator[Line]:
    """Return the lines; `replaced` is the server whose ranks will be gone by then."""
    if not view.devices:
        yield "fail", "GPUs", view.problem or "no GPU is visible here"
        return
    visible, missing = _visible(plan, view.devices)
    needed = ranks_of(flags)
    if missing:
        have = ", ".join(str(device.index) for device in view.devices)
        text = f"{', '.join(missing)} not here (there are {have}); correct [launch] gpus"
        yield "fail", "GPUs", text
        return
    if len(visible) < needed:
        text = f"{needed} needed ({_sizes(flags)}), {len(visible)} visible; lower tp-size"
        yield "fail", "GPUs", text
        return
    used = visible[_whole_or_zero(flags, "base-gpu-id") :][:needed]
    yield from _health(used, needed, len(visible))
    yield from _holders(used, view.holders, replaced)


def _visible(
    plan: LaunchPlan, devices: Sequence[GpuDevice]
) -> tuple[list[GpuDevice], tuple[str, ...]]:
    """The devices that the server will see, in its order, and the names that match none."""
    wanted = plan.gpus or _from_environment(plan)
    if not wanted:
        return list(devices), ()
    found = [(name, _named(name, devices)) for name in wanted]
    missing = tuple(f"GPU {name}" for name, device in found if device is None)
    return [device for _, device in found if device is not None], missing


def _from_environment(plan: LaunchPlan) -> tuple[str, ...]:
    text = dict(plan.env).get("CUDA_VISIBLE_DEVICES", "")
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _named(name: str, devices: Sequence[GpuDevice]) -> GpuDevice | None:
    if name.isdigit():
        return next((d for d in devices if d.index == int(name)), None)
    return next((d for d in devices if d.uuid.startswith(name)), None)


def _whole_or_zero(flags: Mapping[str, Value], name: str) -> int:
    text = str(flags.get(name, 0))
    return int(text) if text.isdigit() else 0


def _sizes(flags: Mapping[str, Value]) -> str:
    names = (("tp-size", "tp"), ("pp-size", "pp"), ("dp-size", "dp"))
    sizes = [f"{short} {_whole(flags, name)}" for name, short in names if name in flags]
    return ", ".join(sizes) or "tp 1"


def _health(used: Sequence[GpuDevice], needed: int, visible: int) -> Iterator[Line]:
    ill = [device for device in used if device.problem is not None]
    for device in ill:
        text = f"GPU {device.index}: {device.problem}; leave it out or reset it"
        yield "fail", "GPUs", text
    if not ill:
        more = f", the first {needed} of {visible} visible" if visible > needed else ""
        yield "ok", "GPUs", f"{needed} of {needed} present{more}"


def _holders(
    used: Sequence[GpuDevice], holders: Sequence[Holder], replaced: str | None
) -> Iterator[Line]:
    uuids = {device.uuid for device in used}
    others = [
        holder
        for holder in holders
        if holder.gpu_uuid in uuids and not (replaced and holder.server == replaced)
    ]
    for holder in others:
        yield _holder_line(holder)
    if not others:
        yield "ok", "GPU memory", "no process but ours" if replaced else "no process on them"


def _holder_line(holder: Holder) -> Line:
    is_light = holder.memory_bytes is not None and holder.memory_bytes < _HEAVY_BYTES
    is_leftover = holder.kind is HolderKind.LEFTOVER
    ok = "warn" if is_light and not is_leftover else "fail"
    owner = f", {holder.owner}" if holder.owner else ""
    what = f"{holder.kind.replace('_', ' ')} pid {holder.pid} {holder.title[:40]}{owner}"
    advice = _ADVICE.get(holder.kind, "stop it or choose other GPUs")
    text = f"GPU {holder.gpu_index}: {mib(holder.memory_bytes)} held by {what}; {advice}"
    return ok, "GPU memory", text
