"""The parts of the simulated scheduler: step times, limits, requests, counters and events.

Source: SGLang 0.5.23 managers/schedule_policy.py and schedule_batch.py for what each figure
means; the step times are a fit to five published operating points.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepLaw:
    """How long one forward pass takes on the simulated host."""

    base_ms: float = 21.5
    """Milliseconds of a decode step whatever its size."""
    request_ms: float = 3.72
    """Milliseconds that `requests ** request_power` is multiplied by."""
    request_power: float = 0.6
    ktoken_ms: float = 0.03
    """Milliseconds a decode step takes for each 1000 tokens in the pool."""
    prefill_tokens_per_s: float = 6000.0

    def decode_s(self, requests: int, tokens: int, steps: int) -> float:
        """Return the seconds of that many steps, the pool growing by `requests` at each."""
        first = self.base_ms + self.request_ms * math.pow(requests, self.request_power)
        first += self.ktoken_ms * tokens / 1000.0
        growth = self.ktoken_ms * requests / 1000.0
        return (steps * first + growth * steps * (steps - 1) / 2.0) / 1000.0

    def steps_within(self, requests: int, tokens: int, seconds: float) -> int:
        """Return how many whole decode steps end within that many seconds."""
        if seconds <= 0.0:
            return 0
        half_growth = self.ktoken_ms * requests / 2e6
        linear = self.decode_s(requests, tokens, 1) - half_growth
        # half_growth k^2 + linear k = seconds, solved without cancellation for a small k^2 term.
        root = math.sqrt(linear * linear + 4.0 * half_growth * seconds)
        steps = int(2.0 * seconds / (linear + root)) + 1
        while steps and self.decode_s(requests, tokens, steps) > seconds:
            steps -= 1
        return steps


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What the server's flags fix for its life."""

    capacity_tokens: int
    """max_total_num_tokens."""
    max_running: int = 2048
    """max_running_requests; also the highest live cap."""
    max_queued: int | None = None
    """max_queued_requests; None is unbounded."""
    conservativeness: float = 1.0
    """schedule_conservativeness, which scales new_token_ratio."""
    prefill_tokens: int = 8192
    """Most prompt tokens in one prefill batch (chunked_prefill_size)."""
    log_interval: int = 40
    """Decode steps between two DecodeTick events (decode_log_interval)."""


@dataclass(slots=True)
class PoolRequest:
    """One request as the scheduler sees it."""

    rid: str
    prompt_tokens: int
    max_new_tokens: int
    """Most tokens it may generate, already clipped to the context."""
    stop_after: int
    """Tokens after which it would stop by itself; the smaller of the two ends it."""
    arrived_at: float
    settled_tokens: int = 0
    """Output tokens generated up to `joined_step`."""
    joined_step: int | None = None
    """Decode step at which it last began to run; None while queued."""
    retractions: int = 0
    admitted_at: float | None = None
    """When its first prefill ended; None if it never ran."""

    @property
    def length(self) -> int:
        """Return how many tokens it will have generated when it finishes."""
        return min(self.stop_after, self.max_new_tokens)

    @property
    def reason(self) -> str:
        """Return the finish reason it will have, `stop` or `length`."""
        return "stop" if self.stop_after <= self.max_new_tokens else "length"


class QueueFullError(Exception):
    """The queue has max_queued_requests entries; the request was not taken."""


@dataclass(slots=True)
class PoolTotals:
    """Counters since the start; they only rise."""

    decode_tokens: int = 0
    """Tokens from decode steps (the first token of a request comes from prefill)."""
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_steps: int = 0
    decode_s: float = 0.0
    decode_squares: int = 0
    """Sum over decode steps of running requests squared."""
    decode_request_s: float = 0.0
    """Sum over decode steps of running requests times seconds."""
    retracted_requests: int = 0
    retracted_input_tokens: int = 0
    retracted_output_tokens: int = 0
    finished_requests: int = 0
    finished_prompt_tokens: int = 0
    finished_output_tokens: int = 0
    aborted_requests: int = 0
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    """One prefill batch ended; usage, running and queued are as the log line counts them."""

    at: float
    new_seqs: int
    new_tokens: int
    usage: float
    """Token usage before the batch's tokens are counted."""
    running: int
    """Running requests without the new ones."""
    queued: int
    """Requests left in the queue."""
    pending_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DecodeTick:
    """`decode_log_interval` decode steps have passed."""

    at: float
    running: int
    tokens: int
    usage: float
    tokens_per_s: float
    """Tokens since the last tick over the time since it."""
    queued: int


@dataclass(frozen=True, slots=True)
class Retracted:
    """The pool was full; requests went back to the tail of the queue."""

    at: float
    requests: int
    tokens_gained: int
    ratio_before: float
    ratio_after: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A request left the scheduler."""

    at: float
    request: PoolRequest
    reason: str
    """`stop`, `length`, `queue_full` or `out_of_memory`."""


PoolEvent = PrefillBatch | DecodeTick | Retracted | Finished
