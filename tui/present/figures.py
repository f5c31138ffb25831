"""Figures as fixed-width text: values with ages, bars of eighths, sparklines of fixed scale."""

from dataclasses import dataclass

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.snapshot import Series
from kvctl.core.domain.units import duration, thousands
from kvctl.tui.present.line import Ink, Pen

MISSING = "–"
WINDOW_S = 600.0
LOADS_STALE_S = 5.0
"""Counts are asked for every second and counters every four: older is not of now."""
METRICS_STALE_S = 30.0
_EIGHTHS = "·▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"


def bar(ratio: float | None, cells: int) -> str:
    """Return a bar of full cells, one of eighths, and dots for the rest."""
    if ratio is None:
        return "·" * cells
    filled = int(min(1.0, max(0.0, ratio)) * cells * 8)
    full, eighths = divmod(filled, 8)
    text = "█" * full + (_EIGHTHS[eighths] if full < cells else "")
    return text + "·" * (cells - len(text))


def spark(series: Series | None, cells: int, top: float | None = None) -> str:
    """Return the series in that many cells on a scale from 0 to `top`, newest at the right.

    Without `top` the scale is 0 to the largest value of the window. A gap stays empty.
    """
    if series is None or not series.values:
        return " " * cells
    values = series.values
    known = [value for value in values if value is not None]
    scale = top if top else max(known, default=0.0)
    slots = max(len(values), round(WINDOW_S / series.step_s))
    padded = (None,) * (slots - len(values)) + values
    edges = [(i * slots // cells, (i + 1) * slots // cells) for i in range(cells)]
    return "".join(_level(_mean(padded[a : max(b, a + 1)]), scale) for a, b in edges)


def _mean(values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _level(value: float | None, scale: float) -> str:
    if value is None:
        return " "
    if scale <= 0:
        return _LEVELS[0]
    return _LEVELS[min(7, max(0, int(value / scale * 8)))]


def age_text(figure: Figure, now: float, stale_after: float) -> str | None:
    """Return the age of a figure that is too old to be current, None for a fresh one."""
    age = figure.age_s(now)
    return duration(age) if age is not None and age > stale_after else None


def seconds_short(seconds: float | None) -> str:
    """Return an age with a tenth below ten seconds: "0.4 s", "23 s", "2 m 10 s"."""
    if seconds is None:
        return MISSING
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def rounded_tokens(value: int | None) -> str:
    """Return pool tokens; a round number of thousands is a published one: "116 K"."""
    if value is None:
        return MISSING
    return f"{value // 1000} K" if value % 1000 == 0 and value >= 1000 else thousands(value)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a figure stands in a row: its right-aligned field and its unit."""

    end: int
    """Column after the last digit."""
    room: int
    """Cells of the field."""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure with how it is written and when it counts as old."""

    figure: Figure
    now: float
    scale: float = 1.0
    decimals: int = 0
    stale_after: float = LOADS_STALE_S

    @property
    def text(self) -> str:
        """The number as shown, "–" where unknown."""
        value = self.figure.value
        return MISSING if value is None else f"{value * self.scale:,.{self.decimals}f}"

    @property
    def is_stale(self) -> bool:
        """Whether it is too old to be read as current."""
        return age_text(self.figure, self.now, self.stale_after) is not None


def put_figure(pen: Pen, slot: Slot, reading: Reading) -> None:
    """Put a figure: bold when fresh; dim with its age in the unit field when old."""
    if not reading.figure.known:
        pen.right(slot.end, MISSING, Ink.DIM, slot.room)
        return
    age = age_text(reading.figure, reading.now, reading.stale_after)
    pen.right(slot.end, reading.text, Ink.BOLD if age is None else Ink.DIM, slot.room)
    pen.put(slot.end + 1, slot.unit if age is None else age, Ink.DIM, 7)
