"""How many requests a KV pool holds: what one holds on average, and how many fit. Pure."""

import math


def held_tokens(prompt_mean: float, length_sum: float, square_sum: float) -> float | None:
    """Return k = P + E[L^2] / 2 E[L]: tokens a running request holds on average.

    Units: tokens; sums of output lengths and of their squares over the same answers. None
    before there is a length.
    """
    if length_sum <= 0:
        return None
    return prompt_mean + square_sum / (2.0 * length_sum)


def fit(pool_tokens: int | None, held: float | None, usage: float = 1.0) -> float | None:
    """Return N = C u / k: the requests that can decode at once; None if a part is unknown.

    Example:
        >>> round(fit(159_277, 4286.0, 0.93) or 0)
        35
    """
    if pool_tokens is None or held is None or held <= 0:
        return None
    return pool_tokens * usage / held


def whole_fit(pool_tokens: int | None, length: float | None) -> int | None:
    """Return C / length, the plain figure an operator works out; None if a part is unknown."""
    if pool_tokens is None or not length:
        return None
    return math.floor(pool_tokens / length)
