"""Whether one GPU is clean in one reading: no holder, and memory back at the idle level.

Pure, and the only rule there is: the pane, `kvctl gpus`, the kill dialog, every stop and every
restart judge with it.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, Holder, ProcessIdentity
from kvctl.core.domain.gpus.holding import (
    describe,
    identity_of,
    idle_limit,
    is_left_behind,
    unexplained_bytes,
)
from kvctl.core.domain.gpus.proofs import GpuProof
from kvctl.core.domain.units import mib


def prove(
    view: GpuView,
    uuid: str,
    started: float,
    idle_bytes: Mapping[str, int],
    tolerate: Collection[ProcessIdentity] = (),
) -> GpuProof:
    """Return what one reading proves of one GPU; a reading from before `started` proves nothing."""
    device = next((d for d in view.devices if d.uuid == uuid), None)
    if device is None:
        why = view.problem or "it is not among the devices of this host any more"
        return GpuProof(uuid, None, False, None, None, "", 0.0, (f"no proof: {why}",))
    here = [holder for holder in view.holders if holder.gpu_uuid == uuid]
    staying = [holder for holder in here if identity_of(holder) in tolerate]
    limit, basis = idle_limit(device, idle_bytes)
    limit += sum(holder.memory_bytes or 0 for holder in staying)
    settled = {h.server for h in view.holders if h.is_driver_listed}
    blockers = [describe(h) for h in here if h not in staying and _counts(h, settled)]
    blockers += _device_blockers(view, device, started)
    blockers += _memory_blockers(device, here, limit, basis)
    used = device.memory_used_bytes.value
    return GpuProof(
        uuid,
        device.index,
        not blockers,
        None if used is None else int(used),
        None if device.is_unified else limit,
        "unified memory: only holders can be proven gone" if device.is_unified else basis,
        0.0,
        tuple(blockers),
        tuple(f"{holder.pid} {holder.title[:40]}" for holder in staying),
        view.at,
    )


def proven(view: GpuView, before: GpuView, idle_bytes: Mapping[str, int]) -> GpuView:
    """Return a view with what it proves of each GPU, and since when without a break."""
    since = {proof.uuid: proof.since for proof in before.proofs}
    proofs = []
    for device in view.devices:
        proof = prove(view, device.uuid, float("-inf"), idle_bytes)
        first = since.get(device.uuid)
        begun = view.at if first is None else first
        proofs.append(replace(proof, since=begun if proof.is_clean else None))
    return replace(view, proofs=tuple(proofs))


def _counts(holder: Holder, settled: Collection[str | None]) -> bool:
    """Return whether it is in the way; an open device file alone need not be.

    Monitors keep device files open and hold no memory. A server opens those of every GPU, so one
    that the driver lists on some GPU (`settled`) holds those where it is listed, and no other.
    """
    if holder.is_driver_listed or is_left_behind(holder):
        return True
    return holder.server is not None and holder.server not in settled


def _device_blockers(view: GpuView, device: GpuDevice, started: float) -> list[str]:
    if device.problem is not None:
        return [f"no proof: {device.problem}"]
    if view.problem is not None:
        return [f"no proof: {view.problem}"]
    if view.at is None or view.at < started:
        return ["no proof: no reading since then"]
    return [device.processes_problem] if device.processes_problem else []


def _memory_blockers(device: GpuDevice, here: list[Holder], limit: int, basis: str) -> list[str]:
    if device.is_unified or device.problem is not None:
        return []
    used = device.memory_used_bytes.value
    if used is None:
        return [f"no proof: memory unknown ({device.memory_used_bytes.reason})"]
    if used <= limit:
        return []
    unexplained = unexplained_bytes(device, here)
    who = ""
    if unexplained is not None and unexplained > limit:
        who = (
            f", {mib(unexplained)} of it by no process here (another pid namespace, or the driver)"
        )
    return [f"{mib(used)} still used, {basis}{who}"]
