"""Words the panes share: states, moments and durations as they are written on the screen."""

import re
import time

from kvctl.core.domain.runs.run import Partition, PartitionState, Run, RunState
from kvctl.core.domain.servers.server import Server, ServerState, StageState
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import duration

_ROUND_TO_S = 300
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_PATH = re.compile(r"(?:/[^\s/:]+){2,}/([^\s/:]+)")


def server_word(server: Server) -> str:
    """Return the state as one word in capitals; every serving state is READY."""
    if server.state in (ServerState.IDLE, ServerState.DECODING):
        return "READY"
    return server.state.value.upper()


def server_age(snapshot: Snapshot, server: Server) -> str:
    """Return how long the server has been in that state; READY counts from readiness."""
    if server.state.is_ready and server.ready_wall is not None:
        return duration(snapshot.wall - server.ready_wall)
    return duration(snapshot.at - server.state_since)


def run_word(snapshot: Snapshot, run: Run) -> str:
    """Return the run's state in words, with the cause of a hold where it is a restart."""
    if run.state is not RunState.HOLDING:
        return run.state.value.upper()
    return "HELD for restart" if is_changing(snapshot.server) else "HELD"


def is_changing(server: Server | None) -> bool:
    """Return whether a start, stop or restart is in progress."""
    if server is None:
        return False
    moving = server.state in (ServerState.STARTING, ServerState.STOPPING)
    return moving or any(stage.state is StageState.DOING for stage in server.stages)


def hours(seconds: float | None) -> str:
    """Return a long duration in hours up to 99 h: "34 h 17 m"."""
    if seconds is None or not 86400 <= seconds < 360_000:
        return duration(seconds)
    minutes = round(seconds) // 60
    return f"{minutes // 60} h {minutes % 60:02d} m"


def about(seconds: float) -> str:
    """Return a duration that is only estimated, coarser than a measured one: "~22 m", "~34 h"."""
    if seconds < 60:
        return f"~{duration(seconds)}"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"~{minutes} m"
    return f"~{minutes // 60} h {minutes % 60:02d} m" if minutes < 600 else f"~{minutes / 60:.0f} h"


def within(middle_s: float | None, low_s: float | None, high_s: float | None) -> str:
    """Return a duration with what it may be off by: "34 ± 2 h", "52 ± 4 min", "–" if unknown."""
    if middle_s is None or low_s is None or high_s is None or not middle_s:
        return hours(middle_s)
    size, word = next((size, word) for size, word in _UNITS if middle_s >= 2 * size or size == 1.0)
    half = (high_s - low_s) / 2 / size
    digits = 0 if half >= 2 or size == 1.0 else 1
    return f"{middle_s / size:.{digits}f} ± {half:.{digits}f} {word}"


def moment(wall: float | None, now_wall: float) -> str:
    """Return an expected moment, to five minutes: "22:45", "Wed 22:45", "–" if unknown."""
    if wall is None:
        return "–"
    rounded = round(wall / _ROUND_TO_S) * _ROUND_TO_S
    then, now = time.localtime(rounded), time.localtime(now_wall)
    if then[:3] == now[:3]:
        return time.strftime("%H:%M", then)
    return time.strftime("%a %H:%M" if rounded - now_wall < 6 * 86400 else "%d %b", then)


def minute(wall: float | None) -> str:
    """Return a moment of the day without seconds."""
    return "–" if wall is None else time.strftime("%H:%M", time.localtime(wall))


def wall_of(snapshot: Snapshot, at: float) -> float:
    """Return the wall time of a monotonic moment of the snapshot's clock."""
    return snapshot.wall - (snapshot.at - at)


def open_partition(run: Run | None) -> Partition | None:
    """Return the partition that speaks for the lengths now: the open one with most in flight."""
    opened = [p for p in run.partitions if p.state is PartitionState.OPEN] if run else []
    return max(opened, key=lambda part: part.in_flight, default=None)


def short_paths(text: str) -> str:
    """Return text with every long path as its last component, so that what follows is seen."""
    return _PATH.sub(lambda found: found.group(1), text)


def single(text: str) -> str:
    """Return text without a final full stop, to be joined into a line."""
    return text.strip().rstrip(".")
