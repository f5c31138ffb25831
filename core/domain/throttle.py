"""Queue-hold: how many requests may be in flight at one server.

N = what runs + a short queue. Above the knee more slots only lengthen the server's own queue;
too few starve it, which costs 20 to 60 %. So: never let the queue run empty, keep it short.
One instance a server; the run's target is their sum. Pure: it knows no clock, HTTP or panel.
"""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ThrottleParameters:
    """Everything the law can be tuned by; seconds, requests, ratios 0..1."""

    start: int = 16
    """N before anything is known."""
    least: int = 4
    most: int = 400
    queue_ratio: float = 0.2
    """q* as a share of the running requests …"""
    queue_least: int = 4
    queue_most: int = 32
    """… within these bounds."""
    smoothing_s: float = 10.0
    growth_ratio: float = 0.25
    """Most growth a sample while the pool is far from full or the fit is known …"""
    loaded_growth_ratio: float = 0.10
    """… and above `loaded_usage` while it is not."""
    loaded_usage: float = 0.5
    growth_least: int = 2
    usage_goal: float = 0.97
    """Above this usage an empty queue is no reason to grow."""
    fit_margin: float = 1.25
    """N is not grown above this multiple of the fit …"""
    fit_doubt_usage: float = 0.85
    fit_doubt_s: float = 120.0
    """… unless the queue is empty below that usage for so long: then the fit is wrong."""
    freeze_after_s: float = 15.0
    """Without a new sample for so long N stands still …"""
    hold_after_s: float = 60.0
    """… and for so long nothing is sent."""
    hold_usage: float = 0.97
    hold_samples: int = 3
    """Consecutive samples at `hold_usage` with rising retractions that start a HOLD."""
    hold_queue_factor: float = 2.0
    hold_queue_extra: int = 8
    hold_queue_s: float = 10.0
    """A queue above factor x q* + extra for so long starts a HOLD."""
    release_usage: float = 0.88
    release_queue: int = 2
    """A HOLD ends at this usage, or at a queue of max(this, q*/2), …"""
    hold_least_s: float = 10.0
    """… but not before."""


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One reading of a server; counts summed over DP ranks, usage of the fullest."""

    at: float
    """Monotonic seconds when it was taken at the server, not when it arrived."""
    running: int
    queued: int
    usage: float
    """Token usage, 0..1."""
    retracted_total: int | None = None
    """None where the server does not count; absent until the first retraction means 0."""
    pool_tokens: int | None = None
    """max_total_num_tokens; a change is a new server."""
    launch: str | None = None
    """What identifies this start of the server; a change is a new server."""


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
    _idle_since: float | None = None
    _hot_samples: int = 0
    _hot_base: int = 0
    _long_queue_since: float | None = None
    _held_since: float | None = None
    _held_why: str = ""
    _is_suspended: str | None = None

    def __post_init__(self) -> None:
        """Begin at the start value."""
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
        self._move(sample, in_flight, moment)
        self._watch_hold(sample, last)
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
        return min(max(round(n), self.parameters.least), self.parameters.most)

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
        self._raised_at = -math.inf
        self._idle_since = self._long_queue_since = self._held_since = None
        self._hot_samples = 0

    def _smooth(self, sample: ServerSample, gap_s: float) -> None:
        weight = 1.0 - math.exp(-gap_s / self.parameters.smoothing_s)
        self._smooth_running += weight * (sample.running - self._smooth_running)

    def _move(self, sample: ServerSample, in_flight: int, now: float) -> None:
        queue = self._queue(self._smooth_running)
        is_fresh = sample.at >= self._raised_at
        before = self._n
        if sample.queued > 0:
            want = max(self._smooth_running, float(sample.running)) + queue
            if want < before:
                self._n = want
            elif is_fresh:
                self._n = min(want, before + self._step(before, sample))
        elif is_fresh and sample.usage < self.parameters.usage_goal:
            self._n = self._grown(sample, in_flight, queue)
        self._note_idle(sample)
        self._n = float(self._clamp(self._capped(before, self._n, sample)))
        if self._n > before:
            self._raised_at = now

    def _grown(self, sample: ServerSample, in_flight: int, queue: int) -> float:
        is_used = in_flight >= self._n - 1
        if not is_used and self.manual is None:
            # A pause or back-off leaves slots unused; shrinking would starve the server after it.
            return self._n
        busy = min(self._n, float(in_flight))
        room = max(1.0, self.parameters.usage_goal / max(sample.usage, 0.05))
        n = min(busy * room + queue, busy + self._step(busy, sample))
        return max(n, self._n) if is_used else n

    def _step(self, n: float, sample: ServerSample) -> float:
        p = self.parameters
        is_loaded = self.fit is None and sample.usage > p.loaded_usage
        ratio = p.loaded_growth_ratio if is_loaded else p.growth_ratio
        return max(float(p.growth_least), ratio * n)

    def _note_idle(self, sample: ServerSample) -> None:
        is_idle = sample.queued == 0 and sample.usage < self.parameters.fit_doubt_usage
        if not is_idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = sample.at

    def _capped(self, before: float, n: float, sample: ServerSample) -> float:
        """Keep growth below the known fit, while nothing speaks against the fit."""
        p = self.parameters
        if self.fit is None or n <= before:
            return n
        is_doubted = self._idle_since is not None and sample.at - self._idle_since >= p.fit_doubt_s
        if is_doubted:
            return min(n, before + max(float(p.growth_least), p.loaded_growth_ratio * before))
        return max(before, min(n, p.fit_margin * self.fit + p.queue_least))

    def _watch_hold(self, sample: ServerSample, last: ServerSample | None) -> None:
        self._count_hot(sample, last)
        self._time_queue(sample)
        if self._held_since is None:
            self._enter_hold(sample)
        else:
            self._leave_hold(sample)

    def _count_hot(self, sample: ServerSample, last: ServerSample | None) -> None:
        if sample.usage < self.parameters.hold_usage:
            self._hot_samples = 0
            return
        if self._hot_samples == 0:
            self._hot_base = (last or sample).retracted_total or 0
        self._hot_samples += 1

    def _time_queue(self, sample: ServerSample) -> None:
        p = self.parameters
        limit = p.hold_queue_factor * self._queue(self._smooth_running) + p.hold_queue_extra
        if sample.queued <= limit:
            self._long_queue_since = None
        elif self._long_queue_since is None:
            self._long_queue_since = sample.at

    def _enter_hold(self, sample: ServerSample) -> None:
        p = self.parameters
        is_rising = (sample.retracted_total or 0) > self._hot_base
        if self._hot_samples >= p.hold_samples and is_rising:
            self._held_why = f"KV-bound: usage {sample.usage:.2f} and retractions rising"
        elif (
            self._long_queue_since is not None
            and sample.at - self._long_queue_since >= p.hold_queue_s
        ):
            self._held_why = f"KV-bound: {sample.queued} already wait at the server"
        else:
            return
        self._held_since = sample.at

    def _leave_hold(self, sample: ServerSample) -> None:
        p = self.parameters
        if self._held_since is None or sample.at - self._held_since < p.hold_least_s:
            return
        short = max(p.release_queue, self._queue(self._smooth_running) / 2)
        if sample.queued <= short or sample.usage <= p.release_usage:
            self._held_since = None
            self._hot_samples = 0
            self._long_queue_since = None

    def _why_held(self, now: float, is_auto: bool) -> str | None:
        if self._is_suspended is not None:
            return self._is_suspended
        age = None if self._seen_at is None else now - self._seen_at
        if age is not None and age >= self.parameters.hold_after_s:
            return f"no figures from the server for {age:.0f} s"
        if is_auto and self._held_since is not None:
            return f"{self._held_why}, not submitting"
        return None
