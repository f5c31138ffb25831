"""The ceiling in requests: how many requests of a length distribution a pool decodes at once.

Pure. Two figures are given: the plain one an operator works out (pool over length), and the
steady one, N = C u / k with k what a request holds on average while it grows.

Source: the sizing law measured on an H200: 75.1 by it, 74.3 and 74.7 running.
"""

from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.capacity.fit import fit, held_tokens, whole_fit
from kvctl.core.domain.capacity.model_shape import ModelShape
from kvctl.core.domain.capacity.prediction import Interval, Prediction

STEADY_USAGE = 0.93
"""Token usage at which a fed server settles; 0.92 to 0.96 in every steady recording."""


class BoundBy(StrEnum):
    """Which limit a request meets first."""

    KV = "KV pool"
    WINDOW = "sliding-window pool"
    STATES = "request states"
    RUNNING = "max-running-requests"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of the answers of one partition; sums are over the same answers."""

    prompt_mean: float
    """Tokens."""
    answers: int
    length_sum: float
    square_sum: float

    @property
    def mean(self) -> float | None:
        """Mean output length in tokens, None before an answer."""
        return self.length_sum / self.answers if self.answers else None

    @property
    def held(self) -> float | None:
        """Tokens a running request holds on average (k), None before an answer."""
        return held_tokens(self.prompt_mean, self.length_sum, self.square_sum)


def lengths_of(mean: float, variation: float = 0.0, prompt_mean: float = 0.0) -> Lengths:
    """Return lengths where only a mean (and a coefficient of variation) is known."""
    return Lengths(prompt_mean, 1, mean, mean * mean * (1 + variation * variation))


@dataclass(frozen=True, slots=True)
class Ceiling:
    """How many requests decode at once."""

    plain: int | None
    """Pool over mean length, prompt included."""
    steady: Interval | None
    """N = C u / k over all pools; None before lengths or pool are known."""
    bound_by: BoundBy
    held: float | None
    """k in tokens."""


def ceiling(
    prediction: Prediction, shape: ModelShape, lengths: Lengths, usage: float = STEADY_USAGE
) -> Ceiling:
    """Return the ceiling of a predicted launch for one length distribution."""
    total, held = prediction.total, lengths.held
    if total is None or held is None or lengths.mean is None:
        return Ceiling(None, None, BoundBy.KV, held)
    plain = whole_fit(int(total.expected), lengths.prompt_mean + lengths.mean)
    limits = {BoundBy.KV: fit(int(total.expected), held, usage) or 0.0}
    if prediction.sliding is not None and shape.window_tokens:
        in_window = min(held, float(shape.window_tokens))
        tokens = int(prediction.sliding.expected * prediction.pools)
        limits[BoundBy.WINDOW] = fit(tokens, in_window, usage) or 0.0
    if prediction.max_running is not None:
        bound = BoundBy.STATES if prediction.slots is not None else BoundBy.RUNNING
        limits[bound] = float(prediction.max_running * prediction.pools)
    bound_by = min(limits, key=lambda name: limits[name])
    return Ceiling(plain, _interval(total, limits[bound_by], bound_by), bound_by, held)


def observed_ceiling(
    pool_tokens: int | None, lengths: Lengths, usage: float = STEADY_USAGE
) -> Ceiling:
    """Return the ceiling of a pool that a running server reported (all pools together)."""
    held = lengths.held
    steady = fit(pool_tokens, held, usage)
    exact = None if steady is None else Interval(steady, steady, steady)
    mean = None if lengths.mean is None else lengths.prompt_mean + lengths.mean
    return Ceiling(whole_fit(pool_tokens, mean), exact, BoundBy.KV, held)


def admits(pool_tokens: int | None, prompt_tokens: int, max_new_tokens: int) -> bool | None:
    """Return whether a request can ever finish in one pool; None where the pool is not known.

    One that cannot waits for ever without an error.
    """
    return None if pool_tokens is None else prompt_tokens + max_new_tokens <= pool_tokens


def _interval(total: Interval, expected: float, bound_by: BoundBy) -> Interval:
    if bound_by is BoundBy.RUNNING or not total.expected:
        return Interval(expected, expected, expected)
    scale = expected / total.expected
    return total.times(scale)
