"""What each process on a GPU is, joined from the driver's list and what /proc says.

Pure: a device reading and host facts in, a `GpuView` out, each holder with its evidence in words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvctl.core.domain.gpus.devices import (
    DeviceProcess,
    GpuDevice,
    GpuReading,
    GpuView,
    Holder,
    HolderKind,
    ProcessFacts,
)
from kvctl.core.domain.gpus.holding import is_left_behind
from kvctl.core.domain.gpus.kinship import is_engine, rank_of
from kvctl.core.domain.gpus.membership import Judgement, KnownServer, Me, judge
from kvctl.core.domain.gpus.supervisors import Owner, container_of


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What /proc says, as far as the holders need it."""

    facts: Mapping[int, ProcessFacts] = field(default_factory=dict)
    """Every holder, its ancestors, and the mains of the known servers."""
    device_files: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """pid -> minors of the /dev/nvidiaN it has open or mapped."""
    hidden: frozenset[int] = frozenset()
    """pids that exist here but may not be looked at."""
    owners: Mapping[int, Owner] = field(default_factory=dict)
    scan_limits: tuple[str, ...] = ()


def classify(
    reading: GpuReading,
    host: HostFacts,
    known: Sequence[KnownServer],
    me: Me,
    strays: Sequence[int] = (),
) -> GpuView:
    """Return devices, holders and strays with what each is; never raises on odd input."""
    holders: list[Holder] = []
    for device in reading.devices:
        for listed in device.processes:
            holders.append(_listed(device, listed, host, known, me))
        for pid in _file_only(device, host, me):
            holders.append(_opened(device, pid, host, known, me))
    return GpuView(
        devices=reading.devices,
        holders=tuple(holders),
        at=reading.at,
        driver=reading.driver,
        problem=reading.problem,
        expected_count=reading.expected_count,
        is_bare=reading.is_bare,
        scan_limits=host.scan_limits,
        strays=_off_gpu(strays, holders, host, known, me),
    )


def _off_gpu(
    pids: Sequence[int],
    holders: Sequence[Holder],
    host: HostFacts,
    known: Sequence[KnownServer],
    me: Me,
) -> tuple[Holder, ...]:
    """Return the strays; who was reported and holds a GPU, or is none any more, is left out."""
    held = {holder.pid for holder in holders}
    found = (off_gpu(pid, host, known, me) for pid in pids if pid not in held)
    return tuple(holder for holder in found if holder is not None and is_left_behind(holder))


def _file_only(device: GpuDevice, host: HostFacts, me: Me) -> list[int]:
    """Return who has the device open without being in the driver's list."""
    if device.minor is None:
        return []
    listed = {process.pid for process in device.processes}
    return sorted(
        pid
        for pid, minors in host.device_files.items()
        if device.minor in minors
        and pid not in listed
        and pid != me.pid
        # The scan saw it in /proc: who is not there any more has ended since.
        and (pid in host.facts or pid in host.hidden)
    )


def _listed(
    device: GpuDevice, listed: DeviceProcess, host: HostFacts, known: Sequence[KnownServer], me: Me
) -> Holder:
    """Return the holder behind one row of the driver's list."""
    bare = _bare(device, listed)
    process = host.facts.get(listed.pid)
    if process is None:
        return replace(bare, evidence=_unseen(listed.pid, host, me))
    judged = judge(process, host.facts, known, me)
    if _is_doubtful(device, process, judged, host, me):
        return replace(
            bare,
            evidence=f"probably a host pid: in this container {listed.pid} is"
            f" {process.title[:40]!r}, which does not have the GPU open",
        )
    return _known(bare, process, judged, host, me)


def _opened(
    device: GpuDevice, pid: int, host: HostFacts, known: Sequence[KnownServer], me: Me
) -> Holder:
    """Return the holder that was found only because it has the device file open."""
    bare = replace(_bare(device, DeviceProcess(pid, None)), is_driver_listed=False)
    note = f"has /dev/nvidia{device.minor} open"
    process = host.facts.get(pid)
    if process is None:
        return replace(bare, evidence=f"{note}; {_unseen(pid, host, me)}")
    judged = judge(process, host.facts, known, me)
    noted = replace(judged, evidence=f"{note}; {judged.evidence}")
    return _known(bare, process, noted, host, me)


