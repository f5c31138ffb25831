"""Whether fewer slots would generate more where the server retracts a lot: tried and measured.

A retraction costs a second prefill. Where prefill is slow that can outweigh the larger batch, but
nothing the server tells says so; hence a trial. Generated tokens are compared: a retraction loses
none, so they count work done. Pure; AUTO only.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

from kvctl.core.domain.throttle.parameters import ServerSample, ThrottleParameters

LEAST_RETRACTIONS = 10
"""Fewer in the window are no reason for a trial, however few answers there were."""


USAGE_FALL = 0.12
"""What runs under a kept cap holds that much less of the pool: lengths have changed."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one sample adds."""

    at: float
    retracted: float
    ended: float
    running: int
    usage: float
    generated_per_s: float
    recompute_ratio: float | None


@dataclass(slots=True)
class RetractionProbe:
    """Watches, tries a cap for a while, and keeps or lifts it."""

    parameters: ThrottleParameters
    cap: float | None = None
    """N is not above this while it is tried, or since it has paid."""
    _seen: deque[_Seen] = field(default_factory=deque)
    _before: float | None = None
    """Generation before the trial, tok/s; None while none goes on."""
    _cap_before: float | None = None
    _tried_at: float = 0.0
    _not_before: float = 0.0
    _wait_s: float = 0.0
    _usage_kept: float = 0.0
    """Mean usage under the cap when it was kept."""
    _notes: list[str] = field(default_factory=list)

    def observe(self, sample: ServerSample) -> None:
        """Take a sample of a server that AUTO's slots feed."""
        if None in (sample.retracted_total, sample.ended_total, sample.generated_per_s):
            return
        self._remember(sample)
        if self._before is not None:
            self._judge(sample)
        elif self.cap is not None and self._has_emptied():
            self._notes.append(
                f"usage {self._usage():.2f} under {self.cap:.0f} slots, {self._usage_kept:.2f}"
                " when they were kept: lifted"
            )
            self.start_over()
        elif sample.at >= self._not_before:
            self._consider(sample)

    def start_over(self) -> None:
        """Forget everything: other lengths, another pool, or slots that were not used."""
        self.cap = self._before = None
        self._wait_s = 0.0
        self._seen.clear()

    def notes(self) -> Iterator[str]:
        """Yield what was done since the last call, each with its figures; then forget it."""
        yield from self._notes
        self._notes.clear()

    def _remember(self, sample: ServerSample) -> None:
        seen = _Seen(
            sample.at,
            sample.retracted_total or 0,
            sample.ended_total or 0,
            sample.running,
            sample.usage,
            sample.generated_per_s or 0.0,
            sample.recompute_ratio,
        )
        if self._seen and seen.at - self._seen[-1].at >= self.parameters.hold_after_s:
            self.start_over()
        if not self._seen:
            self._not_before = seen.at + self.parameters.probe_after_s
        self._seen.append(seen)
        self._keep_last(self.parameters.probe_baseline_s)

    def _keep_last(self, span_s: float) -> None:
        """Forget what is older; one from before stays, so that the span covers all of it."""
        start = self._seen[-1].at - span_s
        while len(self._seen) > 1 and self._seen[1].at <= start:
            self._seen.popleft()

    def _window(self) -> list[_Seen]:
        """Return the last `probe_window_s`, with one from before where there is one."""
        start = self._seen[-1].at - self.parameters.probe_window_s
        after = [seen for seen in self._seen if seen.at > start]
        return [*list(self._seen)[-len(after) - 1 : -len(after)], *after]

    def _usage(self) -> float:
        return fmean(seen.usage for seen in self._window())

    def _is_long_enough(self) -> bool:
        return self._seen[-1].at - self._seen[0].at >= self.parameters.probe_window_s

    def _has_emptied(self) -> bool:
        return self._is_long_enough() and self._usage() < self._usage_kept - USAGE_FALL

    def _consider(self, sample: ServerSample) -> None:
        p, window = self.parameters, self._window()
        first, last = window[0], window[-1]
        retracted, ended = last.retracted - first.retracted, last.ended - first.ended
        is_much = retracted >= LEAST_RETRACTIONS and retracted > p.probe_ratio * ended
        if not is_much or not self._is_long_enough() or self._is_cheap(window):
            return
        self._before = fmean(seen.generated_per_s for seen in self._seen)
        self._cap_before = self.cap
        # The mean, not the number of now: a burst of retractions has just lowered that.
        self.cap = p.probe_cut * fmean(seen.running for seen in self._seen)
        self._tried_at = sample.at
        self._notes.append(
            f"{retracted:.0f} retractions for {ended:.0f} answers in {p.probe_window_s / 60:.0f}"
            f" min at {self._before:,.0f} tok/s: trying {self.cap:.0f} slots for"
            f" {p.probe_trial_s / 60:.0f} min; they stay if that makes"
            f" {p.probe_gain - 1:.0%} more"
        )

    def _is_cheap(self, window: list[_Seen]) -> bool:
        """Return whether all that retractions cost is less than a trial would."""
        known = [seen.recompute_ratio for seen in window if seen.recompute_ratio is not None]
        return bool(known) and fmean(known) < self.parameters.probe_recompute_ratio

    def _judge(self, sample: ServerSample) -> None:
        p, before, cap = self.parameters, self._before, self.cap
        is_over = sample.at - self._tried_at >= p.probe_trial_s
        if before is None or cap is None or not is_over:
            return
        self._keep_last(p.probe_window_s)
        now = fmean(seen.generated_per_s for seen in self._seen)
        told = f"{cap:.0f} slots make {now:,.0f} tok/s, {before:,.0f} before"
        if now > p.probe_gain * before:
            self._notes.append(f"{told}: kept")
            self._before, self._wait_s, self._usage_kept = None, 0.0, self._usage()
            self._consider(sample)
        else:
            self._lift(sample, told)

    def _lift(self, sample: ServerSample, told: str) -> None:
        p = self.parameters
        self._before, self.cap = None, self._cap_before
        self._wait_s = min(p.probe_wait_most_s, 2.0 * self._wait_s or p.probe_wait_s)
        self._not_before = sample.at + self._wait_s
        self._keep_last(0.0)  # the trial says nothing about the slots that are used again
        self._notes.append(f"{told}: lifted, not tried again for {self._wait_s / 3600:.0f} h")
