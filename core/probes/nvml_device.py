"""One NVIDIA device, figure by figure: what fails carries its reason and nothing else fails.

`memory_used_bytes` is what nvidia-smi shows (NVML's v2 figure, reserved memory apart); on drivers
without v2 it contains the reserved part and its source says so.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus.devices import DeviceProcess, GpuDevice, MigInstance
from kvctl.core.probes.nvml_words import error_words, is_fatal, throttle_words

SOURCE = "nvml"
_UNIFIED = re.compile(r"\b(GB10|Jetson|Orin|Thor|Xavier|Tegra)\b", re.IGNORECASE)
_UNSET = frozenset({(1 << 64) - 1, (1 << 32) - 1})
_FIRST_IMPOSSIBLE_PID = 1 << 22
_MOST_BYTES = 1 << 42
"""More than any device has: a bound where its total is unknown."""
_NOT_AVAILABLE = "the driver has no value (N/A)"
_MODES: dict[int | None, str] = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE: "none",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH: "passthrough",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU: "vGPU",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: "vGPU host",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA: "vSGA host",
}
_TOO_OLD = frozenset(
    {
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)


class DeviceReader:
    """Reads one device at one moment."""

    def __init__(self, index: int, handle: object, at: float, proc: Path) -> None:
        """Read the device behind `handle`; `at` stamps every figure."""
        self._index = index
        self._handle = handle
        self._at = at
        self._proc = proc

    def read(self) -> GpuDevice:
        """Return the device with every figure or its reason.

        Raises:
            pynvml.NVMLError: The device as a whole cannot be used (lost).
        """
        uuid = self._identity(pynvml.nvmlDeviceGetUUID, f"index-{self._index}")
        name = self._identity(pynvml.nvmlDeviceGetName, "NVIDIA GPU")
        is_mig = bool(self._quiet(lambda h: pynvml.nvmlDeviceGetMigMode(h)[0]))
        used, total, reserved = self._memory(_UNIFIED.search(name) is not None)
        instances = self._instances() if is_mig else ()
        processes, problem = self._processes(total.value, [handle for handle, _ in instances])
        return GpuDevice(
            index=self._index,
            uuid=uuid,
            name=name,
            bus_id=self._identity(_bus_id, ""),
            memory_used_bytes=used,
            memory_total_bytes=total,
            utilisation_ratio=self._utilisation(is_mig),
            temperature_c=self._figure(_temperature),
            power_w=self._figure(pynvml.nvmlDeviceGetPowerUsage, 1000),
            power_limit_w=self._figure(pynvml.nvmlDeviceGetEnforcedPowerLimit, 1000),
            sm_clock_mhz=self._figure(_clock(pynvml.NVML_CLOCK_SM)),
            throttle_reasons=throttle_words(self._quiet(_throttle_bits) or 0),
            processes=processes,
            processes_problem=problem,
            is_unified=_UNIFIED.search(name) is not None,
            is_mig=is_mig,
            minor=self._quiet(pynvml.nvmlDeviceGetMinorNumber),
            memory_reserved_bytes=reserved,
            memory_clock_mhz=self._figure(_clock(pynvml.NVML_CLOCK_MEM)),
            ecc_uncorrected=self._figure(_ecc),
            mig_instances=tuple(instance for _, instance in instances),
            virtualisation=_MODES.get(self._quiet(_virtualisation)),
        )

    def _identity(self, ask: Callable[[object], object], default: str) -> str:
        """Return a name; only what is fatal to the device passes."""
        try:
            return str(ask(self._handle))
        except pynvml.NVMLError as error:
            if is_fatal(error) or error.value == pynvml.NVML_ERROR_UNKNOWN:
                raise
            return default

    def _quiet(self, ask: Callable[[object], int]) -> int | None:
        """Return an answer that needs no reason where it is missing."""
        try:
            return ask(self._handle)
        except pynvml.NVMLError as error:
            if is_fatal(error):
                raise
            return None

    def _figure(self, ask: Callable[[object], int], per: int = 1) -> Figure:
        """Return a number divided by `per` into its unit, or why there is none."""
        try:
            value = ask(self._handle)
        except pynvml.NVMLError as error:
            if is_fatal(error):
                raise
            return self._missing(error_words(error))
        if value in _UNSET:
            return self._missing(_NOT_AVAILABLE)
        return self._known(value if per == 1 else value / per)

    def _known(self, value: float, source: str = SOURCE) -> Figure:
        return Figure(value, source, self._at)

    def _missing(self, why: str) -> Figure:
        return Figure(None, SOURCE, None, why)

    def _utilisation(self, is_mig: bool) -> Figure:
        figure = self._figure(lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).gpu, 100)
        if figure.value is None and is_mig:
            return self._missing("not told in MIG mode")
        if figure.value is not None and not 0 <= figure.value <= 1:
            return self._missing(f"impossible value {figure.value:.0%} from the driver")
        return figure

    def _memory(self, is_unified: bool) -> tuple[Figure, Figure, Figure]:
        """Return used, total and reserved bytes; host RAM only for devices known to share it."""
        try:
            used, total, reserved, source = _memory_info(self._handle)
        except pynvml.NVMLError as error:
            if is_fatal(error):
                raise
            missing = self._missing(error_words(error))
            return self._host_memory() if is_unified else (missing, missing, missing)
        if is_unified and total in (0, *_UNSET):
            return self._host_memory()
        if total in (0, *_UNSET) or used in _UNSET or used > total:
            missing = self._missing(
                f"impossible memory figures from the driver ({used} of {total})"
            )
            return missing, missing, missing
        kept = self._missing("this driver is too old to tell")
        if reserved is not None:
            kept = self._known(reserved)
        return self._known(used, source), self._known(total, source), kept

    def _host_memory(self) -> tuple[Figure, Figure, Figure]:
        """Return the host's RAM: used is what is not available, as the device shares it."""
        fields = _meminfo(self._proc / "meminfo")
        total, available = fields.get("MemTotal"), fields.get("MemAvailable")
        missing = self._missing("not told for unified memory")
        if total is None or available is None:
            return missing, missing, missing
        source = "/proc/meminfo (unified)"
        return self._known(total - available, source), self._known(total, source), missing

    def _instances(self) -> list[tuple[object, MigInstance]]:
        """Return the MIG instances with their handles; those that cannot be read are left out."""
        found = []
        for slot in range(self._quiet(pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, slot)
                uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            except pynvml.NVMLError:
                continue
            part = DeviceReader(self._index, handle, self._at, self._proc)
            used, total, _ = part._memory(False)
            found.append(
                (
                    handle,
                    MigInstance(
                        uuid,
                        part._quiet(pynvml.nvmlDeviceGetGpuInstanceId),
                        part._identity(pynvml.nvmlDeviceGetName, ""),
                        used,
                        total,
                    ),
                )
            )
        return found

    def _processes(
        self, total_bytes: float | None, instances: list[object]
    ) -> tuple[tuple[DeviceProcess, ...], str | None]:
        """Return all processes, each once, and what is wrong with the list."""
        rows: list[Any] = []
        problem: str | None = None
        for handle in [self._handle, *instances]:
            found, why = _running(handle)
            rows += found
            if handle is self._handle:
                problem = why
        if instances and rows:
            problem = None
        return _merge(rows, total_bytes, problem)


def _running(handle: object) -> tuple[list[Any], str | None]:
    """Return the rows of all three lists; only the compute list must be readable."""
    rows: list[Any] = []
    problem: str | None = None
    for ask in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    ):
        try:
            rows += ask(handle)
        except pynvml.NVMLError as error:
            if is_fatal(error):
                raise
            if ask is pynvml.nvmlDeviceGetComputeRunningProcesses:
                problem = f"process list: {error_words(error)}"
    return rows, problem


