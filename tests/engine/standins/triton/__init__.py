"""Import-only triton: SGLang decorates its GPU kernels with it when its modules are loaded."""

import import_only  # type: ignore[import-not-found]  # found through the engine's PYTHONPATH

__version__ = "3.5.0"
__getattr__ = import_only.serve(__name__)


def cdiv(dividend: int, divisor: int) -> int:
    """Divide and round up: used on the host to size buffers."""
    return (dividend + divisor - 1) // divisor


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below n: used on the host to size buffers."""
    power = 1
    while power < n:
        power *= 2
    return power
