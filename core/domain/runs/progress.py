"""Lengths of answers, rates over stated windows, and what is left to do.

Pure: time is an argument. Lengths are kept as sums and a histogram with 2 % wide buckets, so
that a partition of a million answers costs the same as one of ten.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_BUCKET_RATIO = math.log(1.02)
_EXACT_BELOW = 50
ROUGH_BELOW = 30
"""Fewer answers than this make an estimate rough."""


def _bucket(length: int) -> int:
    if length < _EXACT_BELOW:
        return length
    return _EXACT_BELOW + int(math.log(length / _EXACT_BELOW) / _BUCKET_RATIO)


def _bucket_value(bucket: int) -> float:
    if bucket < _EXACT_BELOW:
        return float(bucket)
    return _EXACT_BELOW * math.exp((bucket - _EXACT_BELOW + 0.5) * _BUCKET_RATIO)


@dataclass(slots=True)
class Lengths:
    """Output lengths of accepted answers, in tokens."""

    count: int = 0
    total: int = 0
    """Sum of lengths, tokens."""
    squares: int = 0
    """Sum of squared lengths."""
    prompt_total: int = 0
    """Sum of prompt lengths over `prompt_count` answers, tokens."""
    prompt_count: int = 0
    _buckets: dict[int, int] = field(default_factory=dict)

    def add(self, length: int, prompt_tokens: int | None = None) -> None:
        """Count one answer; `prompt_tokens` is None where it is not known."""
        self.count += 1
        self.total += length
        self.squares += length * length
        if prompt_tokens is not None:
            self.prompt_total += prompt_tokens
            self.prompt_count += 1
        bucket = _bucket(length)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def add_all(self, lengths: Sequence[int], prompt_tokens: Sequence[int | None]) -> None:
        """Count many answers as `add` counts each."""
        self.count += len(lengths)
        self.total += sum(lengths)
        self.squares += sum(length * length for length in lengths)
        known = [tokens for tokens in prompt_tokens if tokens is not None]
        self.prompt_total += sum(known)
        self.prompt_count += len(known)
        for length, times in Counter(lengths).items():
            bucket = _bucket(length)
            self._buckets[bucket] = self._buckets.get(bucket, 0) + times

    @property
    def mean(self) -> float | None:
        """Mean length; None before the first answer."""
        return self.total / self.count if self.count else None

    @property
    def prompt_mean(self) -> float:
        """Mean prompt length, 0.0 while none is known."""
        return self.prompt_total / self.prompt_count if self.prompt_count else 0.0

    def quantile(self, share: float) -> float | None:
        """Return the length that `share` (0..1) of the answers do not exceed, within 1 %."""
        if not self.count:
            return None
        rank = max(1, math.ceil(share * self.count))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return _bucket_value(bucket)
        return None

    def histogram(self) -> list[tuple[float, int]]:
        """Return lengths and how many answers had them, ascending; within 2 %, of the same mean."""
        found = [(_bucket_value(bucket), self._buckets[bucket]) for bucket in sorted(self._buckets)]
        rounded = sum(value * count for value, count in found)
        scale = self.total / rounded if rounded else 1.0
        return [(value * scale, count) for value, count in found]


def sum_lengths(parts: Sequence[Lengths]) -> Lengths:
    """Return the sums of several partitions together, without their histograms."""
    return Lengths(
        count=sum(p.count for p in parts),
        total=sum(p.total for p in parts),
        squares=sum(p.squares for p in parts),
        prompt_total=sum(p.prompt_total for p in parts),
        prompt_count=sum(p.prompt_count for p in parts),
    )


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens of completed answers over a window that is stated with it."""

    tokens_per_s: float | None
    """None while nothing was completed in the window."""
    window_s: float
    answers: int


@dataclass(slots=True)
class RateWindow:
    """Completions of the last `longest_s` seconds, in steps of one second."""

    longest_s: float = 600.0
    _steps: deque[tuple[float, int, int]] = field(default_factory=deque)

    def add(self, at: float, tokens: int) -> None:
        """Count one completed answer at that moment (monotonic seconds)."""
        step = math.floor(at)
        if self._steps and self._steps[-1][0] >= step:
            last, answers, before = self._steps[-1]
            self._steps[-1] = (last, answers + 1, before + tokens)
        else:
            self._steps.append((float(step), 1, tokens))
        while self._steps and self._steps[0][0] < at - self.longest_s - 1.0:
            self._steps.popleft()

    def rate(self, now: float, started_at: float, window_s: float | None = None) -> Rate:
        """Return the rate over the last `window_s`, or over the time since the start if less."""
        window = min(window_s or self.longest_s, max(0.0, now - started_at))
        if window <= 0:
            return Rate(None, 0.0, 0)
        inside = [(a, t) for at, a, t in self._steps if at + 1.0 > now - window]
        answers = sum(a for a, _ in inside)
        tokens = sum(t for _, t in inside)
        return Rate(tokens / window if answers else None, window, answers)


def expected_length(
    lengths: Lengths, censored_tokens: float, limit: int | None = None
) -> float | None:
    """Return E[L] from finished and unfinished answers; None before one has finished.

    Answers in flight count with the tokens they have so far (censored): finished ones alone
    are too short at the start. Total time on test over the number finished, at most `limit`.
    """
    if not lengths.count:
        return None
    mean = (lengths.total + max(0.0, censored_tokens)) / lengths.count
    return min(mean, float(limit)) if limit is not None else mean


@dataclass(frozen=True, slots=True)
class Work:
    """What is left of one partition."""

    rows_left: int
    """Neither done nor failed nor skipped, those in flight included."""
    length: float | None
    """E[L]; None while unknown."""
    tokens_made: float
    """Tokens that answers in flight and partials have already."""

    @property
    def tokens_left(self) -> float | None:
        """Tokens still to be made; None while the lengths are unknown."""
        if self.rows_left == 0:
            return 0.0
        if self.length is None:
            return None
        return max(0.0, self.rows_left * self.length - self.tokens_made)
