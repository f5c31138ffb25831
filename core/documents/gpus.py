"""The JSON document of the GPUs: devices, who holds them, and what is proven of each; pure."""

from kvctl.core.documents.figures import Document, figures_document
from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, Holder, MigInstance
from kvctl.core.domain.gpus.holding import signal_refusal, unexplained_bytes
from kvctl.core.domain.gpus.proofs import GpuProof
from kvctl.core.domain.snapshot import Snapshot


def gpus_document(snapshot: Snapshot) -> Document:
    """Return devices, their processes and what each is: `kvctl gpus --json`."""
    view, now = snapshot.gpus, snapshot.at
    return {
        "problem": view.problem,
        "driver": view.driver,
        "age_s": None if view.at is None else max(0.0, now - view.at),
        "simulated": snapshot.is_simulated,
        "expected_count": view.expected_count,
        "devices": [_device(view, device, now) for device in view.devices],
        "leftovers_off_gpu": [_holder(holder) for holder in view.strays],
        "scan_limits": list(view.scan_limits),
    }


def _device(view: GpuView, device: GpuDevice, now: float) -> Document:
    holders = [holder for holder in view.holders if holder.gpu_uuid == device.uuid]
    return {
        "index": device.index,
        "uuid": device.uuid,
        "name": device.name,
        "bus_id": device.bus_id,
        "problem": device.problem,
        "unified": device.is_unified,
        "mig": device.is_mig,
        "virtualisation": device.virtualisation,
        "throttle_reasons": list(device.throttle_reasons),
        **_figures(device, now),
        "mig_instances": [_instance(instance, now) for instance in device.mig_instances],
        "xids": [
            {"code": x.code, "text": x.text, "age_s": None if x.at is None else now - x.at}
            for x in device.xids
        ],
        "xid_problem": device.xid_problem,
        "processes_problem": device.processes_problem,
        "processes": [_holder(holder) for holder in holders],
        "unexplained_bytes": unexplained_bytes(device, holders),
        "clean": _proof(view.proof_of(device.uuid), now),
    }


def _figures(device: GpuDevice, now: float) -> Document:
    return figures_document(
        now,
        memory_used_bytes=device.memory_used_bytes,
        memory_total_bytes=device.memory_total_bytes,
        memory_reserved_bytes=device.memory_reserved_bytes,
        utilisation_ratio=device.utilisation_ratio,
        temperature_c=device.temperature_c,
        power_w=device.power_w,
        power_limit_w=device.power_limit_w,
        sm_clock_mhz=device.sm_clock_mhz,
        memory_clock_mhz=device.memory_clock_mhz,
        ecc_uncorrected=device.ecc_uncorrected,
    )


def _instance(instance: MigInstance, now: float) -> Document:
    return {
        "uuid": instance.uuid,
        "name": instance.name,
        "gpu_instance": instance.gpu_instance,
        **figures_document(
            now,
            memory_used_bytes=instance.memory_used_bytes,
            memory_total_bytes=instance.memory_total_bytes,
        ),
    }


def _proof(proof: GpuProof | None, now: float) -> Document | None:
    """Return what the last reading proves; None before the first one that could be judged."""
    if proof is None:
        return None
    return {
        "is_clean": proof.is_clean,
        "age_s": _age(proof.at, now),
        "clean_for_s": _age(proof.since, now),
        "used_bytes": proof.used_bytes,
        "limit_bytes": proof.limit_bytes,
        "basis": proof.basis,
        "held_by": list(proof.blockers),
    }


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)


def _holder(holder: Holder) -> Document:
    return {
        "pid": holder.pid,
        "start_ticks": holder.start_ticks,
        "memory_bytes": holder.memory_bytes,
        "kind": holder.kind.value,
        "evidence": holder.evidence,
        "title": holder.title,
        "user": holder.user,
        "parent_pid": holder.parent_pid,
        "group": holder.group,
        "session": holder.session,
        "container": holder.container,
        "state": holder.state,
        **_owner(holder),
        "server": holder.server,
        "rank": holder.rank,
        "mine": holder.is_mine,
        "certain": holder.is_certain,
        "driver_listed": holder.is_driver_listed,
        "no_signal": signal_refusal(holder),
    }


def _owner(holder: Holder) -> Document:
    return {
        "owner": holder.owner,
        "owner_pid": holder.owner_pid,
        "owner_restarts": holder.owner_restarts,
        "owner_command": holder.owner_command,
    }
