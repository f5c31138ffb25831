"""Figures in JSON documents: the number flat, its truth (source, age, reason) beside it; pure."""

from typing import Any

from kvctl.core.domain.figures import Figure

Document = dict[str, Any]


def figures_document(now: float, **figures: Figure) -> Document:
    """Return `name: number or null` for each figure, and under "figures" the truth of each."""
    values: Document = {name: figure.value for name, figure in figures.items()}
    return {**values, "figures": {name: _truth(figure, now) for name, figure in figures.items()}}


def _truth(figure: Figure, now: float) -> Document:
    truth: Document = {"source": figure.source, "age_s": figure.age_s(now)}
    return truth if figure.known else {**truth, "reason": figure.reason}
