"""Whether a run may send: holds by cause, pauses by who set them, and the state that follows."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvctl.core.domain.runs.run import RunState

OPERATOR, POLICY = "operator", "policy"
_ENDED_BY_HAND = ("denied", "refused", "input", "model")
"""Causes that do not go away by themselves."""


@dataclass(slots=True)
class Gate:
    """Every reason not to send; open when there is none."""

    now: Callable[[], float]
    """Monotonic seconds."""
    holds: dict[str, str] = field(default_factory=dict)
    """Reason by cause: kvctl stopped by itself."""
    pauses: dict[str, str] = field(default_factory=dict)
    """Reason by who paused: the operator or the policy `pause`."""
    is_started: bool = False
    is_finished: bool = False
    failure: str = ""
    servers_down: str = ""
    """Why no server can be sent to; "" while one can."""
    _state: RunState = RunState.LOADING
    _since: float | None = None

    def end_pause(self, by: str) -> None:
        """End a pause; the operator's word also ends the policy's, and what kvctl gave up on."""
        if by == OPERATOR:
            self.pauses.clear()
            for cause in _ENDED_BY_HAND:
                self.holds.pop(cause, None)
        else:
            self.pauses.pop(by, None)

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent."""
        is_stopped = self.holds or self.pauses or self.failure
        return self.is_started and not self.is_finished and not is_stopped

    @property
    def reason(self) -> str:
        """Why nothing is sent, in one line; "" while something is."""
        if self.failure:
            return self.failure
        if self.is_finished:
            return ""
        reasons = [*self.pauses.values(), *self.holds.values()]
        if self.servers_down and self.is_started:
            reasons.append(self.servers_down)
        return "; ".join(reasons)

    @property
    def state(self) -> RunState:
        """Where the run stands now."""
        if self.failure:
            return RunState.FAILED
        if self.is_finished:
            return RunState.FINISHED
        if not self.is_started:
            return RunState.LOADING
        if self.pauses:
            return RunState.PAUSED
        return RunState.HOLDING if self.holds or self.servers_down else RunState.RUNNING

    @property
    def since(self) -> float:
        """Monotonic seconds since when the state is as it is."""
        now = self.now()
        if self._since is None or self.state is not self._state:
            self._state, self._since = self.state, now
        return self._since
