"""When a run is done: an estimate with an interval, from lengths that are left and the pace.

Bulk: the tokens of rows not sent yet and what those in flight still need, over the pace; then the
drain, in which the last requests end one by one and nothing takes their place. Lengths come from
`survival`, the pace from `pace`, both beside this module. Pure; seconds and tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvctl.core.domain.runs.pace import Pace
from kvctl.core.domain.runs.survival import Survival

ANSWERS_NEEDED = 5
"""Fewer finished answers of a partition, where it has more rows, tell nothing of its lengths."""
_WIDTH = 1.8
"""Standard deviations from the middle to each end of the interval; chosen on simulated runs."""
_PACE_SPREAD = 0.08
"""Relative error of a measured pace over what follows, at the least."""
_GUESS_SPREAD = 0.3
"""Relative error of a predicted change of the pace, per factor e."""
_DRAIN_SPREAD = 0.15
_DRAWS = 12
_GOLDEN = 0.618033988749895
"""Its multiples fill 0..1 evenly: draws that are the same every time."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is left of one partition."""

    unsent: int
    """Rows that are neither done, failed, in flight nor begun."""
    begun: tuple[float, ...]
    """Tokens that each answer in flight, and each kept partial, has."""
    lengths: Survival | None
    """None before an answer has finished."""
    relative_pace: float = 1.0
    """Tokens per second while it runs over those of now, as far as it can be foreseen."""

    @property
    def rows(self) -> int:
        """Return the rows that are left."""
        return self.unsent + len(self.begun)

    @property
    def is_known(self) -> bool:
        """Whether its lengths are known well enough."""
        if not self.rows:
            return True
        return self.lengths is not None and self.lengths.seen >= min(ANSWERS_NEEDED, self.rows)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds that are left; the truth is meant to lie inside four times out of five."""

    low_s: float
    middle_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class _Sum:
    """Seconds of work at full pace, with their variance."""

    seconds: float = 0.0
    variance: float = 0.0

    def plus(self, other: "_Sum") -> "_Sum":
        return _Sum(self.seconds + other.seconds, self.variance + other.variance)


def estimate(parts: Sequence[Part], pace: Pace | None) -> Estimate | None:
    """Return what is left of a run whose partitions run in this order; None: not yet known."""
    if not any(part.rows for part in parts):
        return Estimate(0.0, 0.0, 0.0)
    if pace is None or not pace.is_known or not all(part.is_known for part in parts):
        return None
    work = _Sum()
    for part in parts:
        work = work.plus(_work(part, pace))
    drain, drained = _drain(parts, pace)
    bulk = max(0.0, work.seconds - drained.seconds)
    spread = math.hypot(_PACE_SPREAD, pace.spread)
    variance = work.variance + drain.variance + (spread * bulk) ** 2
    middle, width = bulk + drain.seconds, _WIDTH * math.sqrt(variance)
    return Estimate(max(0.0, middle - width), middle, middle + width)


def why_not_known(parts: Mapping[str, Part], pace: Pace | None) -> str:
    """Return why there is no estimate, in one line; partitions by name."""
    for name, part in parts.items():
        if not part.is_known:
            seen = part.lengths.seen if part.lengths is not None else 0
            return f"{name} has {seen} of the {min(ANSWERS_NEEDED, part.rows)} answers it takes"
    return "" if pace is not None else "no answer was completed in this session"


def own_work(part: Part, pace: Pace | None) -> Estimate | None:
    """Return how long one partition's own tokens take at its pace; None: not yet known."""
    if not part.rows:
        return Estimate(0.0, 0.0, 0.0)
    if pace is None or not pace.is_known or not part.is_known:
        return None
    work = _work(part, pace)
    width = _WIDTH * math.hypot(math.sqrt(work.variance), _PACE_SPREAD * work.seconds)
    return Estimate(max(0.0, work.seconds - width), work.seconds, work.seconds + width)


def _work(part: Part, pace: Pace) -> _Sum:
    lengths = part.lengths
    if lengths is None or not part.rows:
        return _Sum()
    tokens, variance = part.unsent * lengths.mean, part.unsent * lengths.variance
    for made in part.begun:
        mean, spread = lengths.residual(made)
        tokens, variance = tokens + mean, variance + spread
    variance += part.rows**2 * lengths.mean_variance
    rate = pace.tokens_per_s * part.relative_pace
    seconds = tokens / rate
    guessed = _GUESS_SPREAD * abs(math.log(part.relative_pace)) * seconds
    return _Sum(seconds, variance / rate**2 + guessed**2)


def _drain(parts: Sequence[Part], pace: Pace) -> tuple[_Sum, _Sum]:
    """Return how long the last requests take, and how long their tokens take at full pace."""
    last = next((part for part in reversed(parts) if part.unsent), None)
    count = max(1, round(pace.slots))
    relative = 1.0
    if last is not None and last.lengths is not None:
        count = min(count, last.rows)
        relative = last.relative_pace
        draws = [_in_full_swing(last.lengths, count, n) for n in range(_DRAWS)]
    else:
        draws = [_of_those_begun(parts, n) for n in range(_DRAWS)]
    rate = pace.tokens_per_s * relative
    seconds = [_drain_s(draw, pace) / relative for draw in draws]
    mean = sum(seconds) / len(seconds)
    variance = sum((s - mean) ** 2 for s in seconds) / len(seconds) + (_DRAIN_SPREAD * mean) ** 2
    tokens = sum(sum(draw) for draw in draws) / len(draws)
    return _Sum(mean, variance), _Sum(tokens / rate)


def _in_full_swing(lengths: Survival, count: int, n: int) -> list[float]:
    shares = sorted((at * _GOLDEN + n / _DRAWS) % 1.0 for at in range(1, count + 1))
    return lengths.in_progress(shares)


def _of_those_begun(parts: Sequence[Part], n: int) -> list[float]:
    begun = [(part.lengths, made) for part in parts for made in part.begun]
    return sorted(
        lengths.residual_at(made, (at * _GOLDEN + n / _DRAWS) % 1.0)
        for at, (lengths, made) in enumerate(begun, 1)
        if lengths is not None
    )


def _drain_s(needed: Sequence[float], pace: Pace) -> float:
    """Return how long requests take that need so many tokens each (ascending) and end one by one.

    What runs shares the pace of so many requests; more than now decode wait for each other.
    """
    total, before = 0.0, 0.0
    for at, tokens in enumerate(needed):
        running = len(needed) - at
        each = pace.at(min(running, max(1.0, pace.slots))) / running
        total, before = total + (tokens - before) / each, tokens
    return total
