"""The simulated device source: eight GPUs whose memory belongs to live simulated processes."""

import math
from collections.abc import Sequence
from pathlib import Path

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus.devices import DeviceProcess, GpuDevice, GpuReading
from kvctl.core.sim.folder import HostFolder, MemoryHolder
from kvctl.core.sim.memory import DEVICE_MIB, DEVICE_NAME, DEVICES, IDLE_MIB, MIB

SOURCE = "simulated"
DRIVER = "580.95.05 (simulated)"
IDLE_POWER_W = 34.0
POWER_LIMIT_W = 600.0
BUSY_POWER_W = 410.0
IDLE_TEMPERATURE_C = 31.0
IDLE_CLOCK_MHZ = 180.0
BUSY_CLOCK_MHZ = 2430.0
IDLE_MEMORY_MHZ = 405.0
BUSY_MEMORY_MHZ = 12_481.0


class SimulatedGpus:
    """Reads the simulated host's folder as NVML would read devices."""

    is_simulated = True

    def __init__(self, folder: Path) -> None:
        """Read this simulated host."""
        self._folder = HostFolder(folder)

    def read(self, at: float) -> GpuReading:
        """Return all devices; memory counts only while its holder lives."""
        holders = self._folder.holders()
        loads = self._loads()
        devices = tuple(
            _device(index, [h for h in holders if h.gpu == index], loads.get(index, 0.0), at)
            for index in range(DEVICES)
        )
        return GpuReading(at=at, devices=devices, driver=DRIVER)

    def _loads(self) -> dict[int, float]:
        loads: dict[int, float] = {}
        for activity in self._folder.activities():
            for gpu in activity.gpus:
                loads[gpu] = max(loads.get(gpu, 0.0), activity.load)
        return loads


def _device(index: int, holders: Sequence[MemoryHolder], load: float, at: float) -> GpuDevice:
    used = IDLE_MIB * MIB + sum(holder.memory_bytes for holder in holders)
    # A slow ripple, the same for the same moment, so that the figures look read and not typed.
    ripple = math.sin(at / 7.0 + index * 1.7)
    power = IDLE_POWER_W + load * (BUSY_POWER_W - IDLE_POWER_W) + ripple * (2 + 12 * load)
    temperature = IDLE_TEMPERATURE_C + load * (36 + index % 3) + ripple
    clock = IDLE_CLOCK_MHZ if load == 0 else BUSY_CLOCK_MHZ + 15 * round(ripple)
    utilisation = 0.0 if load == 0 else min(1.0, 0.55 + 0.44 * load + 0.01 * ripple)

    def figure(value: float) -> Figure:
        return Figure(value, SOURCE, at)

    return GpuDevice(
        index=index,
        uuid=gpu_uuid(index),
        name=DEVICE_NAME,
        bus_id=f"00000000:{16 * (index + 1):02X}:00.0",
        memory_used_bytes=figure(used),
        memory_total_bytes=figure(DEVICE_MIB * MIB),
        utilisation_ratio=figure(round(utilisation, 2)),
        temperature_c=figure(round(temperature)),
        power_w=figure(round(power, 1)),
        power_limit_w=figure(POWER_LIMIT_W),
        sm_clock_mhz=figure(round(clock)),
        processes=tuple(DeviceProcess(holder.pid, holder.memory_bytes) for holder in holders),
        minor=index,
        memory_reserved_bytes=figure(0),
        memory_clock_mhz=figure(IDLE_MEMORY_MHZ if load == 0 else BUSY_MEMORY_MHZ),
        ecc_uncorrected=figure(0),
    )


def gpu_uuid(index: int) -> str:
    """Return the UUID of a simulated GPU; its last group is the index."""
    return f"GPU-51a00000-c0de-4000-8000-{index:012d}"
