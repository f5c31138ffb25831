"""Xid errors of NVIDIA devices: from NVML's events while kvctld runs, and the kernel's log before.

Nothing here waits: events are taken with a timeout of 0, the log is read without blocking. Where
neither can be read, the reason is kept. Opens no CUDA context.
"""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml

from kvctl.core.domain.gpus.devices import XidError
from kvctl.core.probes.nvml_words import error_words

KMSG = Path("/dev/kmsg")
MOST_KEPT = 8
_MOST_EVENTS = 64
"""A reading: a storm of errors must not hold it up."""
_MOST_RECORDS = 20_000
_SAME_WITHIN_S = 5.0
"""The same code from both sources within this time is one error."""
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+),?\s*(.*)")
_WORDS = {
    13: "graphics engine exception: usually the program",
    31: "GPU memory page fault: usually the program",
    43: "the GPU stopped processing a program",
    45: "a program's work was removed, after another error or its end",
    48: "double-bit ECC error: uncorrectable",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "a memory row was remapped or a page retired",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained memory error: one program was hit",
    95: "uncontained memory error: every program on the GPU was hit",
    119: "the GPU's own processor (GSP) did not answer in time",
    120: "the GPU's own processor (GSP) failed",
    154: "the driver wants a recovery: see dmesg",
}


class XidWatch:
    """Collects the Xid errors of every device since it began, and what the kernel log has."""

    def __init__(self, kmsg: Path = KMSG) -> None:
        """Read the kernel's log from `kmsg`, where that is permitted."""
        self._kmsg = kmsg
        self._log: int | None = None
        self._log_problem: str | None = None
        self._events: Any = None
        self._event_problem: str | None = None
        self._watched: dict[int, str] = {}
        self._found: dict[str, list[XidError]] = {}

    def watch(self, handle: Any, bus_id: str) -> None:  # noqa: ANN401  a pointer of pynvml's
        """Ask the driver to report this device's errors; asked once a handle."""
        address = _address(handle)
        if address in self._watched:
            return
        self._watched[address] = _plain_bus(bus_id)
        try:
            if self._events is None:
                self._events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(
                handle, pynvml.nvmlEventTypeXidCriticalError, self._events
            )
        except pynvml.NVMLError as error:
            self._event_problem = error_words(error)

    def poll(self, at: float) -> None:
        """Take what was reported since the last time."""
        for bus, code in self._reported():
            self._keep(bus, XidError(code, _WORDS.get(code, ""), at))
        for line in self._log_lines():
            match = _LINE.search(line)
            if match is not None:
                code = int(match[2])
                text = _WORDS.get(code) or _printable(match[3])
                self._keep(_plain_bus(match[1]), XidError(code, text, _stamp(line)))

    def of(self, bus_id: str) -> tuple[tuple[XidError, ...], str | None]:
        """Return the errors of a device, newest last, and why there can be none."""
        problem = None
        if self._event_problem is not None and self._log is None:
            problem = f"events: {self._event_problem}; kernel log: {self._log_problem}"
        return tuple(self._found.get(_plain_bus(bus_id), ())), problem

    def forget_handles(self) -> None:
        """Give the events back: NVML is closed and its handles are void; errors stay known."""
        self._watched.clear()
        events, self._events = self._events, None
        if events is not None:
            try:
                pynvml.nvmlEventSetFree(events)
            except pynvml.NVMLError:
                return

    def _reported(self) -> Iterator[tuple[str, int]]:
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            try:
                data = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self._event_problem = error_words(error)
                return
            bus = self._watched.get(_address(data.device))
            if bus is not None:
                yield bus, int(data.eventData)

    def _keep(self, bus: str, error: XidError) -> None:
        kept = self._found.setdefault(bus, [])
        if any(_is_same(error, before) for before in kept):
            return
        kept.append(error)
        kept.sort(key=lambda one: one.at if one.at is not None else float("-inf"))
        del kept[:-MOST_KEPT]

    def _log_lines(self) -> Iterator[str]:
        """Yield the records that are new; each read gives one."""
        if self._log is None and self._log_problem is None:
            self._open_log()
        if self._log is None:
            return
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(self._log, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # records were overwritten meanwhile; the next read is the oldest left
            except OSError as error:
                self._close_log(error.strerror or str(error))
                return
            if not record:
                return
            yield from record.decode("utf-8", "replace").splitlines()

    def _open_log(self) -> None:
        try:
            self._log = os.open(self._kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._log_problem = error.strerror or str(error)

    def _close_log(self, why: str) -> None:
        if self._log is not None:
            os.close(self._log)
        self._log, self._log_problem = None, why

    def close(self) -> None:
        """Give everything back."""
        self.forget_handles()
        self._close_log("closed")


def _is_same(one: XidError, other: XidError) -> bool:
    if one.code != other.code or one.at is None or other.at is None:
        return one.code == other.code and one.at == other.at
    return abs(one.at - other.at) < _SAME_WITHIN_S


def _stamp(line: str) -> float | None:
    """Return the seconds after boot of a record: "6,1234,98765432,-;text"."""
    head = line.partition(";")[0].split(",")
    return int(head[2]) / 1e6 if len(head) > 2 and head[2].isdigit() else None


def _plain_bus(bus_id: str) -> str:
    """Return "10:00" of "00000000:10:00.0" and of "0000:10:00"."""
    parts = bus_id.lower().split(":")
    return ":".join(parts[-2:]).partition(".")[0]


def _printable(text: str) -> str:
    return "".join(char for char in text[:120] if char.isprintable())


def _address(handle: Any) -> int:  # noqa: ANN401  a pointer of pynvml's
    cast: Callable[..., Any] = ctypes.cast
    return int(cast(handle, ctypes.c_void_p).value or 0)
