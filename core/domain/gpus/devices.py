"""GPU devices and the processes that hold their memory, as typed values.

`GpuReading` is what a device source (NVML, the simulated host) says; `GpuView` joins it with
what /proc says about each process. Bytes are bytes; ratios are 0..1.
"""

from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.gpus.proofs import GpuProof


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process as the device driver lists it."""

    pid: int
    """As the driver numbers it: inside a container this can be the host's pid."""
    memory_bytes: int | None
    """None where the driver does not say."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One slice of a device in MIG mode, with its own memory."""

    uuid: str
    gpu_instance: int | None
    """GPU instance id, None where it cannot be read."""
    name: str
    """Such as "NVIDIA H100 MIG 1g.10gb", "" if unreadable."""
    memory_used_bytes: Figure
    memory_total_bytes: Figure


@dataclass(frozen=True, slots=True)
class XidError:
    """One error that the driver reported of a device."""

    code: int
    text: str
    """What the code means, or the driver's own words; "" if neither is known."""
    at: float | None = None
    """Monotonic seconds when it was seen; None if it was reported before kvctld looked."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One device; every figure can be missing on its own."""

    index: int
    """In PCI bus order, as nvidia-smi numbers it."""
    uuid: str
    name: str
    bus_id: str
    memory_used_bytes: Figure
    memory_total_bytes: Figure
    utilisation_ratio: Figure
    temperature_c: Figure
    power_w: Figure
    power_limit_w: Figure
    sm_clock_mhz: Figure
    throttle_reasons: tuple[str, ...] = ()
    """Why clocks are held down now, in words; empty when they are free."""
    processes: tuple[DeviceProcess, ...] = ()
    processes_problem: str | None = None
    """Why the process list cannot be read."""
    is_unified: bool = False
    """Memory is the host's RAM (GB10, Jetson)."""
    is_mig: bool = False
    problem: str | None = None
    """Why the device as a whole cannot be used, e.g. "GPU is lost"."""
    minor: int | None = None
    """N of its /dev/nvidiaN, None if unknown."""
    memory_reserved_bytes: Figure = unknown("not read")
    """Kept by driver and firmware; not part of `memory_used_bytes`."""
    memory_clock_mhz: Figure = unknown("not read")
    ecc_uncorrected: Figure = unknown("not read")
    """Uncorrected ECC errors since the driver was loaded."""
    mig_instances: tuple[MigInstance, ...] = ()
    xids: tuple[XidError, ...] = ()
    """Errors that the driver reported, newest last, at most 8."""
    xid_problem: str | None = "not read"
    """Why Xid errors cannot be read; None where they can."""
    virtualisation: str | None = None
    """"none", "passthrough", "vGPU" …; None if the driver does not say."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All devices at one moment."""

    at: float
    """Monotonic seconds."""
    devices: tuple[GpuDevice, ...]
    driver: str | None = None
    """Driver version, None if unknown."""
    problem: str | None = None
    """Why there are no devices to show, in one line (no driver, mismatch)."""
    expected_count: int | None = None
    """Devices this host should have: the most seen, or listed by the driver in /proc."""
    is_bare: bool = False
    """There is certainly no GPU here: no driver, or one that lists no device."""


