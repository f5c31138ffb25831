"""One launch of a server as the ledger keeps it: what it was, what it got, what it measured.

Pure. A launch is folded from the ledger's lines; lines of another kvctl may lack fields or carry
unknown ones, and neither costs the launch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from kvctl.core.domain.capacity.calibration import ObservedLaunch
from kvctl.core.domain.capacity.prediction import Interval
from kvctl.core.domain.launches.operating_point import OperatingPoint
from kvctl.core.domain.presets.serving_flags import ServingFlags, serving_flags
from kvctl.core.domain.units import GIB

POINTS_KEPT = 40
"""Operating points of one launch; the shortest windows make room."""


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch with everything the ledger knows of it."""

    id: str
    """Unique, e.g. the log's name without its suffix."""
    preset: str
    wall: float
    """UTC seconds of the start."""
    argv: tuple[str, ...]
    """With secrets hidden."""
    env: tuple[tuple[str, str], ...] = ()
    """What was added to the environment, secrets hidden."""
    url: str = ""
    log_path: str = ""
    pid: int | None = None
    start_ticks: int | None = None
    version: str | None = None
    """SGLang's, None if unknown."""
    ready_after_s: float | None = None
    """None: never ready (or not yet), or ready while no kvctld looked."""
    served: bool = False
    """It was ready; older ledgers tell it by `ready_after_s` alone."""
    pool_tokens: int | None = None
    """max_total_num_tokens as the server said; None if never ready."""
    free_gpu_memory_gb: float | None = None
    """Per GPU after graph capture, as the start-up line says; None if it did not."""
    ended_wall: float | None = None
    exit_code: int | None = None
    """None while it runs, or for a process that was not our child."""
    cause: str | None = None
    """How it ended: "stopped", "restarted", or the first cause of a failure."""
    server: str = ""
    """Name under which it was watched; "" before it served."""
    model: str = ""
    """Path of the model; "" before the launch told it."""
    flags: tuple[tuple[str, Any], ...] = ()
    """The flags that size the pool, as the server resolved them; empty before it told them."""
    stages: tuple[tuple[str, float], ...] = ()
    """Seconds of each step of the start."""
    before_bytes: float | None = None
    """Free on the fullest GPU when the weights began to load."""
    after_bytes: float | None = None
    """The same when they had loaded."""
    max_running: int | None = None
    gpus: tuple[tuple[str, int], ...] = ()
    """Index of each GPU and the bytes this launch held on it when it was ready."""
    predicted: Interval | None = None
    """Pool as it was predicted before the launch told its own."""
    predicted_by: str | None = None
    """The launch that calibrated the prediction; None: from assumptions alone."""
    points: tuple[OperatingPoint, ...] = ()
    """Measured windows, oldest first."""

    @property
    def was_ready(self) -> bool:
        """Whether it ever served."""
        return self.served or self.ready_after_s is not None

    @property
    def serving(self) -> ServingFlags:
        """The flags that size its pool, as resolved."""
        return serving_flags(dict(self.flags), self.version)

    @property
    def prediction_error(self) -> float | None:
        """How far the expected pool was off, as a ratio of the real one; None if not known."""
        if self.predicted is None or not self.pool_tokens:
            return None
        return self.predicted.expected / self.pool_tokens - 1


_TUPLES = ("argv",)
_PAIRS = ("env", "flags", "stages", "gpus")
_POINT_FIELDS = frozenset(field.name for field in fields(OperatingPoint))
_LAUNCH_FIELDS = frozenset(field.name for field in fields(LaunchRecord))
_LATER = {
    "ready": ("served", "ready_after_s", "pool_tokens", "free_gpu_memory_gb", "version"),
    "measured": (
        "server",
        "model",
        "flags",
        "stages",
        "before_bytes",
        "after_bytes",
        "max_running",
        "gpus",
        "version",
        "pool_tokens",
        "free_gpu_memory_gb",
    ),
    "predicted": ("predicted", "predicted_by"),
    "ended": ("ended_wall", "exit_code", "cause"),
}
"""What each later line may tell."""


def fold_line(launches: dict[str, LaunchRecord], line: Mapping[str, Any]) -> None:
    """Take one line of the ledger into the launches; what does not fit is left out."""
    id, event = line.get("id"), str(line.get("event"))
    if not isinstance(id, str):
        return
    try:
        if event == "begun":
            known = _known(line, _LAUNCH_FIELDS)
            if {"preset", "wall"} <= known.keys():
                launches[id] = LaunchRecord(**{"argv": (), **known})
        elif id in launches and event == "point":
            launches[id] = with_point(launches[id], _point(line.get("point")))
        elif id in launches:
            launches[id] = replace(launches[id], **_known(line, frozenset(_LATER.get(event, ()))))
    except (TypeError, ValueError):
        return


def with_point(launch: LaunchRecord, point: OperatingPoint) -> LaunchRecord:
    """Return the launch with a window, in place of an earlier state of the same window."""
    others = [p for p in launch.points if _window(p) != _window(point)]
    points = [*others, point]
    if len(points) > POINTS_KEPT:
        points.remove(min(points, key=lambda p: (p.steady, p.window_s)))
    return replace(launch, points=tuple(sorted(points, key=lambda p: p.began_wall)))


def observed_of(launch: LaunchRecord) -> ObservedLaunch | None:
    """Return what a launch teaches about the next one's pool; None where its flags are unknown."""
    if not launch.flags or not launch.pool_tokens:
        return None
    free = launch.free_gpu_memory_gb
    return ObservedLaunch(
        model=launch.model,
        flags=launch.serving,
        pool_tokens=launch.pool_tokens,
        before_bytes=launch.before_bytes,
        after_bytes=launch.after_bytes,
        free_bytes=None if free is None else free * GIB,
        max_running=launch.max_running,
        label=f"{launch.preset} ({launch.id})",
    )


def best_points(launch: LaunchRecord) -> tuple[OperatingPoint, ...]:
    """Return the window to quote of each partition: the longest steady one, else the longest."""
    best: dict[str, OperatingPoint] = {}
    for point in launch.points:
        known = best.get(point.partition)
        if known is None or (point.steady, point.window_s) > (known.steady, known.window_s):
            best[point.partition] = point
    return tuple(best.values())


def find_launches(launches: Sequence[LaunchRecord], wanted: str | None) -> list[LaunchRecord]:
    """Return the launches of a preset, or the one with this id; all without a name."""
    if wanted is None:
        return list(launches)
    return [launch for launch in launches if wanted in (launch.id, launch.preset)]


def _window(point: OperatingPoint) -> tuple[str, float, bool]:
    return point.partition, point.began_wall, point.steady


def _known(line: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    told = (name for name in line.keys() & names if line[name] is not None)
    return {name: _value(name, line[name]) for name in told}


def _value(name: str, value: Any) -> Any:  # noqa: ANN401
    if name in _TUPLES:
        return tuple(value)
    if name in _PAIRS:
        return tuple((str(key), _number(name, inner)) for key, inner in value)
    if name == "predicted":
        return Interval(*map(float, value))
    if name == "points":
        return tuple(_point(point) for point in value)
    return value


def _number(name: str, value: Any) -> Any:  # noqa: ANN401
    return str(value) if name == "env" else value


def _point(value: Any) -> OperatingPoint:  # noqa: ANN401
    return OperatingPoint(**{k: v for k, v in dict(value).items() if k in _POINT_FIELDS})


def model_key(path: str | None) -> str:
    """Return a model path as launches of one model have it in common."""
    return (path or "").rstrip("/")
