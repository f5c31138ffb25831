"""How long answers are, from finished ones and from those still being made (Kaplan-Meier).

An answer in flight is a censored length: it is known to be longer than what it has. Leaving such
out makes estimates too short early in a run, since short answers finish first. Lengths are tokens.
Source: Kaplan and Meier, J. Am. Stat. Assoc. 53 (1958).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_STEADY = 8
"""With fewer answers at risk each end would be a large step: the tail is smoothed instead."""
_NEAR = 1.05
"""What an unfinished answer has is itself estimated: within 5 % it counts as having reached it."""
_TAIL_POINTS = 16
"""The tail is spread over so many lengths."""


@dataclass(frozen=True, slots=True)
class Survival:
    """A distribution of lengths: what an answer of this partition may come to."""

    values: tuple[float, ...]
    """Possible lengths, ascending, tokens; not empty."""
    seen: int
    """Finished answers it rests on."""
    mass: tuple[float, ...]
    """Probability of each value; sums to 1."""
    over: tuple[float, ...]
    """Probability of that value or a longer one."""
    moment: tuple[float, ...]
    """Sum of probability times length over that value and longer ones."""
    square: tuple[float, ...]
    """The same of squared lengths."""

    @property
    def mean(self) -> float:
        """Return the mean length."""
        return self.moment[0]

    @property
    def variance(self) -> float:
        """Return the variance of one length, tokens squared."""
        return max(0.0, self.square[0] - self.moment[0] ** 2)

    @property
    def mean_variance(self) -> float:
        """Return the variance of `mean` itself as an estimate; wide while few have finished."""
        few = max(1, self.seen - 1)
        # The spread is itself a guess from `seen` answers, and a small one looks too narrow.
        return self.variance / few * (1.0 + 2.0 / few) + self.mean**2 * 0.25 / self.seen**2

    def residual(self, made: float) -> tuple[float, float]:
        """Return mean and variance of what an answer that has `made` tokens still needs."""
        at = bisect_right(self.values, made)
        if at == len(self.values):
            return 0.0, 0.0
        over = self.over[at]
        mean = self.moment[at] / over
        return max(0.0, mean - made), max(0.0, self.square[at] / over - mean * mean)

    def residual_at(self, made: float, share: float) -> float:
        """Return the quantile `share` (0..1) of what an answer with `made` tokens still needs."""
        at = bisect_right(self.values, made)
        if at == len(self.values):
            return 0.0
        wanted = self.over[at] * (1.0 - share)
        # `over` falls: the last value of which at least `wanted` is left.
        low, high = at, len(self.values) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.over[middle] >= wanted else (low, middle - 1)
        return max(0.0, self.values[low] - made)

    def in_progress(self, shares: Sequence[float]) -> list[float]:
        """Return what answers in full swing still need: quantiles, for ascending shares (0..1).

        Seen at a random moment of a long run an answer needs x more with density S(x)/mean.
        """
        found: list[float] = []
        area, start, at = 0.0, 0.0, 0
        for share in shares:
            wanted = share * self.mean
            while at < len(self.values) - 1:
                step = self.over[at] * (self.values[at] - start)
                if area + step >= wanted:
                    break
                area, start, at = area + step, self.values[at], at + 1
            found.append(min(self.values[at], start + (wanted - area) / self.over[at]))
        return found


def survival(
    finished: Sequence[tuple[float, int]], unfinished: Sequence[float], limit: float | None
) -> Survival | None:
    """Return the distribution of lengths; None before an answer has finished.

    Args:
        finished: Lengths and how many answers had them, ascending.
        unfinished: Tokens that each unfinished answer has.
        limit: max_new_tokens; None where there is none.
    """
    count = sum(n for _, n in finished)
    if not count:
        return None
    ages = sorted(made * _NEAR for made in unfinished)
    values: list[float] = []
    mass: list[float] = []
    left, below, start = 1.0, 0, 0.0
    for value, n in finished:
        at_risk = count - below + len(ages) - bisect_left(ages, value)
        if at_risk < _STEADY:
            break
        ended = left * n / at_risk
        values.append(value)
        mass.append(ended)
        left, below, start = left - ended, below + n, value
    if left > 1e-9:
        excess = _mean_excess(finished, ages, _late(finished, count))
        _spread_tail(values, mass, left, (start, excess), limit)
    return _summed(values, mass, count)


def _late(finished: Sequence[tuple[float, int]], count: int) -> float:
    """Return a length that the last fifth of those finished are beyond, at least a handful."""
    before = count - max(_STEADY, count // 5)
    seen = 0
    for value, n in finished:
        seen += n
        if seen > before:
            return value if before > 0 and seen < count else 0.0
    return 0.0


def _mean_excess(
    finished: Sequence[tuple[float, int]], ages: Sequence[float], start: float
) -> float:
    """Return the tokens beyond `start` over the answers that ended there; 0.0 without one."""
    beyond = [(value - start, n) for value, n in finished if value > start]
    ended = sum(n for _, n in beyond)
    made = sum(excess * n for excess, n in beyond) + sum(age - start for age in ages if age > start)
    return made / ended if ended else 0.0


def _spread_tail(
    values: list[float],
    mass: list[float],
    left: float,
    tail: tuple[float, float],
    limit: float | None,
) -> None:
    """Add lengths where too few were seen to count them: exponential, with the mean of those seen.

    `tail` is where it begins and its mean excess, tokens.
    """
    start, excess = tail
    for n in range(_TAIL_POINTS):
        value = start - excess * math.log(1.0 - (n + 0.5) / _TAIL_POINTS)
        value = value if limit is None else min(value, max(limit, start))
        values.append(max(value, values[-1]) if values else value)
        mass.append(left / _TAIL_POINTS)


def _summed(values: list[float], mass: list[float], seen: int) -> Survival:
    total = sum(mass)
    mass = [m / total for m in mass]
    over, moment, square = [0.0], [0.0], [0.0]
    for value, m in zip(reversed(values), reversed(mass), strict=True):
        over.append(over[-1] + m)
        moment.append(moment[-1] + m * value)
        square.append(square[-1] + m * value * value)
    assert all(a <= b for a, b in pairwise(values))
    return Survival(
        tuple(values),
        seen,
        tuple(mass),
        tuple(over[:0:-1]),
        tuple(moment[:0:-1]),
        tuple(square[:0:-1]),
    )
