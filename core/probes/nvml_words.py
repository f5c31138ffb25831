"""NVML's error codes and throttle bits in words that say what to do next."""

import re
from pathlib import Path

import pynvml

_OFF = "GPU figures and GPU kills are off, everything else works"
_KERNEL_MODULE = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)")
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.[\d.]+)")
_THROTTLE_WORDS = (
    (0x004, "power limit"),
    (0x008, "hardware slowdown"),
    (0x010, "sync boost"),
    (0x020, "thermal limit"),
    (0x040, "hardware thermal slowdown"),
    (0x080, "power brake"),
    (0x002, "clocks set by hand"),
    (0x100, "display clock setting"),
    (0x200, "board limit"),
    (0x400, "reliability limit"),
)
_ERROR_WORDS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not supported by this device",
    pynvml.NVML_ERROR_NO_PERMISSION: "not permitted for this user",
    pynvml.NVML_ERROR_GPU_IS_LOST: "GPU is lost (fell off the bus): reset or reboot",
    pynvml.NVML_ERROR_RESET_REQUIRED: "GPU requires a reset (nvidia-smi --gpu-reset)",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "this driver is too old to tell",
    pynvml.NVML_ERROR_TIMEOUT: "the driver did not answer in time",
    pynvml.NVML_ERROR_UNKNOWN: "Unknown Error (999) from the driver",
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML was closed; it is opened again",
}


def error_words(error: pynvml.NVMLError) -> str:
    """Return why one figure or device could not be read, in a few words."""
    code = int(error.value)
    return _ERROR_WORDS.get(code) or f"{error} (NVML error {code})"


def is_fatal(error: pynvml.NVMLError) -> bool:
    """Return whether the error means that the whole device, not one figure, is gone."""
    return error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED)


def throttle_words(bits: int) -> tuple[str, ...]:
    """Return why clocks are held down; an idle device is not throttled."""
    return tuple(word for bit, word in _THROTTLE_WORDS if bits & bit)


def init_problem(error: pynvml.NVMLError, proc: Path) -> str:
    """Return in one line why NVML cannot be used and what that means."""
    code = error.value
    if code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return f"no NVIDIA driver here (libnvidia-ml.so.1 not found): {_OFF}"
    if code == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return f"the NVIDIA driver is installed but not loaded (modprobe nvidia): {_OFF}"
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return (
            f"NVIDIA driver and library differ ({_versions(proc)}): running jobs go on, a new GPU"
            f" start fails until the module is reloaded or the host rebooted; {_OFF}"
        )
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        return f"this user may not use the NVIDIA driver (/dev/nvidiactl): {_OFF}"
    if code == pynvml.NVML_ERROR_UNKNOWN:
        return (
            "NVML cannot start (Unknown Error): a container that has lost its GPUs says this;"
            f" running jobs go on, a new start fails until it is recreated; {_OFF}"
        )
    return f"NVML cannot be used ({error_words(error)}): {_OFF}"


def _versions(proc: Path) -> str:
    module = _first(_KERNEL_MODULE, proc / "driver" / "nvidia" / "version")
    library = _first(_LIBRARY, proc / "self" / "maps")
    return f"kernel module {module or 'unknown'}, library {library or 'unknown'}"


def _first(pattern: re.Pattern[str], path: Path) -> str | None:
    try:
        found = pattern.search(path.read_text(errors="replace"))
    except OSError:
        return None
    return found[1] if found else None
