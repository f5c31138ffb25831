"""The kept history of one server over a stretch of time, in a few rows of means."""

import math
from collections.abc import Iterator
from pathlib import Path

from kvctl.core.controller.history import Point, history_since, shown_values


def spans(folder: Path, server: str, begin: float, end: float, most: int) -> Iterator[Point]:
    """Yield at most `most` rows between two moments (UTC): means of one server's figures.

    A step counts with its length; a row in which nothing was kept is left out, a figure that was
    never known in it is None.
    """
    kept = ((step, p) for step, p in history_since(folder, begin) if p.wall < end)
    points = [(step, p.wall, shown_values(p.values, server)) for step, p in kept]
    points = [point for point in points if point[2]]
    if not points:
        return
    first, last = points[0][1], points[-1][1] + points[-1][0]
    width = max(1.0, (last - first) / most)
    rows: dict[int, list[tuple[float, dict[str, float | None]]]] = {}
    for step, wall, values in points:
        rows.setdefault(min(most - 1, math.floor((wall - first) / width)), []).append(
            (step, values)
        )
    for number, row in sorted(rows.items()):
        yield Point(first + number * width, _means(row))


def _means(row: list[tuple[float, dict[str, float | None]]]) -> dict[str, float | None]:
    names = {name: None for _, values in row for name in values}
    found: dict[str, float | None] = {}
    for name in names:
        known = [(step, v) for step, values in row if (v := values.get(name)) is not None]
        weight = sum(step for step, _ in known)
        found[name] = sum(step * v for step, v in known) / weight if weight else None
    return found
