"""What a running SGLang server says about itself, as typed readings.

Source: FACTS of SGLang 0.4.6 to 0.5.23. Absent fields are None: unknown, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RankLoad:
    """One DP rank's counts."""

    dp_rank: int
    taken_wall: float | None
    """UTC seconds when the scheduler wrote it; stands still while paused or hung."""
    running: int | None
    queued: int | None
    used_tokens: int | None
    pool_tokens: int | None
    """max_total_num_tokens of this rank."""
    token_usage: float | None
    """0..1."""
    gen_throughput: float | None
    """tok/s; None where it is 0 only because metrics are off."""
    cache_hit_ratio: float | None
    max_running: int | None
    accept_length: float | None = None
    prefilled_tokens: int | None = None
    """total_prefill_uncached_tokens: computed prompt tokens since the start (0.5.17 and later)."""
    prefill_busy_s: float | None = None
    """total_prefill_busy_us: time in prefill since the start (0.5.17 and later)."""


@dataclass(frozen=True, slots=True)
class LoadsReading:
    """Counts of all ranks from the best source the version has."""

    at: float
    """Monotonic seconds of the answer."""
    wall: float
    """UTC seconds of the answer by the server's clock, or ours where it gives none."""
    source: str
    """"/v1/loads", "/get_load" or "/server_info"."""
    version: str | None
    ranks: tuple[RankLoad, ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """A Prometheus histogram summed over ranks: cumulative counts by upper bound."""

    bounds: tuple[float, ...]
    """Ascending, last is infinity."""
    counts: tuple[float, ...]
    total: float
    """Sum of observations, seconds (or what the name says); NaN where it is not known."""


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """/metrics, merged over ranks by what each series means."""

    at: float
    """Monotonic seconds."""
    counters: Mapping[str, float]
    """Names without prefix; realtime_tokens_total is split: "realtime_tokens_total.decode"."""
    gauges: Mapping[str, float]
    """Counts summed over DP ranks, pressures as maximum; NaN and infinite are left out."""
    histograms: Mapping[str, Histogram]
    bad_lines: int = 0
    by_rank: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """"DP0" -> running, queued, token_usage; empty where the server has one DP rank."""
    model_name: str | None = None
    """The label of the series, literally."""
    foreign_samples: int = 0
    """Samples under names that are not SGLang's; above 0 without counters: names unknown."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """/server_info: how the server was configured and what it resolved."""

    at: float
    version: str | None
    flags: Mapping[str, object]
    """Resolved server arguments, names with underscores as SGLang spells them."""
    pool_tokens: int | None
    """max_total_num_tokens of one rank."""
    max_running: int | None
    """Effective per DP rank."""
    live_cap: int | None
    """internal_states[0].pp_max_micro_batch_size."""
    last_gen_throughput: float | None
    launch_command: str | None
    """Secrets are masked."""
    live_flags: Mapping[str, object] = field(default_factory=dict)
    """Of internal_states[0], where they are not those of `flags`."""