def _merge(
    rows: list[Any], total_bytes: float | None, problem: str | None
) -> tuple[tuple[DeviceProcess, ...], str | None]:
    """Join rows of one pid (the larger figure), dropping what cannot be true."""
    memory: dict[int, int | None] = {}
    doubts: list[str] = []
    for row in rows:
        pid, used = int(row.pid), row.usedGpuMemory
        if not 0 < pid < _FIRST_IMPOSSIBLE_PID:
            doubts.append(f"pid {pid}")
            continue
        if used in _UNSET:
            used = None
        if used is not None and used > (total_bytes or _MOST_BYTES):
            doubts.append(f"{used} bytes of pid {pid}")
            used = None
        before = memory.get(pid)
        memory[pid] = used if before is None else max(before, used or 0)
    if doubts:
        listed = ", ".join(doubts[:3])
        problem = f"process list unreliable: driver and pynvml do not fit ({listed} dropped)"
    return tuple(DeviceProcess(pid, used) for pid, used in sorted(memory.items())), problem


def _memory_info(handle: object) -> tuple[int, int, int | None, str]:
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _TOO_OLD:
            raise
    else:
        return int(info.used), int(info.total), int(info.reserved), SOURCE
    info = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return int(info.used), int(info.total), None, f"{SOURCE} (reserved included)"


def _temperature(handle: object) -> int:
    try:
        return int(pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU))
    except pynvml.NVMLError as error:
        if error.value not in _TOO_OLD:
            raise
    return int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


def _throttle_bits(handle: object) -> int:
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError as error:
        if error.value not in _TOO_OLD:
            raise
    return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _clock(kind: int) -> Callable[[object], int]:
    return lambda handle: int(pynvml.nvmlDeviceGetClockInfo(handle, kind))


def _ecc(handle: object) -> int:
    return int(
        pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        )
    )


def _virtualisation(handle: object) -> int:
    return int(pynvml.nvmlDeviceGetVirtualizationMode(handle))


def _bus_id(handle: object) -> str:
    raw = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)


def _meminfo(path: Path) -> dict[str, int]:
    """Return /proc/meminfo in bytes; empty where it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    fields = (line.replace(":", " ").split() for line in lines)
    return {f[0]: int(f[1]) * 1024 for f in fields if len(f) >= 2 and f[1].isdigit()}
