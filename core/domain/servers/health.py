"""The health of a server as a state machine over what was observed; `/health` is not asked.

Proof of life is tokens being made. A late answer is not death, an answer is not life: SGLang's
front end answers while the scheduler hangs, and stays silent while a long prefill works.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvctl.core.domain.logs.stages import WARMUP
from kvctl.core.domain.servers.server import Failure, ServerState
from kvctl.core.domain.servers.startup import STEPS

WARMING_UP = dict(STEPS)[WARMUP]
STALL_AFTER_S = 30.0
"""No token for this long while requests run or wait: stalled."""
UNREACHABLE_AFTER_S = 10.0
DECODE_FRESH_S = 12.0
"""A decode token within this time: decoding, even if prefill works too."""
LATE_TOLD_AFTER_S = 3.0
NO_PROGRESS_TOLD_AFTER_S = 5.0
"""From here on the reason says for how long no token was made."""


@dataclass(frozen=True, slots=True)
class HealthInputs:
    """What is known of a server at one moment; times are monotonic seconds."""

    is_process_alive: bool | None = None
    """None: not ours to see (another host)."""
    is_ready_seen: bool = False
    """The ready line was seen, or a load answer came."""
    startup: str = ""
    """The start-up step in progress, in a few words."""
    last_answer_at: float | None = None
    """When a load answer last came."""
    probe_cause: str | None = None
    """Why the last question failed; None if it was answered."""
    running: int | None = None
    queued: int | None = None
    is_frozen: bool = False
    """The scheduler does not refresh its counts."""
    frozen_since: float | None = None
    """When it last did; None: it does so now, or not known."""
    is_ready: bool | None = None
    """What /ready says while the counts stand still; False: paused by another. None: not known."""
    is_paused_by_us: bool = False
    is_stop_asked: bool = False
    """kvctl is stopping it."""
    is_draining: bool = False
    """A draining line stands in the log."""
    broken: str | None = None
    """What shows that it is dying although its main process lives; None: nothing does."""
    failure: Failure | None = None
    """The first cause found in the log, if any."""
    decode_at: float | None = None
    """When a decode token was last seen to be made."""
    prefill_at: float | None = None
    progress_at: float | None = None
    """When any token was last seen to be made."""
    busy_since: float | None = None
    """Since when requests run or wait."""
    stall_after_s: float = STALL_AFTER_S


Assessment = tuple[ServerState, str]


def assess(inputs: HealthInputs, previous: ServerState | None, now: float) -> Assessment:
    """Return the state at `now` and, in one line, what was observed that makes it so."""
    steps: tuple[Callable[[], Assessment | None], ...] = (
        lambda: _ended(inputs),
        lambda: _stopping(inputs),
        lambda: _broken(inputs),
        lambda: _starting(inputs),
        lambda: _paused(inputs),
        lambda: _unreachable(inputs, previous, now),
    )
    for step in steps:
        if (assessment := step()) is not None:
            return assessment
    state, reason = _working(inputs, previous, now)
    silent_s = _since(inputs.last_answer_at, now) if inputs.probe_cause else None
    if silent_s is not None and silent_s >= LATE_TOLD_AFTER_S:
        reason = f"{reason}; last answer {silent_s:.0f} s ago"
    return state, reason


def _ended(inputs: HealthInputs) -> Assessment | None:
    if inputs.is_process_alive is not False:
        return None
    if inputs.is_stop_asked:
        return ServerState.STOPPED, "stopped"
    if inputs.failure is not None:
        return ServerState.FAILED, inputs.failure.headline
    if inputs.is_draining:
        return ServerState.STOPPED, "it was told to stop and ended"
    return ServerState.FAILED, "the process ended"


def _stopping(inputs: HealthInputs) -> Assessment | None:
    left = _work(inputs)
    rest = f", {left} requests left" if left else ""
    if inputs.is_draining:
        return ServerState.DRAINING, f"waits for what runs, then ends{rest}"
    if inputs.is_stop_asked:
        return ServerState.STOPPING, f"told to stop{rest}"
    return None


def _broken(inputs: HealthInputs) -> Assessment | None:
    if inputs.broken is None:
        return None
    told = inputs.failure.headline if inputs.failure else inputs.broken
    return ServerState.FAILED, f"{told}; its main process still runs"


def _starting(inputs: HealthInputs) -> Assessment | None:
    if inputs.is_ready_seen:
        return None
    if inputs.last_answer_at is not None and not _is_warming_up(inputs):
        return None
    if inputs.failure is not None:
        return ServerState.FAILED, inputs.failure.headline
    if inputs.is_process_alive is None:
        return ServerState.UNREACHABLE, f"no answer yet: {inputs.probe_cause or 'not asked'}"
    return ServerState.STARTING, inputs.startup or "the process runs, its log says nothing yet"


def _is_warming_up(inputs: HealthInputs) -> bool:
    """Return whether it answers, but its own first request is still computed.

    Source: SGLang opens its port before the warm-up request; that one can compile kernels for
    half a minute, while the counts stand still.
    """
    is_first = inputs.startup == WARMING_UP and inputs.progress_at is None
    return is_first and inputs.failure is None


def _paused(inputs: HealthInputs) -> Assessment | None:
    if not inputs.is_paused_by_us:
        return None
    return ServerState.PAUSED, "paused by kvctl: counts are those of the pause"


def _unreachable(
    inputs: HealthInputs, previous: ServerState | None, now: float
) -> Assessment | None:
    """Return unreachable when answers stopped and nothing else shows that it works."""
    if inputs.probe_cause is None:
        return None
    silent_s = _since(inputs.last_answer_at, now)
    if silent_s is not None and silent_s < UNREACHABLE_AFTER_S:
        return None
    made_s = _since(inputs.progress_at, now)
    if made_s is not None and made_s < UNREACHABLE_AFTER_S:
        return None  # late is not dead: tokens are still made
    if inputs.failure is not None:
        return ServerState.FAILED, inputs.failure.headline
    if silent_s is None and previous in (None, ServerState.STARTING):
        return ServerState.STARTING, f"ready line seen, no answer yet: {inputs.probe_cause}"
    told = "ever" if silent_s is None else f"for {silent_s:.0f} s"
    return ServerState.UNREACHABLE, f"no answer {told}: {inputs.probe_cause}"


def _working(inputs: HealthInputs, previous: ServerState | None, now: float) -> Assessment:
    work = _work(inputs)
    if inputs.is_frozen:
        return _frozen(inputs, previous, now)
    if work is None:
        return _without_counts(inputs, now)
    if work == 0:
        return ServerState.IDLE, "nothing runs or waits"
    return _busy(inputs, now)


def _busy(inputs: HealthInputs, now: float) -> Assessment:
    """Return decoding, prefilling or stalled by when the last token of each kind was made."""
    counts = f"{inputs.running or 0} run, {inputs.queued or 0} wait"
    quiet_s = _quiet_s(inputs, now)
    if quiet_s >= inputs.stall_after_s:
        return ServerState.STALLED, f"no token for {quiet_s:.0f} s while {counts}"
    told = f", no token for {quiet_s:.0f} s" if quiet_s >= NO_PROGRESS_TOLD_AFTER_S else ""
    decode_s, prefill_s = _since(inputs.decode_at, now), _since(inputs.prefill_at, now)
    is_decoding = decode_s is not None and decode_s <= DECODE_FRESH_S
    if prefill_s is not None and not is_decoding and (decode_s is None or prefill_s < decode_s):
        return ServerState.BUSY_PREFILL, f"prompts are computed, {counts}{told}"
    return ServerState.DECODING, f"{counts}{told}"


def _frozen(inputs: HealthInputs, previous: ServerState | None, now: float) -> Assessment:
    """Return the state of a server whose counts stand still although kvctl did not pause it."""
    moments = [inputs.frozen_since, inputs.progress_at, inputs.busy_since]
    known = [at for at in moments if at is not None]
    # An idle server has made no token for long: only the moment it froze counts then.
    is_dated = inputs.frozen_since is not None or inputs.busy_since is not None
    quiet_s = max(0.0, now - max(known)) if is_dated else 0.0
    if quiet_s >= inputs.stall_after_s:
        reason = f"no token and no new counts for {quiet_s:.0f} s: {_frozen_why(inputs)}"
        return ServerState.STALLED, reason
    state = ServerState.DECODING if _work(inputs) else ServerState.IDLE
    if previous is not None and (previous.is_ready or previous is ServerState.STALLED):
        state = previous
    told = f"; {_frozen_why(inputs)}" if inputs.is_ready is False else ""
    return state, f"no progress for {quiet_s:.0f} s: the counts stand still{told}"


def _frozen_why(inputs: HealthInputs) -> str:
    """Return why counts stand still, as far as /ready tells.

    Source: /ready (0.5.20 and later) answers at once and refuses while the engine is paused.
    """
    if inputs.is_ready is None:
        return "hung, or paused by another"
    return "hung" if inputs.is_ready else "paused by another: /ready refuses"


def _without_counts(inputs: HealthInputs, now: float) -> Assessment:
    made_s = _since(inputs.progress_at, now)
    if made_s is not None and made_s <= DECODE_FRESH_S:
        return ServerState.DECODING, "tokens are made; its requests are not counted"
    return ServerState.IDLE, "it answers; its requests are not counted"


def _quiet_s(inputs: HealthInputs, now: float) -> float:
    """Return seconds without a token, counted from when there was work to do."""
    starts = [at for at in (inputs.progress_at, inputs.busy_since) if at is not None]
    return max(0.0, now - max(starts)) if starts else 0.0


def _work(inputs: HealthInputs) -> int | None:
    if inputs.running is None and inputs.queued is None:
        return None
    return (inputs.running or 0) + (inputs.queued or 0)


def _since(at: float | None, now: float) -> float | None:
    return None if at is None else max(0.0, now - at)
