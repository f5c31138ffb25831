"""History of the figures: ten minutes by the second, hours in coarser steps, on disk.

Each step has its own file of JSON lines in the state folder, appended in small batches and cut to
its length from time to time. A line that is torn or foreign is skipped; a file that cannot be
written costs the next kvctld its history and nothing else.
"""

import json
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kvctl.core.domain.snapshot import Series

SERIES_STEP_S = 10.0
SERIES_LENGTH = 60
"""Points of a sparkline: ten minutes."""
FLUSH_EVERY = 5
"""Points that are written together, so that a second costs no write of its own."""
MOST_NAMES = 128
OF_SERVER = "/"
"""Between a server's name and its figure; the run's own figures have none."""
_DIGITS = 6
_JUMP_STEPS = 2
"""A clock that was set back by more than this takes the points after it away."""


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of one step; a figure that was unknown is None."""

    wall: float
    """UTC seconds of the step's beginning."""
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Step:
    """How fine a part of the history is, and how far it reaches."""

    step_s: float
    length: int

    @property
    def reach_s(self) -> float:
        """Seconds that it covers."""
        return self.step_s * self.length

    @property
    def file_name(self) -> str:
        """Its file in the state folder."""
        return f"history-{self.step_s:.0f}s.jsonl"


STEPS = (Step(1.0, 600), Step(10.0, 2160), Step(60.0, 2880))
"""10 minutes, 6 hours and 2 days."""


@dataclass(slots=True)
class _Row:
    """The points of one step in memory and on disk."""

    step: Step
    path: Path | None
    points: deque[Point] = field(init=False)
    _open: list[Mapping[str, float | None]] = field(default_factory=list)
    _open_slot: float | None = None
    _unwritten: list[Point] = field(default_factory=list)
    _lines: int = 0

    def __post_init__(self) -> None:
        self.points = deque(maxlen=self.step.length)
        if self.path is not None:
            points, self._lines = read_points(self.path)
            self.points.extend(points)

    def take(self, wall: float, values: Mapping[str, float | None]) -> None:
        slot = math.floor(wall / self.step.step_s) * self.step.step_s
        if self._open_slot is not None and slot != self._open_slot:
            self._complete()
        self._open_slot = slot
        self._open.append(values)

    def _complete(self) -> None:
        """Turn what was collected of a step into its point."""
        slot = self._open_slot
        assert slot is not None
        point = Point(slot, _means(self._open))
        self._open = []
        if self.points and self.points[-1].wall - slot > _JUMP_STEPS * self.step.step_s:
            while self.points and self.points[-1].wall >= slot:
                self.points.pop()
        if self.points and self.points[-1].wall >= slot:
            return
        self.points.append(point)
        self._unwritten.append(point)
        if len(self._unwritten) >= FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        if self.path is None or not self._unwritten:
            return
        points, self._unwritten = self._unwritten, []
        try:
            if self._lines + len(points) > 2 * self.step.length:
                self._rewrite()
            else:
                _append(self.path, points)
                self._lines += len(points)
        except OSError:
            return  # a full or read-only state folder must not stop anything

    def _rewrite(self) -> None:
        assert self.path is not None
        temporary = self.path.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        _append(temporary, self.points)
        os.replace(temporary, self.path)
        self._lines = len(self.points)


class History:
    """What was shown, second by second and coarser, over the death of kvctld."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read what an earlier kvctld left in `folder`; None keeps nothing on disk."""
        self._rows = [_Row(step, folder and folder / step.file_name) for step in STEPS]
        self._series: dict[str, Series] = {}
        self._series_at: float | None = None

    def record(self, wall: float, values: Mapping[str, float | None]) -> None:
        """Take the figures of this moment (UTC seconds); a step's point is their mean."""
        kept = dict(list(values.items())[:MOST_NAMES])
        for row in self._rows:
            row.take(wall, kept)

    def series(self, wall: float) -> dict[str, Series]:
        """Return ten minutes up to `wall` for the sparklines, oldest first; a gap is None."""
        if (second := math.floor(wall)) != self._series_at:
            self._series_at = second
            self._series = _series(self._rows[0].points, math.floor(wall / SERIES_STEP_S))
        return self._series

    def flush(self) -> None:
        """Write what was not written yet."""
        for row in self._rows:
            row.flush()


