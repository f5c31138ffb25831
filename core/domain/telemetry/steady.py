"""When figures may be quoted as steady, and since when.

The rule: over the last 60 s (55 s of samples at least), at least 20 samples, load above 0 in every
one, no gap above 10 s; running of the last 30 s within 10 % (at least 1 request) of the 30 s
before, mean token usage within 0.03, queue within 10 % (at least 4 requests), and the usage not
still rising: less than 0.02 between the means of the last two 15 s. Once steady, it takes twice
these differences to end it, so that the noise of a full pool does not. `steady since` is the
moment the window first held the rule. A restart, a pause, a change of capacity or of the target
starts over, so that neither a burst (usage still rising) nor the time before a change is ever
quoted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

WINDOW_S = 60.0
MIN_SAMPLES = 20
MAX_GAP_S = 10.0
RUNNING_TOLERANCE_RATIO = 0.10
QUEUE_TOLERANCE_RATIO = 0.10
QUEUE_TOLERANCE_REQUESTS = 4.0
USAGE_TOLERANCE = 0.03
RISE_TOLERANCE = 0.02
STAY_FACTOR = 2.0
"""Tolerances grow by this while it is steady."""
_SPACING_S = WINDOW_S / 240
"""Samples closer than this replace each other, which bounds the memory."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The load at one moment."""

    at: float
    """Monotonic seconds."""
    running: float
    queued: float
    token_usage: float
    """0..1 of the worst pool."""


@dataclass(frozen=True, slots=True)
class Steadiness:
    """What is kept between samples: the window, and since when it is steady."""

    samples: tuple[LoadSample, ...] = ()
    """Oldest first, at most about a window of them."""
    since: float | None = None
    """Monotonic seconds; None: not steady."""
    pool_tokens: int | None = None
    target: float | None = None


def fold_sample(
    state: Steadiness, sample: LoadSample, pool_tokens: int | None = None
) -> Steadiness:
    """Return the state after one more sample; another pool size starts over."""
    if pool_tokens is not None and pool_tokens != state.pool_tokens:
        state = Steadiness(pool_tokens=pool_tokens, target=state.target)
    kept = _window(state.samples, sample)
    slack = 1.0 if state.since is None else STAY_FACTOR
    is_steady = is_steady_window(kept, slack)
    since = (sample.at if state.since is None else state.since) if is_steady else None
    return replace(state, samples=kept, since=since)


def fold_target(state: Steadiness, target: float | None) -> Steadiness:
    """Return the state under a target (of the client's concurrency); another one starts over."""
    if target == state.target:
        return state
    return Steadiness(pool_tokens=state.pool_tokens, target=target)


def start_over(state: Steadiness) -> Steadiness:
    """Return the state after a restart, a pause or another break: nothing is steady."""
    return Steadiness(pool_tokens=state.pool_tokens, target=state.target)


def is_steady_window(samples: Sequence[LoadSample], slack: float = 1.0) -> bool:
    """Return whether samples (oldest first) fill a window and hold the rule of this module.

    `slack` multiplies the tolerances.
    """
    if len(samples) < MIN_SAMPLES or not _is_unbroken(samples):
        return False
    end = samples[-1].at
    if end - samples[0].at < WINDOW_S - MAX_GAP_S / 2:
        return False
    early = [s for s in samples if s.at <= end - WINDOW_S / 2]
    late = [s for s in samples if s.at > end - WINDOW_S / 2]
    if not early or not late:
        return False
    return _is_level(early, late, slack) and not _is_rising(late, end, slack)


def _is_unbroken(samples: Sequence[LoadSample]) -> bool:
    if any(s.running + s.queued <= 0 for s in samples):
        return False
    return all(later.at - earlier.at <= MAX_GAP_S for earlier, later in pairwise(samples))


def _is_level(early: Sequence[LoadSample], late: Sequence[LoadSample], slack: float) -> bool:
    running = _mean([s.running for s in early]), _mean([s.running for s in late])
    queued = _mean([s.queued for s in early]), _mean([s.queued for s in late])
    usage = _mean([s.token_usage for s in early]), _mean([s.token_usage for s in late])
    queue_tolerance = max(QUEUE_TOLERANCE_REQUESTS, QUEUE_TOLERANCE_RATIO * queued[0])
    return (
        _differ(running) <= slack * max(1.0, RUNNING_TOLERANCE_RATIO * running[0])
        and _differ(queued) <= slack * queue_tolerance
        and _differ(usage) <= slack * USAGE_TOLERANCE
    )


def _is_rising(late: Sequence[LoadSample], end: float, slack: float) -> bool:
    """Return whether usage rises within the last half window: the burst is not over."""
    middle = end - WINDOW_S / 4
    before = [s.token_usage for s in late if s.at <= middle]
    after = [s.token_usage for s in late if s.at > middle]
    return bool(before and after) and _mean(after) - _mean(before) >= slack * RISE_TOLERANCE


def _window(kept: tuple[LoadSample, ...], sample: LoadSample) -> tuple[LoadSample, ...]:
    if kept and sample.at < kept[-1].at:
        return (sample,)  # the clock of the samples went back: another server or a replay
    if len(kept) > 1 and sample.at - kept[-2].at < _SPACING_S:
        kept = kept[:-1]
    start = sample.at - WINDOW_S
    return (*(s for s in kept if s.at >= start), sample)


def _differ(pair: tuple[float, float]) -> float:
    return abs(pair[1] - pair[0])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
