"""GPU devices and the processes that hold their memory, as typed values.

`GpuReading` is what a device source (NVML, the simulated host) says; `GpuView` joins it with
what /proc says about each process. Bytes are bytes; ratios are 0..1.
"""

from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.figures import Figure


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process as the device driver lists it."""

    pid: int
    """As the driver numbers it: inside a container this can be the host's pid."""
    memory_bytes: int | None
    """None where the driver does not say."""


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


@dataclass(frozen=True, slots=True)
class Holder:
    """One process on one GPU, with what it is and why we think so."""

    gpu_uuid: str
    gpu_index: int
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

    @property
    def leftovers(self) -> tuple[Holder, ...]:
        """Holders whose server is gone."""
        return tuple(h for h in self.holders if h.kind is HolderKind.LEFTOVER)
