"""The memory that is free before the weights load, where no launch has shown it yet.

Pure. SGLang measures it after CUDA context and communicators are there, so it is less than what
an idle device has free.

Source: one H200 (0.5.17): 140.40 GiB in all, 0.61 never free, 139.20 before load. Several GPUs are
not measured; Kimi-K2.5's published pools on 8 GPUs of 95.6 GiB give 94.0 (1.56 less in all).
"""

from dataclasses import dataclass

from kvctl.core.domain.capacity.calibration import Budget
from kvctl.core.domain.presets.serving_flags import ServingFlags
from kvctl.core.domain.units import GIB

_DRIVER_BYTES = 0.6 * GIB
"""Of the total, never free."""
_CONTEXT_ONE = Budget(0.6 * GIB, 0.25 * GIB)
_CONTEXT_MANY = Budget(0.9 * GIB, 0.6 * GIB)
"""CUDA context and communicators, on one GPU and on several."""
_HOST_PROCESSES = Budget(1.0 * GIB, 1.0 * GIB)
"""On the CPU: SGLang's own processes before the weights (0.9 to 1.0 GiB seen, 0.5.23), and what
the host's other processes do meanwhile."""


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """The memory of the fullest GPU of a launch, with our own server gone."""

    total_bytes: float
    """As NVML reports it; on the CPU the host's memory."""
    foreign_bytes: float = 0.0
    """Held by others and not going away."""
    free_bytes: float | None = None
    """Free when idle, where it was read; None: taken from the total."""


def assumed_before(room: GpuRoom, flags: ServingFlags) -> Budget:
    """Return what is free before load, with its error."""
    if flags.is_cpu:
        free = room.total_bytes if room.free_bytes is None else room.free_bytes
        context = _HOST_PROCESSES
    else:
        free = room.total_bytes - _DRIVER_BYTES if room.free_bytes is None else room.free_bytes
        context = _CONTEXT_ONE if flags.layout.gpus == 1 else _CONTEXT_MANY
    return Budget(free - context.expected_bytes, context.error_bytes)
