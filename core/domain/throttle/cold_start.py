"""The start from an empty server: fill the pool fast, without sending more than it will hold.

A young request holds little more than its prompt, so usage says how many of them there is room
for; an engine that is still prefilling, or that still charges newcomers for the longest answer,
queues for some seconds without being full. Pure.
"""

from dataclasses import dataclass

from kvctl.core.domain.throttle.parameters import ServerSample, ThrottleParameters


@dataclass(slots=True)
class ColdStart:
    """Whether the pool is still being filled, from the first sample of a server on."""

    parameters: ThrottleParameters
    is_active: bool = True
    _queued_since: float | None = None

    def observe(self, sample: ServerSample) -> None:
        """End at the usage that the leaps aim at, or when a queue has stood too long."""
        if sample.queued == 0:
            self._queued_since = None
        elif self._queued_since is None:
            self._queued_since = sample.at
        waited = 0.0 if self._queued_since is None else sample.at - self._queued_since
        is_filled = sample.usage >= self.parameters.fill_usage
        if is_filled or waited >= self.parameters.fill_queue_s:
            self.is_active = False

    def leap(self, busy: float, sample: ServerSample) -> float:
        """Return N after a sample without a queue; `busy` requests of ours are in flight.

        0 while the sample does not show them: its usage speaks of fewer.
        """
        p = self.parameters
        if not self.is_active or sample.running < p.fill_seen * busy:
            return 0.0
        room = busy * p.fill_usage / max(sample.usage, 0.01)
        step = busy + max(float(p.growth_least), p.growth_ratio * busy)
        return min(room, busy * p.fill_factor, max(float(p.fill_most), step))


@dataclass(slots=True)
class Outlook:
    """The pace at which usage rises, smoothed."""

    parameters: ThrottleParameters
    _pace: float = 0.0
    """Usage a second."""

    def observe(self, last: ServerSample | None, sample: ServerSample) -> None:
        """Take the change between two samples."""
        if last is None or sample.at <= last.at:
            return
        seconds = sample.at - last.at
        weight = min(1.0, seconds / self.parameters.outlook_smoothing_s)
        self._pace += weight * ((sample.usage - last.usage) / seconds - self._pace)

    def is_full(self, sample: ServerSample) -> bool:
        """Return whether the pool is full, or will be within `outlook_s` at this pace."""
        p = self.parameters
        return sample.usage + max(0.0, self._pace) * p.outlook_s >= p.usage_goal
