"""A run and its partitions as the panel shows them."""

from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.figures import Figure, unknown


class RunState(StrEnum):
    """Where a run stands."""

    LOADING = "loading"
    """Inputs are validated, the journal is read."""
    RUNNING = "running"
    HOLDING = "holding"
    """Not sending by itself for a stated reason (restart, disk, errors, no server)."""
    PAUSED = "paused"
    """Not sending because the operator, or the policy `pause`, said so."""
    FINISHED = "finished"
    FAILED = "failed"


class CeilingPolicy(StrEnum):
    """What is done at the KV ceiling."""

    THROTTLE = "throttle"
    PAUSE = "pause"
    NOTIFY = "notify"


class PartitionState(StrEnum):
    """Where a partition stands."""

    WAITING = "waiting"
    SCOUTED = "scouted"
    OPEN = "open"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Partition:
    """Progress of one partition."""

    name: str
    state: PartitionState
    total: int
    done: int
    """Accepted responses on disk (fsynced)."""
    failed: int
    skipped: int
    in_flight: int
    retrying: int
    tokens: int
    """Output tokens of the accepted responses."""
    mean_tokens: float | None
    """None before the first answer."""
    p95_tokens: float | None
    length_capped: int
    """Answers that ended at max_new_tokens."""
    effective_tokens_per_s: Figure = unknown("nothing completed in the window")
    remaining_s: float | None = None
    """Estimated seconds of this partition's own work; None before it can be known."""
    is_estimate_rough: bool = True
    """Only a few answers are known yet: shown with "~"."""
    weight: float = 1.0
    max_new_tokens: int | None = None
    done_wall: float | None = None
    """UTC seconds when its last answer was written; None while it is not done."""
    held_tokens: float | None = None
    """k: tokens one of its running requests holds on average; None before an answer."""
    prompt_tokens: float | None = None
    """Mean prompt length; None before an answer told one."""
    left_tokens: float | None = None
    """Output tokens still to be made, estimated; None before the lengths are known."""


@dataclass(frozen=True, slots=True)
class Run:
    """One generation job over its partitions."""

    name: str
    path: str
    """The run file."""
    output: str
    """The output folder."""
    state: RunState
    state_since: float
    """Monotonic seconds."""
    reason: str = ""
    """Why it holds, is paused or failed, in one sentence."""
    is_auto: bool = True
    """AUTO: the throttle law sets the target; else MANUAL."""
    target: int = 0
    """Slots: requests that may be in flight over all servers; it stands while nothing is sent."""
    is_held: bool = False
    """Nothing new is sent to any server now, whatever the target: see `state` and `reason`."""
    auto_target: int | None = None
    """What AUTO would set (shadow while MANUAL)."""
    in_flight: int = 0
    in_flight_tokens: float = 0.0
    """Output tokens that the answers in flight have made so far, estimated."""
    in_flight_fixed: int = 0
    """Of those in flight, answers that cannot end before max_new_tokens (`ignore_eos`)."""
    policy: CeilingPolicy = CeilingPolicy.THROTTLE
    pause_above: float = 0.95
    """Token usage (0..1) above which the policy `pause` stops sending."""
    resume_below: float = 0.80
    servers: tuple[str, ...] = ()
    """URLs."""
    partitions: tuple[Partition, ...] = ()
    total: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    tokens: int = 0
    partials: int = 0
    """Harvested prefixes that will be continued."""
    partial_tokens: int = 0
    duplicates: int = 0
    unwritten: int = 0
    """Finished answers that are not yet safely on disk."""
    journal_at: float | None = None
    """Monotonic seconds of the last fsynced record."""
    disk_free_bytes: int | None = None
    remaining_s: float | None = None
    """Expected seconds to the end; None while it is not known, or nothing is sent."""
    remaining_low_s: float | None = None
    remaining_high_s: float | None = None
    """The interval in which the end is meant to lie four times out of five."""
    remaining_reason: str = ""
    """Why `remaining_s` is None, "" where it is known."""
    done_wall: float | None = None
    """UTC seconds when all is expected to be done."""
    effective_tokens_per_s: Figure = unknown("nothing completed in the window")
    effective_window_s: float | None = None
    """Seconds over which completions are counted; None where they are not."""
    completed_in_window: int | None = None
    completed_per_s: Figure = unknown("nothing completed in the window")
    """Completed responses over `effective_window_s`."""
    mean_answer_s: float | None = None
    fit_at_mean: float | None = None
    """Requests that can decode at once at the open partitions' lengths: C*u/k; None before as many
    answers have ended as are in flight."""
    held_tokens_mean: float | None = None
    """k: tokens a running request holds on average, from the lengths seen."""

    @property
    def is_sending(self) -> bool:
        """Whether requests are sent as places become free."""
        return self.state is RunState.RUNNING and not self.is_held and self.target > 0
