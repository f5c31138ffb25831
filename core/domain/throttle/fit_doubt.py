"""When the fit by known lengths is not believed: the server is idle below it.

The lengths known are those of answers that have ended; what is sent now may be shorter, or so young
that it holds little yet. Pure.
"""

from dataclasses import dataclass

from kvctl.core.domain.throttle.parameters import ServerSample, ThrottleParameters


@dataclass(slots=True)
class FitDoubt:
    """Whether an empty queue at a low usage has lasted long enough to speak against the fit."""

    parameters: ThrottleParameters
    is_idle: bool = False
    """A pool that was full has emptied, and nothing waits to fill it again."""
    _has_been_full: bool = False
    _roomy_since: float | None = None

    def observe(self, sample: ServerSample) -> None:
        """Take a sample."""
        p = self.parameters
        self._has_been_full = self._has_been_full or sample.usage >= p.fit_doubt_usage
        is_unfed = sample.queued == 0
        self.is_idle = self._has_been_full and is_unfed and sample.usage < p.idle_usage
        if not is_unfed or sample.usage >= p.fit_doubt_usage:
            self._roomy_since = None
        elif self._roomy_since is None:
            self._roomy_since = sample.at

    def holds(self, now: float) -> bool:
        """Return whether the pool has been roomy for so long that the fit must be wrong."""
        since = self._roomy_since
        return since is not None and now - since >= self.parameters.fit_doubt_s
