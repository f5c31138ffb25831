"""What the launches of a host have measured that tells the speed of another launch.

Pure. Only steady windows count; a burst says nothing about the hours that follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvctl.core.domain.launches.launch import LaunchRecord
from kvctl.core.domain.launches.step_law import RatePoint
from kvctl.core.domain.presets.serving_flags import ServingFlags

_LEAST_EFFECTIVE_S = 300.0
"""A shorter window counts too few answers to tell what a partition takes."""


@dataclass(frozen=True, slots=True)
class SpeedKey:
    """The launch whose speed is asked for."""

    preset: str
    model: str
    argv: tuple[str, ...]
    """Secrets hidden."""
    flags: ServingFlags


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """What was measured."""

    points: tuple[RatePoint, ...]
    """Steady windows of like launches."""
    told: str
    """Which launches they are of, or why there are none."""
    effective: Mapping[str, float]
    """Effective tok/s of each partition under this very command line, where a long window tells."""
    effective_ratio: float
    """What completed answers are of generated tokens; 1.0 where no long window tells."""


def measured_speed(key: SpeedKey, launches: Sequence[LaunchRecord]) -> MeasuredSpeed:
    """Return what was measured: under the same KV dtype where it was, else of the same model."""
    alike = [launch for launch in launches if _is_alike(key, launch)]
    same = [x for x in alike if not x.flags or x.serving.kv_dtype == key.flags.kv_dtype]
    chosen = next((some for some in (same, alike) if any(map(_steady, some))), [])
    points = tuple(point for launch in chosen for point in _steady(launch))
    names = ", ".join(dict.fromkeys(x.preset for x in chosen if _steady(x)))
    told = f"{len(points)} steady windows of {names}" if points else _NOTHING
    return MeasuredSpeed(points, told, _effective(key, launches), _effective_ratio(alike))


_NOTHING = "no launch of this model was steady yet"


def _steady(launch: LaunchRecord) -> tuple[RatePoint, ...]:
    return tuple(
        RatePoint(point.running, point.generation_tokens_per_s, point.window_s)
        for point in launch.points
        if point.steady and point.running and point.generation_tokens_per_s
    )


def _is_alike(key: SpeedKey, launch: LaunchRecord) -> bool:
    if not launch.flags:
        return launch.preset == key.preset
    if launch.model != key.model:
        return False
    own = launch.serving
    return own.layout == key.flags.layout and own.is_cpu == key.flags.is_cpu


def _effective(key: SpeedKey, launches: Sequence[LaunchRecord]) -> dict[str, float]:
    """Return the rate of each partition's longest steady window of this command line."""
    best: dict[str, tuple[float, float]] = {}
    for launch in launches:
        if not key.argv or launch.argv != key.argv:
            continue
        for point in launch.points:
            rate, least = point.effective_tokens_per_s, _LEAST_EFFECTIVE_S
            longest, _ = best.get(point.partition, (least, 0.0))
            if point.steady and rate and point.window_s >= longest:
                best[point.partition] = (point.window_s, rate)
    return {name: rate for name, (_, rate) in best.items()}


def _effective_ratio(launches: Sequence[LaunchRecord]) -> float:
    made = done = 0.0
    for point in (point for launch in launches for point in launch.points):
        generation, effective = point.generation_tokens_per_s, point.effective_tokens_per_s
        if point.steady and point.window_s >= _LEAST_EFFECTIVE_S and generation and effective:
            made += generation * point.window_s
            done += effective * point.window_s
    return min(1.0, done / made) if made else 1.0