def _is_doubtful(
    device: GpuDevice, process: ProcessFacts, judged: Judgement, host: HostFacts, me: Me
) -> bool:
    """Return whether a container's own numbering may have produced this match by chance."""
    if not me.is_container or judged.server is not None or is_engine(process.title):
        return False
    opened = host.device_files.get(process.identity.pid, ())
    return device.minor is None or device.minor not in opened


def _unseen(pid: int, host: HostFacts, me: Me) -> str:
    if pid in host.hidden:
        return f"pid {pid} exists but may not be looked at: another user's, and /proc is restricted"
    if me.is_container:
        return f"pid {pid} is not visible here (host pid?): this is a container"
    return f"pid {pid} is not visible here: it has just ended, or is in another pid namespace"


def _owner_of(process: ProcessFacts, judged: Judgement, host: HostFacts) -> Owner | None:
    """Return the owner; what merely started a launch of ours is not one."""
    owner = host.owners.get(process.identity.pid)
    if owner is not None and owner.restarts is None and judged.is_launched:
        return None
    return owner


def _bare(device: GpuDevice, listed: DeviceProcess) -> Holder:
    """Return what is known of a holder from the driver alone."""
    return Holder(
        gpu_uuid=device.uuid,
        gpu_index=device.index,
        pid=listed.pid,
        start_ticks=None,
        memory_bytes=listed.memory_bytes,
        kind=HolderKind.INVISIBLE,
        evidence="",
        title="",
        user=None,
        parent_pid=None,
        owner=None,
        server=None,
        rank=None,
        is_mine=False,
        is_certain=False,
        is_permitted=False,
    )


_NO_GPU = Holder(
    gpu_uuid="",
    gpu_index=None,
    pid=0,
    start_ticks=None,
    memory_bytes=None,
    kind=HolderKind.INVISIBLE,
    evidence="",
    title="",
    user=None,
    parent_pid=None,
    owner=None,
    server=None,
    rank=None,
    is_mine=False,
    is_driver_listed=False,
)


def _known(
    bare: Holder, process: ProcessFacts, judged: Judgement, host: HostFacts, me: Me
) -> Holder:
    """Return a holder with all that /proc says about it."""
    owner = _owner_of(process, judged, host)
    return replace(
        bare,
        start_ticks=process.identity.start_ticks,
        kind=judged.kind,
        evidence=judged.evidence,
        title=process.title,
        user=process.user,
        parent_pid=process.parent_pid,
        owner=owner.text if owner else None,
        server=judged.server,
        rank=rank_of(process.title),
        is_mine=process.uid == me.uid,
        is_certain=True,
        is_permitted=me.uid in (0, process.uid),
        owner_restarts=owner.restarts if owner else False,
        owner_command=owner.command if owner else None,
        owner_pid=owner.pid if owner else None,
        state=process.state,
        session=process.session,
        group=process.group,
        container=container_of(process.cgroup),
    )


def off_gpu(pid: int, host: HostFacts, known: Sequence[KnownServer], me: Me) -> Holder | None:
    """Return what a process is that holds no GPU; None where it is not visible here."""
    process = host.facts.get(pid)
    if process is None:
        return None
    judged = judge(process, host.facts, known, me)
    return _known(replace(_NO_GPU, pid=pid), process, judged, host, me)


def stray_pids(
    facts: Mapping[int, ProcessFacts], known: Sequence[KnownServer], me: Me
) -> tuple[int, ...]:
    """Return the leftovers among all processes: those of launches that are over, and orphans."""
    marks = {server.mark for server in known if server.mark is not None}
    sessions = {server.session for server in known}
    trees = {before for server in known for before in server.tree}
    boxes = [server.container[:12] for server in known if server.container]
    found = []
    for pid, process in facts.items():
        is_candidate = (
            is_engine(process.title)
            or process.launch_mark in marks
            or process.session in sessions
            or process.identity in trees
            or any(box in process.cgroup for box in boxes)
        )
        if is_candidate and pid not in (1, me.pid) and process.state not in ("Z", "X"):
            judged = judge(process, facts, known, me)
            is_over = judged.kind is HolderKind.EXITING and judged.server is not None
            if judged.kind is HolderKind.LEFTOVER or is_over:
                found.append(pid)
    return tuple(sorted(found))