def shown_values(values: Mapping[str, float | None], server: str | None) -> dict[str, float | None]:
    """Return one server's figures by their own names, beside those of the run.

    >>> shown_values({"main/pool": 0.9, "b/pool": 0.1, "effective": 600.0}, "main")
    {'pool': 0.9, 'effective': 600.0}
    """
    return _shown(values, server)


def shown_series(series: Mapping[str, Series], server: str | None) -> dict[str, Series]:
    """Return one server's series by their own names, beside the run's; the rest by full names."""
    others = {name: row for name, row in series.items() if OF_SERVER in name}
    return {**others, **_shown(series, server)}


_T = TypeVar("_T")


def _shown(values: Mapping[str, _T], server: str | None) -> dict[str, _T]:
    own = "" if server is None else f"{server}{OF_SERVER}"
    return {
        name.removeprefix(own) if own else name: value
        for name, value in values.items()
        if OF_SERVER not in name or (own and name.startswith(own))
    }


def history_since(folder: Path, since: float) -> Iterator[tuple[float, Point]]:
    """Yield (step in seconds, point) from `since` (UTC) on, oldest first, each as fine as kept.

    Reads the files that kvctld writes; the newest seconds may not be there yet.
    """
    rows = [(step, read_points(folder / step.file_name)[0]) for step in STEPS]
    begins = [points[0].wall if points else math.inf for _, points in rows]
    for number in reversed(range(len(rows))):
        step, points = rows[number]
        # A coarse row tells only what lies wholly before the finer ones begin.
        end = min(begins[:number], default=math.inf) - step.step_s
        yield from ((step.step_s, p) for p in points if since <= p.wall <= end)


def read_points(path: Path) -> tuple[list[Point], int]:
    """Return a file's points in ascending order and its number of lines; none if unreadable."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return [], 0
    points: list[Point] = []
    for line in lines:
        if (point := _point_of(line)) is None:
            continue
        while points and points[-1].wall >= point.wall:
            points.pop()  # the clock was set back: what was written later is right
        points.append(point)
    return points, len(lines)


def _point_of(line: bytes) -> Point | None:
    try:
        row = json.loads(line)
        wall, values = row["wall"], row["values"]
        if not _is_number(wall) or not isinstance(values, dict):
            return None
        known = {str(name): float(v) if _is_number(v) else None for name, v in values.items()}
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return Point(float(wall), dict(list(known.items())[:MOST_NAMES]))


def _is_number(value: object) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and math.isfinite(value)  # type: ignore[arg-type]


def _append(path: Path, points: Iterable[Point]) -> None:
    text = "".join(json.dumps({"wall": p.wall, "values": p.values}) + "\n" for p in points)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            text = "\n" + text  # a torn line must not take the next one with it
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _means(rows: Iterable[Mapping[str, float | None]]) -> dict[str, float | None]:
    seen: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            known = seen.setdefault(name, [])
            if value is not None and math.isfinite(value):
                known.append(value)
    return {name: _rounded(sum(v) / len(v)) if v else None for name, v in seen.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _series(points: Iterable[Point], last: int) -> dict[str, Series]:
    """Return the means of the ten minutes up to step `last`, evenly spaced."""
    inside: dict[int, list[Mapping[str, float | None]]] = {}
    for point in points:
        slot = math.floor(point.wall / SERIES_STEP_S)
        if last - SERIES_LENGTH < slot <= last:
            inside.setdefault(slot, []).append(point.values)
    if not inside:
        return {}
    means = {slot: _means(values) for slot, values in inside.items()}
    # A step that has only begun has no point yet: that is no gap.
    end = max(means) if last - max(means) <= 1 else last
    steps = range(min(means), end + 1)
    names = {name: None for values in means.values() for name in values}
    rows = {name: tuple(means.get(n, {}).get(name) for n in steps) for name in names}
    return {name: Series(SERIES_STEP_S, row) for name, row in rows.items()}
