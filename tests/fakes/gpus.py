"""Devices whose memory a test fills, through processes or without any."""

import threading
from dataclasses import dataclass, field

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus.devices import DeviceProcess, GpuDevice, GpuReading, ProcessIdentity
from tests.fakes.processes import FakeProcesses

GIB = 1 << 30
MIB = 1 << 20


@dataclass
class FakeGpus:
    """Implements `kvctl.core.ports.GpuSource`; a process that ends gives its memory back."""

    processes: FakeProcesses
    count: int = 2
    total_bytes: int = 80 * GIB
    idle_bytes: int = 400 * MIB
    is_simulated: bool = False
    held: dict[tuple[int, ProcessIdentity], int] = field(default_factory=dict)
    """(device index, process) -> bytes."""
    unexplained: dict[int, int] = field(default_factory=dict)
    """Device index -> bytes that no process accounts for."""
    problem: str | None = None
    hangs: threading.Event | None = None
    """A reading waits for it, as a driver that does not answer."""
    reads: int = 0

    def hold(self, index: int, identity: ProcessIdentity, size_bytes: int) -> None:
        self.held[(index, identity)] = size_bytes

    @staticmethod
    def uuid(index: int) -> str:
        return f"GPU-{index}"

    def read(self, at: float) -> GpuReading:
        self.reads += 1
        if self.hangs is not None:
            self.hangs.wait()
        if self.problem is not None:
            return GpuReading(at, (), problem=self.problem)
        return GpuReading(at, tuple(self._device(i, at) for i in range(self.count)), "560.1")

    def _device(self, index: int, at: float) -> GpuDevice:
        def figure(value: float) -> Figure:
            return Figure(value, "fake", at)

        mine = {who: size for (i, who), size in list(self.held.items()) if i == index}
        living = {who: size for who, size in mine.items() if who.pid in self.processes.table}
        used = self.idle_bytes + sum(living.values()) + self.unexplained.get(index, 0)
        return GpuDevice(
            index=index,
            uuid=self.uuid(index),
            name="Fake 80G",
            bus_id=f"0000:{index:02x}:00.0",
            memory_used_bytes=figure(used),
            memory_total_bytes=figure(self.total_bytes),
            utilisation_ratio=figure(0.5),
            temperature_c=figure(40),
            power_w=figure(200),
            power_limit_w=figure(700),
            sm_clock_mhz=figure(1500),
            processes=tuple(DeviceProcess(who.pid, size) for who, size in living.items()),
            minor=index,
        )
