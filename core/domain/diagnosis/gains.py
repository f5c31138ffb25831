"""What a lever would bring: more requests at once, another preset, and when a restart pays.

Pure; every number comes from figures that were measured here.
"""

from dataclasses import dataclass

from kvctl.core.domain.diagnosis.scene import Load, Scene
from kvctl.core.domain.launches.step_law import RatePoint, expected_rate
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.snapshot import PresetSummary
from kvctl.core.domain.units import duration, thousands

WORTH = 1.05
"""A smaller gain in tokens a second is within what two windows differ by."""
STOP_S = 30.0
"""What a restart takes beside the start itself."""
LARGER = 1.1
"""A pool is larger from this many times the present one on."""


def gain_of(scene: Scene, now: float, then: float) -> float | None:
    """Return tokens a second with `then` requests over those with `now`; None if not measured.

    Two measured counts that differ are needed: one tells no slope.
    """
    points = [
        RatePoint(p.running, p.generation_tokens_per_s, p.window_s)
        for p in scene.points
        if p.steady and p.running and p.generation_tokens_per_s
    ]
    if scene.server is not None and (
        rate := scene.number(scene.server.decode.generation_tokens_per_s)
    ):
        points.append(RatePoint(now, rate, 60.0))
    counts = [point.running for point in points]
    if not counts or max(counts) < 1.15 * min(counts):
        return None
    before, after = expected_rate(points, now), expected_rate(points, then)
    if before is None or after is None:
        return None
    return after.expected / before.expected


def gain_words(gain: float | None) -> str:
    """Return ", +12 % tok/s", "" where it is not known."""
    return "" if gain is None else f", {gain - 1:+.0%} tok/s"


@dataclass(frozen=True, slots=True)
class PresetGain:
    """What a larger pool would bring."""

    preset: PresetSummary
    at_once: float
    """Requests that would decode at once."""
    gain: float | None
    """Tokens a second over those of now."""
    is_measured: bool

    def words(self, scene: Scene, now: float) -> str:
        """Return the lever in one line, with its gain and when the restart is paid back."""
        source = "measured" if self.is_measured else "estimated"
        gain = "" if self.gain is None else f" ({self.gain - 1:+.0%} tok/s, {source})"
        head = f"R {self.preset.name}: ~{self.at_once:.0f} at once instead of ~{now:.0f}{gain}"
        return head + _payback(scene, self.gain)


def larger_preset(scene: Scene, load: Load, fit: float) -> PresetGain | None:
    """Return the allowed preset with the largest pool, if it is larger than the present one.

    Only the pool of the GPUs counts: HiCache in host memory decodes nothing.
    """
    allowed = [p for p in larger_presets(scene, load) if p.refused is None and p.problem is None]
    if not allowed:
        return None
    best = max(allowed, key=lambda preset: preset.pool_tokens or 0)
    at_once = fit * (best.pool_tokens or 0) / load.pool
    now = scene.number(scene.server.decode.generation_tokens_per_s) if scene.server else None
    if best.generation_tokens_per_s and now:
        return PresetGain(best, at_once, best.generation_tokens_per_s / now, True)
    return PresetGain(best, at_once, gain_of(scene, load.running, at_once), False)


def larger_presets(scene: Scene, load: Load) -> list[PresetSummary]:
    """Return the presets whose last launch had a larger pool, those included that are ruled out."""
    return [p for p in scene.presets if p.pool_tokens and p.pool_tokens > LARGER * load.pool]


def is_worth(scene: Scene, found: PresetGain) -> bool:
    """Return whether a restart with it pays before the run ends; unknown counts as worth a look."""
    if found.gain is None:
        return True
    paid, left = _paid_after_s(scene, found.gain), _left_s(scene.run)
    return found.gain >= WORTH and (paid is None or left is None or paid < left)


def _payback(scene: Scene, gain: float | None) -> str:
    start = scene.server.ready_after_s if scene.server is not None else None
    if start is None:
        return "; how long a start takes is not known yet."
    down = duration(start + STOP_S)
    paid = None if gain is None else _paid_after_s(scene, gain)
    if paid is None:
        return f"; the restart takes ~{down}."
    return f"; the ~{down} restart is paid back {duration(paid - start - STOP_S)} later."


def _paid_after_s(scene: Scene, gain: float) -> float | None:
    """Return the seconds from now until a restart has made up for its own standstill."""
    start = scene.server.ready_after_s if scene.server is not None else None
    if start is None or gain <= 1.0:
        return None
    down = start + STOP_S
    return down + down / (gain - 1.0)


def _left_s(run: Run | None) -> float | None:
    return None if run is None else run.remaining_s


def pool_words(load: Load) -> str:
    """Return the pool and its usage: "pool 0.71 of 159,277"."""
    return f"pool {load.usage:.2f} of {thousands(load.pool)}"
