"""A figure: a number with the source, the moment and, where it is missing, the reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number as it was read; the unit is in the name of the field that holds it."""

    value: int | float | None
    """The number, or None: unknown, never 0 in its place."""
    source: str
    """Where it was read, such as "/v1/loads" or "journal"."""
    at: float | None
    """Monotonic seconds when it was true at the source; None if it never was."""
    reason: str | None = None
    """Why the value is None."""

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return self.value is not None

    def age_s(self, now: float) -> float | None:
        """Return seconds since it was true, or None if it never was."""
        return None if self.at is None else max(0.0, now - self.at)


def unknown(reason: str, source: str = "") -> Figure:
    """Return a figure without a value, saying why."""
    return Figure(None, source, None, reason)
