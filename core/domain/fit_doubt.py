"""When the fit by known lengths is not believed: the server is idle below it.

The lengths known are those of answers that have ended; what is sent now may be shorter, or so young
that it holds little yet. Pure.
"""

from dataclasses import dataclass

from kvctl.core.domain.throttle_parameters import ServerSample, ThrottleParameters


@dataclass(slots=True)
class FitDoubt:
    """Whether an empty queue at a low usage has lasted long enough to speak against the fit."""

    parameters: ThrottleParameters
    _has_been_full: bool = False
    _idle_since: float | None = None
    _roomy_since: float | None = None

    def observe(self, sample: ServerSample) -> None:
        """Take a sample."""
        p = self.parameters
        self._has_been_full = self._has_been_full or sample.usage >= p.fit_doubt_usage
        is_idle = sample.queued == 0 and sample.usage < p.idle_usage
        is_roomy = sample.queued == 0 and sample.usage < p.fit_doubt_usage
        self._idle_since = _since(self._idle_since, sample.at, is_idle)
        self._roomy_since = _since(self._roomy_since, sample.at, is_roomy)

    def holds(self, now: float) -> bool:
        """Return whether N may grow beyond the fit.

        While the pool fills for the first time it is roomy for a good reason.
        """
        p = self.parameters
        is_idle = self._idle_since is not None and now - self._idle_since >= p.idle_s
        if is_idle and self._has_been_full:
            return True
        return self._roomy_since is not None and now - self._roomy_since >= p.fit_doubt_s


def _since(since: float | None, now: float, holds: bool) -> float | None:
    if not holds:
        return None
    return now if since is None else since
