"""Ten minutes of memory and utilisation of each GPU, in steps, for the zoomed pane."""

import math
from collections import deque
from dataclasses import dataclass, field

from kvctl.core.domain.gpus.devices import GpuDevice, GpuView
from kvctl.core.domain.snapshot import GpuSeries, Series

STEP_S = 15.0
LENGTH = 40
MOST_GPUS = 64

Pair = tuple[float | None, float | None]
"""Memory and utilisation, each 0..1; None where unknown."""


@dataclass(slots=True)
class GpuHistory:
    """The last steps of every GPU that was seen; a step without a reading is a gap."""

    _slot: int | None = None
    _open: dict[str, list[Pair]] = field(default_factory=dict)
    _rows: dict[str, deque[Pair]] = field(default_factory=dict)

    def take(self, view: GpuView) -> None:
        """Take one reading; a step's point is the mean of its readings."""
        if view.at is None:
            return
        slot = math.floor(view.at / STEP_S)
        if self._slot is not None and slot != self._slot:
            self._close(max(0, min(LENGTH, slot - self._slot - 1)))
        self._slot = slot
        for device in view.devices[:MOST_GPUS]:
            self._open.setdefault(device.uuid, []).append(_pair(device))

    def _close(self, gaps: int) -> None:
        for uuid in {**self._rows, **self._open}:
            row = self._rows.setdefault(uuid, deque(maxlen=LENGTH))
            row.append(_mean(self._open.get(uuid, [])))
            row.extend([(None, None)] * gaps)
        self._open = {}
        empty = [uuid for uuid, row in self._rows.items() if _is_empty(row)]
        for uuid in empty:
            del self._rows[uuid]

    def series(self) -> dict[str, GpuSeries]:
        """Return the steps of each GPU, oldest first, the open one as it stands now."""
        return {uuid: self._series(uuid) for uuid in {**self._rows, **self._open}}

    def _series(self, uuid: str) -> GpuSeries:
        points = [*self._rows.get(uuid, ()), _mean(self._open.get(uuid, []))][-LENGTH:]
        memory = Series(STEP_S, tuple(point[0] for point in points))
        return GpuSeries(memory, Series(STEP_S, tuple(point[1] for point in points)))


def _pair(device: GpuDevice) -> Pair:
    used, total = device.memory_used_bytes.value, device.memory_total_bytes.value
    memory = used / total if used is not None and total else None
    return memory, device.utilisation_ratio.value


def _mean(pairs: list[Pair]) -> Pair:
    memory = [pair[0] for pair in pairs if pair[0] is not None]
    busy = [pair[1] for pair in pairs if pair[1] is not None]
    return _rounded(memory), _rounded(busy)


def _rounded(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def _is_empty(row: "deque[Pair]") -> bool:
    return all(point == (None, None) for point in row)
