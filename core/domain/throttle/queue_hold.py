"""Queue-hold: how many requests may be in flight at one server.

N = what runs + a short queue. Above the knee more slots only lengthen the server's own queue;
too few starve it, which costs 20 to 60 %. So: never let the queue run empty, keep it short.
One instance a server; the run's target is their sum. Pure: it knows no clock, HTTP or panel.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvctl.core.domain.throttle.cold_start import ColdStart, Outlook
from kvctl.core.domain.throttle.fit_doubt import FitDoubt
from kvctl.core.domain.throttle.hold_watch import HoldWatch
from kvctl.core.domain.throttle.parameters import ServerSample, ThrottleParameters
from kvctl.core.domain.throttle.retraction_probe import RetractionProbe


@dataclass(frozen=True, slots=True)
class Decision:
    """What the law says now."""

    target: int
    """N: requests that may be in flight; unchanged by a HOLD."""
    auto_target: int
    """What AUTO says, also while MANUAL."""
    is_auto: bool
    is_held: bool
    """Nothing new is sent for `reason`; nothing is aborted."""
    reason: str

    @property
    def allowed(self) -> int:
        """Requests that may be in flight while sending is allowed, 0 while it is not."""
        return 0 if self.is_held else self.target


@dataclass(slots=True)
class QueueHold:
    """The law's state for one server: AUTO computes always, MANUAL only replaces its result."""

    parameters: ThrottleParameters = field(default_factory=ThrottleParameters)
    manual: int | None = None
    """The operator's number; None is AUTO."""
    fit: float | None = None
    """C u / k, the requests that can decode at once, where lengths are known or estimated."""
    _n: float = 0.0
    _smooth_running: float = 0.0
    _raised_at: float = -math.inf
    _last: ServerSample | None = None
    _seen_at: float | None = None
    _is_suspended: str | None = None
    _hold: HoldWatch = field(init=False)
    _cold: ColdStart = field(init=False)
    _outlook: Outlook = field(init=False)
    _doubt: FitDoubt = field(init=False)
    _probe: RetractionProbe = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the start value."""
        self._probe = RetractionProbe(self.parameters)
        self._forget()
        self._n = float(self._start())

    def observe(self, sample: ServerSample, in_flight: int, now: float | None = None) -> int:
        """Take a sample and return how many requests may be in flight.

        Units: `in_flight` is this client's own requests at that server; `now` is monotonic
        seconds when the sample arrived (default: when it was taken).
        """
        moment = sample.at if now is None else now
        last = self._last
        if last is not None and sample.at <= last.at:
            return self.decide(moment).allowed
        if last is None or self._is_new_server(last, sample, moment):
            self._reset(sample, in_flight)
        gap = 0.0 if last is None else sample.at - last.at
        self._smooth(sample, gap)
        self._outlook.observe(last, sample)
        self._cold.observe(sample)
        self._doubt.observe(sample)
        self._try_fewer(sample, in_flight)
        self._move(sample, in_flight, moment)
        if not self._cold.is_active:
            queue = self._queue(self._smooth_running)
            self._hold.observe(sample, last, queue, has_surplus=in_flight > self._n)
        self._last, self._seen_at = sample, moment
        return self.decide(moment).allowed

    def decide(self, now: float) -> Decision:
        """Return the target at that moment, HOLD by staleness included."""
        auto = round(self._n)
        is_auto = self.manual is None
        target = auto if self.manual is None else self.manual
        reason = self._why_held(now, is_auto)
        return Decision(target, auto, is_auto, reason is not None, reason or "")

    def set_manual(self, target: int | None) -> None:
        """Let the operator's number rule, or AUTO again with None."""
        self.manual = target

    def set_fit(self, fit: float | None) -> None:
        """Tell the requests that can decode at once; before the first sample it is the start."""
        self.fit = fit
        if self._last is None:
            self._n = float(self._start())

    def meet_other_load(self) -> None:
        """Tell that other partitions are sent now: what a trial of fewer slots showed is void."""
        self._probe.start_over()

    def notes(self) -> Iterator[str]:
        """Yield what AUTO has tried or lifted since the last call, each with its figures."""
        return self._probe.notes()

    def suspend(self, reason: str | None) -> None:
        """Allow nothing while the server is paused or unhealthy; None ends that."""
        self._is_suspended = reason

    def _start(self) -> int:
        known = self.parameters.start
        if self.fit is not None:
            known = math.ceil(self.fit + self._queue(self.fit))
        return self._clamp(known)

    def _queue(self, running: float) -> int:
        p = self.parameters
        return min(max(math.ceil(p.queue_ratio * running), p.queue_least), p.queue_most)

    def _clamp(self, n: float) -> int:
        most = self.parameters.most
        if self._probe.cap is not None:
            most = min(most, round(self._probe.cap))
        return max(min(round(n), most), self.parameters.least)

    def _is_new_server(self, last: ServerSample, sample: ServerSample, now: float) -> bool:
        changed_pool = None not in (last.pool_tokens, sample.pool_tokens) and (
            last.pool_tokens != sample.pool_tokens
        )
        changed_launch = None not in (last.launch, sample.launch) and last.launch != sample.launch
        gap = now - (self._seen_at if self._seen_at is not None else now)
        return changed_pool or changed_launch or gap >= self.parameters.hold_after_s

    def _reset(self, sample: ServerSample, in_flight: int) -> None:
        own = min(in_flight, sample.running)
        self._n = float(max(self._start(), self._clamp(own)))
        self._smooth_running = float(sample.running)
        self._forget()

    def _forget(self) -> None:
        self._raised_at = -math.inf
        self._hold = HoldWatch(self.parameters)
        self._cold = ColdStart(self.parameters)
        self._outlook = Outlook(self.parameters)
        self._doubt = FitDoubt(self.parameters)
        self._probe.start_over()

    def _try_fewer(self, sample: ServerSample, in_flight: int) -> None:
        """Let the probe see the sample, unless it is not AUTO's slots that the server is under."""
        is_ours = self.manual is None and self._is_suspended is None
        if is_ours and (self._hold.why is not None or 2 * in_flight >= self._n):
            self._probe.observe(sample)
        else:
            self._probe.start_over()

    def _smooth(self, sample: ServerSample, gap_s: float) -> None:
        weight = 1.0 - math.exp(-gap_s / self.parameters.smoothing_s)
        self._smooth_running += weight * (sample.running - self._smooth_running)

    def _move(self, sample: ServerSample, in_flight: int, now: float) -> None:
        is_fresh = sample.at >= self._raised_at
        before = self._n
        if sample.queued == 0:
            if is_fresh and sample.usage < self.parameters.usage_goal:
                self._n = self._grown(sample, in_flight)
        elif not self._cold.is_active:
            self._follow_queue(sample, is_fresh)
        self._n = float(self._clamp(self._capped(before, self._n, sample)))
        if self._n > before:
            self._raised_at = now

    def _follow_queue(self, sample: ServerSample, is_fresh: bool) -> None:
        running = max(self._smooth_running, float(sample.running))
        want = running + self._queue(self._smooth_running)
        if want < self._n:
            self._n = want
        elif is_fresh:
            self._n = min(want, self._n + self._step(self._n))

    def _grown(self, sample: ServerSample, in_flight: int) -> float:
        is_used = in_flight >= self._n - 1
        if not is_used and self.manual is None:
            # A pause or back-off leaves slots unused; shrinking would starve the server after it.
            return self._n
        busy = min(self._n, float(in_flight))
        if not is_used:
            return self._crept(busy, sample)
        leap = self._cold.leap(busy, sample)
        crept = self._n if self._outlook.is_full(sample) else self._crept(busy, sample)
        return max(self._n, leap, crept)

    def _crept(self, busy: float, sample: ServerSample) -> float:
        room = max(1.0, self.parameters.usage_goal / max(sample.usage, 0.05))
        return min(busy * room + self._queue(self._smooth_running), busy + self._step(busy))

    def _step(self, n: float) -> float:
        p = self.parameters
        ratio = p.growth_ratio if self.fit is not None else p.loaded_growth_ratio
        if self._doubt.is_idle:
            ratio = p.idle_growth_ratio
        return max(float(p.growth_least), ratio * n)

    def _capped(self, before: float, n: float, sample: ServerSample) -> float:
        """Keep growth below the known fit, while nothing speaks against the fit."""
        p = self.parameters
        if self.fit is None or n <= before or self._doubt.is_idle:
            return n
        if self._doubt.holds(sample.at):
            return min(n, before + max(float(p.growth_least), p.loaded_growth_ratio * before))
        return max(before, min(n, p.fit_margin * self.fit + p.queue_least))

    def _why_held(self, now: float, is_auto: bool) -> str | None:
        if self._is_suspended is not None:
            return self._is_suspended
        age = None if self._seen_at is None else now - self._seen_at
        if age is not None and age >= self.parameters.hold_after_s:
            return f"no figures from the server for {age:.0f} s"
        if is_auto and self._hold.why is not None:
            return f"{self._hold.why}, not submitting"
        return None
