"""The ceiling policy: when sending stops at a full KV pool, and when it goes on.

Pure: readings and the state before go in, the action comes out. Nothing here calls a server: a
pause is only that kvctl stops sending.
"""

from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.runs.run import CeilingPolicy


class CeilingAction(StrEnum):
    """What one reading means under the policy."""

    NONE = "none"
    WARN = "warn"
    """At the mark, but nothing waits and nothing was retracted."""
    PAUSE = "pause"
    STAY = "stay paused"
    RESUME = "resume"
    NO_DATA = "no data"
    """The last state is kept."""


@dataclass(frozen=True, slots=True)
class CeilingMarks:
    """The operator's choice."""

    policy: CeilingPolicy = CeilingPolicy.THROTTLE
    pause_above: float = 0.95
    """Token usage (0..1) at or above which sending stops."""
    resume_below: float = 0.80
    """Token usage (0..1) at or below which it goes on."""


@dataclass(frozen=True, slots=True)
class CeilingReading:
    """The figures that decide; None is unknown."""

    token_usage: float | None
    """0..1."""
    queued: int | None
    retractions: int | None
    """Since the reading before; None where the server does not count them."""


@dataclass(frozen=True, slots=True)
class CeilingStep:
    """The action, the state after it, and the figures that caused it in one line."""

    action: CeilingAction
    is_paused: bool
    """Whether the policy keeps sending stopped after this step."""
    reason: str


def step(is_paused: bool, reading: CeilingReading, marks: CeilingMarks) -> CeilingStep:
    """Return what to do with one reading; only the policy `pause` ever pauses."""
    usage = reading.token_usage
    if usage is None:
        return CeilingStep(CeilingAction.NO_DATA, is_paused, "no data: the last state is kept")
    figures = _figures(reading)
    if is_paused:
        if usage <= marks.resume_below:
            reason = f"{figures}: at or below {marks.resume_below:g}, sending again"
            return CeilingStep(CeilingAction.RESUME, False, reason)
        reason = f"{figures}: above {marks.resume_below:g}, stays paused"
        return CeilingStep(CeilingAction.STAY, True, reason)
    if usage < marks.pause_above:
        return CeilingStep(CeilingAction.NONE, False, figures)
    has_pressure = bool(reading.queued) or bool(reading.retractions)
    if has_pressure and marks.policy is CeilingPolicy.PAUSE:
        reason = f"{figures}: sending stops until usage is {marks.resume_below:g} or less"
        return CeilingStep(CeilingAction.PAUSE, True, reason)
    return CeilingStep(CeilingAction.WARN, False, f"{figures}: at the KV ceiling")


def _figures(reading: CeilingReading) -> str:
    parts = [f"usage {reading.token_usage:.2f}"]
    if reading.queued is not None:
        parts.append(f"{reading.queued} queued")
    if reading.retractions is not None:
        parts.append(f"{reading.retractions} retracted")
    return ", ".join(parts)
