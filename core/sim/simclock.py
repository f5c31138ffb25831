"""The clock that a simulated engine and kvctld share, handed on through one variable."""

from collections.abc import Mapping

from kvctl.core.clock import Clock, RealClock, ScaledClock

CLOCK_VARIABLE = "KVCTL_SIM_CLOCK"
"""`speed,origin_monotonic,origin_wall`; unset means the host's own clock."""
FOLDER_VARIABLE = "KVCTL_SIM_DIR"
"""The simulated host's folder: memory holders, activity, scenario; unset means none."""


def clock_from_environment(environment: Mapping[str, str]) -> Clock:
    """Return the clock that KVCTL_SIM_CLOCK describes.

    Raises:
        ValueError: The variable is set to something else than three numbers.
    """
    text = environment.get(CLOCK_VARIABLE)
    if not text:
        return RealClock()
    speed, monotonic, wall = (float(part) for part in text.split(","))
    return ScaledClock(speed, monotonic, wall)


def clock_to_environment(clock: ScaledClock) -> str:
    """Return the value of KVCTL_SIM_CLOCK for a clock."""
    return f"{clock.speed!r},{clock.origin_monotonic!r},{clock.origin_wall!r}"


def speed_of(clock: Clock) -> float:
    """Return simulated seconds per real second."""
    return clock.speed if isinstance(clock, ScaledClock) else 1.0
