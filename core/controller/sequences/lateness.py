"""Whether a start is late: a step that makes no progress for longer than its limit.

Slow is not dead: every shard, graph or new line of a step begins its time anew, and a passed
limit is only told, once a step, unless config.toml says that it ends the start.
"""

from dataclasses import dataclass

from kvctl.core.domain.servers.server import Failure
from kvctl.core.domain.servers.startup import STEPS, StartupProgress
from kvctl.core.domain.units import duration
from kvctl.core.servers.limits import StageLimits

NAMES = dict(STEPS)


@dataclass(slots=True)
class Lateness:
    """Follows one start; times are monotonic seconds."""

    limits: StageLimits
    step: str | None = None
    """Key of the step that is late now, None while none is."""
    _place: tuple[str | None, str] | None = None
    _since: float = 0.0
    _told: str | None = None

    def look(self, startup: StartupProgress, now: float) -> str | None:
        """Return what to tell about a step that has just become late, else None."""
        place = (startup.current, startup.text)
        if place != self._place:
            self._place, self._since, self.step = place, now, None
        key = startup.current
        if key is None or now - self._since < self.limits.of_step(key):
            return None
        self.step = key
        if self._told == key:
            return None
        self._told = key
        return f"{NAMES[key]}: no progress for {duration(self.limits.of_step(key))}"

    def told(self, now: float) -> str:
        """Return for how long the late step has made no progress, "" while none is late."""
        return "" if self.step is None else f"no progress for {duration(now - self._since)}"

    def failure(self) -> Failure:
        """Return the card of a start that its limit ends."""
        name, limit_s = NAMES[self.step or STEPS[0][0]], self.limits.of_step(self.step or "")
        return Failure(
            f"the start was ended: {name} made no progress for {duration(limit_s)}",
            (
                "[limits] end_start = true in config.toml says so; raise the limit there where"
                " storage or compiling is slow",
            ),
        )
