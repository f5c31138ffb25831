"""What the throttle law can be tuned by, and the reading of a server that it takes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThrottleParameters:
    """Everything the law can be tuned by; seconds, requests, ratios 0..1."""

    start: int = 32
    """N before anything is known."""
    least: int = 4
    most: int = 400
    queue_ratio: float = 0.2
    """q* as a share of the running requests …"""
    queue_least: int = 4
    queue_most: int = 32
    """… within these bounds."""
    smoothing_s: float = 10.0
    fill_usage: float = 0.35
    """From an empty server N grows at once to what fills the pool so far with young requests …"""
    fill_factor: float = 3.0
    """… but no more than this many times a sample …"""
    fill_most: int = 128
    """… and no further than this in leaps."""
    fill_seen: float = 0.9
    """The share of them that a sample shows running before it is leapt by."""
    fill_queue_s: float = 10.0
    """A queue for so long ends the cold start: the server takes no more."""
    growth_ratio: float = 0.25
    """Most growth a sample while the fit is known …"""
    loaded_growth_ratio: float = 0.10
    """… and while it is not."""
    growth_least: int = 2
    usage_goal: float = 0.97
    """Above this usage an empty queue is no reason to grow, …"""
    outlook_s: float = 6.0
    """… nor where the pool will be that full so soon, at the pace of the last seconds."""
    outlook_smoothing_s: float = 4.0
    fit_margin: float = 1.25
    """N is not grown above this multiple of the fit …"""
    fit_doubt_usage: float = 0.85
    fit_doubt_s: float = 120.0
    """… unless the queue is empty below that usage for so long: then the fit is wrong …"""
    idle_usage: float = 0.78
    """… or at once below this usage, where the pool has been full: then N grows …"""
    idle_growth_ratio: float = 0.5
    """… by this share a sample."""
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
    probe_ratio: float = 0.15
    """Retractions per answer, over `probe_window_s`, above which fewer slots are tried, …"""
    probe_recompute_ratio: float = 0.08
    """… where prefilling again takes this share of the server's time, or nobody knows: …"""
    probe_window_s: float = 900.0
    probe_baseline_s: float = 2700.0
    """A trial is compared with so long before it: requests of one length come in waves of up to
    half an hour."""
    probe_after_s: float = 3600.0
    """Not before so long after a start: young requests generate faster than those that follow."""
    probe_cut: float = 0.9
    """… this share of the running requests, …"""
    probe_trial_s: float = 1800.0
    """… for so long, …"""
    probe_gain: float = 1.03
    """… and kept if generation over the last `probe_window_s` is this many times the old one."""
    probe_wait_s: float = 3600.0
    """Until the next trial after one that did not pay; doubled each time …"""
    probe_wait_most_s: float = 28_800.0
    """… up to this."""


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
    generated_per_s: float | None = None
    """Tokens a second that it decodes now; None where it is not told."""
    ended_total: float | None = None
    """Requests that it has answered since its start; None where it is not told."""
    recompute_ratio: float | None = None
    """0..1 of its time that prefilling retracted requests again takes; None where not told."""
