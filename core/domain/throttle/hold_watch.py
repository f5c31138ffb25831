"""HOLD: when AUTO sends nothing because the pool is full, and when it sends again.

Pure. A hold only stops sending: the server's own queue feeds it meanwhile, so a hold ends while
something still waits there.
"""

from dataclasses import dataclass

from kvctl.core.domain.throttle.parameters import ServerSample, ThrottleParameters


@dataclass(slots=True)
class HoldWatch:
    """Whether to hold, with hysteresis; fed with every sample."""

    parameters: ThrottleParameters
    why: str | None = None
    """The figures that began the hold; None while there is none."""
    _since: float = 0.0
    _hot_samples: int = 0
    _hot_base: int = 0
    _long_queue_since: float | None = None

    def observe(
        self, sample: ServerSample, last: ServerSample | None, queue: int, *, has_surplus: bool
    ) -> None:
        """Take a sample; `queue` is q*, the length of queue that is wanted.

        While more of ours is in flight than N (`has_surplus`) nothing is sent anyway, and a long
        queue is what that surplus leaves behind: no cause to hold.
        """
        self._count_hot(sample, last)
        self._time_queue(sample, queue, has_surplus)
        if self.why is None:
            self._enter(sample)
        else:
            self._leave(sample, queue)

    def _count_hot(self, sample: ServerSample, last: ServerSample | None) -> None:
        if sample.usage < self.parameters.hold_usage:
            self._hot_samples = 0
            return
        if self._hot_samples == 0:
            self._hot_base = (last or sample).retracted_total or 0
        self._hot_samples += 1

    def _time_queue(self, sample: ServerSample, queue: int, has_surplus: bool) -> None:
        p = self.parameters
        if has_surplus or sample.queued <= p.hold_queue_factor * queue + p.hold_queue_extra:
            self._long_queue_since = None
        elif self._long_queue_since is None:
            self._long_queue_since = sample.at

    def _enter(self, sample: ServerSample) -> None:
        p, long_since = self.parameters, self._long_queue_since
        is_rising = (sample.retracted_total or 0) > self._hot_base
        if self._hot_samples >= p.hold_samples and is_rising:
            self.why = f"KV-bound: usage {sample.usage:.2f} and retractions rising"
        elif long_since is not None and sample.at - long_since >= p.hold_queue_s:
            self.why = f"KV-bound: {sample.queued} already wait at the server"
        else:
            return
        self._since = sample.at

    def _leave(self, sample: ServerSample, queue: int) -> None:
        p = self.parameters
        if sample.at - self._since < p.hold_least_s:
            return
        if sample.queued <= max(p.release_queue, queue / 2) or sample.usage <= p.release_usage:
            self.why = None
            self._hot_samples = 0
            self._long_queue_since = None
