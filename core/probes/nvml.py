"""NVIDIA devices through NVML (the module `pynvml` of nvidia-ml-py), keyed by UUID.

Every figure is read on its own, so one that is unsupported, forbidden or lost degrades alone.
Opens no CUDA context and so uses no GPU memory. A call into a wedged driver never returns: the
caller limits the time (a thread), and a second read meanwhile says so instead of waiting too.
"""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus.devices import GpuDevice, GpuReading
from kvctl.core.probes.nvml_device import SOURCE, DeviceReader
from kvctl.core.probes.nvml_words import error_words, init_problem
from kvctl.core.probes.nvml_xid import KMSG, XidWatch

RETRY_S = 10.0
"""How long a failed start of NVML is believed before it is tried again."""
PATIENCE_S = 3.0
"""How long a read waits for another one before it calls the driver stuck."""
_MOST_DEVICES = 64


class NvmlSource:
    """The GPUs of this host (implements `ports.GpuSource`)."""

    is_simulated = False

    def __init__(
        self, proc: Path = Path("/proc"), patience_s: float = PATIENCE_S, kmsg: Path = KMSG
    ) -> None:
        """Read host memory and the driver's version from `proc`; see `PATIENCE_S`."""
        self._proc = proc
        self._xids = XidWatch(kmsg)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._busy_since: float | None = None
        self._handles: dict[int, Any] = {}
        self._known: dict[int, GpuDevice] = {}
        self._is_open = False
        self._most_seen = 0
        self._failed_at: float | None = None
        self._problem: str | None = None
        self._has_no_driver = False

    def read(self, at: float) -> GpuReading:
        """Read all devices; blocking. Whatever fails is a value in the answer."""
        if not self._lock.acquire(timeout=self._patience_s):
            return GpuReading(
                at,
                (),
                problem=f"NVML has not answered for {self._stuck_s(at):.0f} s: the driver may be"
                " stuck (dmesg tells); GPU figures are off, everything else works",
            )
        try:
            self._busy_since = at
            return self._read(at)
        finally:
            self._busy_since = None
            self._lock.release()

    def _stuck_s(self, at: float) -> float:
        since = self._busy_since
        return self._patience_s + (0.0 if since is None else max(0.0, at - since))

    def close(self) -> None:
        """Give NVML back, unless a call hangs in it."""
        if self._lock.acquire(blocking=False):
            try:
                self._shut()
                self._xids.close()
            finally:
                self._lock.release()

    def _read(self, at: float) -> GpuReading:
        problem = self._open(at)
        if problem is not None:
            return GpuReading(at, (), problem=problem, is_bare=self._has_no_driver)
        try:
            count = min(int(pynvml.nvmlDeviceGetCount()), _MOST_DEVICES)
        except pynvml.NVMLError as error:
            return GpuReading(at, (), problem=self._give_up(at, error))
        devices = self._with_xids(tuple(self._device(index, at) for index in range(count)), at)
        self._most_seen = max(self._most_seen, count, len(self._listed_in_proc()))
        if devices and all(device.problem for device in devices):
            self._shut()
        problem = None if devices else "the NVIDIA driver is loaded but shows no GPU"
        is_bare = self._most_seen == 0
        return GpuReading(at, devices, self._driver(), problem, self._most_seen, is_bare)

    def _with_xids(self, devices: tuple[GpuDevice, ...], at: float) -> tuple[GpuDevice, ...]:
        """Return the devices with the errors that the driver reported of them."""
        for device in devices:
            handle = self._handles.get(device.index)
            if handle is not None and device.bus_id:
                self._xids.watch(handle, device.bus_id)
        self._xids.poll(at)
        found = []
        for device in devices:
            xids, problem = self._xids.of(device.bus_id)
            found.append(replace(device, xids=xids, xid_problem=problem))
        return tuple(found)

    def _open(self, at: float) -> str | None:
        """Start NVML where it is not; return the problem that prevents it."""
        if self._is_open:
            return None
        if self._failed_at is not None and 0 <= at - self._failed_at < RETRY_S:
            return self._problem
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return self._give_up(at, error)
        self._is_open, self._failed_at, self._problem = True, None, None
        return None

    def _give_up(self, at: float, error: pynvml.NVMLError) -> str:
        self._shut()
        self._failed_at = at
        self._problem = init_problem(error, self._proc)
        is_absent = error.value in (
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        )
        self._has_no_driver = is_absent and max(self._most_seen, len(self._listed_in_proc())) == 0
        return self._problem

    def _shut(self) -> None:
        self._handles.clear()
        self._xids.forget_handles()
        if self._is_open:
            self._is_open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return

    def _driver(self) -> str | None:
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            return None

    def _listed_in_proc(self) -> list[str]:
        """Return the bus ids that the driver lists in /proc, in order: a lost one stays there."""
        try:
            names = sorted(p.name for p in (self._proc / "driver" / "nvidia" / "gpus").iterdir())
        except OSError:
            return []
        return [f"0000{name.upper()}" for name in names]

    def _device(self, index: int, at: float) -> GpuDevice:
        """Read one device; a lost one keeps the identity it had before."""
        try:
            handle = self._handles.get(index)
            if handle is None:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._handles[index] = handle
            device = DeviceReader(index, handle, at, self._proc).read()
        except pynvml.NVMLError as error:
            self._handles.pop(index, None)
            return self._lost(index, at, error_words(error))
        self._known[index] = device
        return device

    def _lost(self, index: int, at: float, why: str) -> GpuDevice:
        before = self._known.get(index)
        listed = self._listed_in_proc()
        bus_id = listed[index] if index < len(listed) else ""
        missing = Figure(None, SOURCE, None, why)
        return GpuDevice(
            index=index,
            uuid=before.uuid if before else f"unknown-{index}",
            name=before.name if before else "unreadable GPU",
            bus_id=before.bus_id if before else bus_id,
            memory_used_bytes=missing,
            memory_total_bytes=missing,
            utilisation_ratio=missing,
            temperature_c=missing,
            power_w=missing,
            power_limit_w=missing,
            sm_clock_mhz=missing,
            processes_problem=why,
            problem=why,
            minor=before.minor if before else None,
            memory_reserved_bytes=missing,
            memory_clock_mhz=missing,
            ecc_uncorrected=missing,
        )
