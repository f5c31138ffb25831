"""Whether completed tokens can have been generated: effective above generation contradicts itself.

Both are counted over the same stretch. Answers that end in it may bring tokens made before it, so
the tokens that requests in flight held at its beginning are allowed on top.
"""

from dataclasses import dataclass, replace

LEAST_S = 120.0
"""A shorter stretch proves nothing."""
TOLERANCE_RATIO = 0.10
GAP_S = 5.0
"""A gap in the generation rate longer than this starts over."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known at one moment of a server that serves one run alone."""

    at: float
    """Monotonic seconds."""
    generation_tokens_per_s: float
    tokens: int
    """Output tokens of the accepted answers so far."""
    in_flight_tokens: float
    """Tokens that the requests in flight may hold at most."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Tokens generated and completed since a moment."""

    first: Moment
    last: Moment
    generated: float = 0.0

    @property
    def completed(self) -> int:
        """Tokens of the answers accepted since."""
        return self.last.tokens - self.first.tokens

    @property
    def seconds(self) -> float:
        """Length of the stretch."""
        return self.last.at - self.first.at


def fold_moment(balance: Balance | None, moment: Moment | None) -> Balance | None:
    """Return the balance after one more moment; None (nothing known, not steady) starts over."""
    if moment is None:
        return None
    if balance is None or not 0 <= moment.at - balance.last.at <= GAP_S:
        return Balance(moment, moment)
    if moment.tokens < balance.last.tokens:
        return Balance(moment, moment)
    mean = (balance.last.generation_tokens_per_s + moment.generation_tokens_per_s) / 2
    made = balance.generated + mean * (moment.at - balance.last.at)
    return replace(balance, last=moment, generated=made)


def contradiction(balance: Balance | None) -> str | None:
    """Return how completed tokens contradict the generated ones, None where they do not."""
    if balance is None or balance.seconds < LEAST_S:
        return None
    allowed = balance.generated * (1 + TOLERANCE_RATIO) + balance.first.in_flight_tokens
    if balance.completed <= allowed:
        return None
    rates = balance.completed / balance.seconds, balance.generated / balance.seconds
    return (
        f"{rates[0]:.0f} tok/s completed but {rates[1]:.0f} generated in {balance.seconds:.0f} s: "
        "another server answers too, or one of the two counts is wrong"
    )