class HolderKind(StrEnum):
    """What a process that holds GPU memory is to us."""

    RANK = "rank"
    """A scheduler of a server kvctl knows."""
    LAUNCHING = "launching"
    """Belongs to a start in progress; its title is not set yet."""
    LEFTOVER = "leftover"
    """Ours or an SGLang process whose server is gone."""
    OTHER_SGLANG = "other_sglang"
    """SGLang with a living parent that kvctl does not manage."""
    FOREIGN = "foreign"
    """Another program."""
    INVISIBLE = "invisible"
    """The driver lists a pid that this host's /proc does not show."""
    EXITING = "exiting"
    """Zombie, or in uninterruptible sleep: a signal cannot end it now."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """What makes a process the same one: a pid alone can be reused."""

    pid: int
    start_ticks: int
    """Clock ticks after boot when it started (/proc/PID/stat, field 22)."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What /proc says about one process."""

    identity: ProcessIdentity
    parent_pid: int
    session: int
    group: int
    state: str
    """One letter of /proc/PID/stat: R S D Z T …"""
    user: str
    uid: int
    title: str
    """Command line with arguments joined, or the name where there is none."""
    cgroup: str
    """The path in its (unified) cgroup, "" if unreadable."""
    is_kill_pending: bool = False
    """A KILL was sent that the kernel has not carried out, or it is being torn down now."""
    launch_mark: str | None = None
    """Value of KVCTL_LAUNCH in its environment; None if unset, overwritten or unreadable."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One process on one GPU, with what it is and why we think so."""

    gpu_uuid: str
    """"" for a process that holds no GPU (a stray)."""
    gpu_index: int | None
    """None for a process that holds no GPU (a stray)."""
    pid: int
    start_ticks: int | None
    """None where the process is not visible here; then it is never signalled."""
    memory_bytes: int | None
    kind: HolderKind
    evidence: str
    """Why it has this kind, in a few words."""
    title: str
    user: str | None
    parent_pid: int | None
    owner: str | None
    """The supervisor that would restart it, e.g. "systemd sglang.service"; None if none."""
    server: str | None
    """Name of the managed server it belongs or belonged to."""
    rank: str | None
    """"TP4" and the like, from the title."""
    is_mine: bool
    """Same user as kvctld, so a signal is permitted without asking twice."""
    is_certain: bool = True
    """False where the driver's pid may number another process here (container)."""
    is_permitted: bool = True
    """Whether the kernel lets kvctld signal it: same user, or kvctld is root."""
    is_driver_listed: bool = True
    """False where it was found only through its open /dev/nvidia* file."""
    owner_restarts: bool | None = False
    """Whether `owner` must be asked instead of the process; None: it may start it again."""
    owner_command: str | None = None
    """What to type to stop it through its owner."""
    owner_pid: int | None = None
    """The process that would start it again; None where the owner is a unit or container."""
    state: str | None = None
    """One letter of /proc/PID/stat; None where it is not visible here."""
    session: int | None = None
    """Session id: rows of one launch share it; None where it is not visible here."""
    group: int | None = None
    """Process group id; None where it is not visible here."""
    container: str | None = None
    """Id of its container, 12 hex digits; None if it is in none of its own."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """Devices, holders and what remains unexplained."""

    devices: tuple[GpuDevice, ...] = ()
    holders: tuple[Holder, ...] = ()
    at: float | None = None
    """Monotonic seconds of the reading; None before the first."""
    driver: str | None = None
    problem: str | None = None
    """Why there is nothing to show, in one line."""
    expected_count: int | None = None
    """Devices this host should have; None if unknown."""
    is_bare: bool = False
    """There is certainly no GPU here; False where the driver only does not answer."""
    scan_limits: tuple[str, ...] = ()
    """What could not be looked into, in words (other users' processes)."""
    strays: tuple[Holder, ...] = ()
    """Leftovers that hold no GPU: processes of launches that are over."""
    proofs: tuple[GpuProof, ...] = ()
    """What this reading proves of each device, in the order of `devices`."""

    @property
    def leftovers(self) -> tuple[Holder, ...]:
        """Holders whose server is gone."""
        return tuple(h for h in self.holders if h.kind is HolderKind.LEFTOVER)

    @property
    def left_processes(self) -> int:
        """How many processes are leftovers, on a GPU or not."""
        return len({h.pid for h in (*self.leftovers, *self.strays)})

    def proof_of(self, uuid: str) -> GpuProof | None:
        """Return what this reading proves of a device; None before the first judgement."""
        return next((proof for proof in self.proofs if proof.uuid == uuid), None)


def short_title(title: str, room: int = 60) -> str:
    """Return a process title as it is quoted in a line of text, its end left out as "…"."""
    return title if len(title) <= room else f"{title[: room - 1]}…"
