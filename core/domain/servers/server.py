"""One SGLang server as the panel shows it: state, launch facts, start-up stages, failure."""

from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.telemetry.agreement import Comparison


class ServerState(StrEnum):
    """The health of a server; `/health` alone decides nothing."""

    STARTING = "starting"
    IDLE = "idle"
    DECODING = "decoding"
    BUSY_PREFILL = "busy prefill"
    PAUSED = "paused"
    """The engine was paused by us (freeze); figures stand still and are not shown as live."""
    STALLED = "stalled"
    """Requests run or wait and no token was made for a while."""
    DRAINING = "draining"
    STOPPING = "stopping"
    UNREACHABLE = "unreachable"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_ready(self) -> bool:
        """Whether the server serves requests."""
        return self in _READY


_READY = {ServerState.IDLE, ServerState.DECODING, ServerState.BUSY_PREFILL}


class StageState(StrEnum):
    """Where one step of a start, stop or restart stands."""

    TODO = "todo"
    DOING = "doing"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step with its proof and time."""

    name: str
    """hold run, harvest, stop, free GPUs, prove clean, process, weights, KV pool, graphs, …"""
    state: StageState
    started_at: float | None = None
    """Monotonic seconds."""
    ended_at: float | None = None
    detail: str = ""
    """What was observed: the proof when done, the cause when failed."""
    progress_ratio: float | None = None
    """0..1 where the step tells (weight shards)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a start or a server ended: first cause, not its consequences."""

    headline: str
    """One sentence."""
    advice: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    """Log lines, each "N  text"; of a silent end the log's last line."""
    stage: str | None = None
    after_s: float | None = None
    is_silent: bool = False
    """The log names no cause."""


@dataclass(frozen=True, slots=True)
class LaunchFlag:
    """One setting of the launch and where its value comes from."""

    name: str
    """SGLang's own spelling with dashes, or an environment variable."""
    value: str
    origin: str
    """"preset NAME", "env", "kvctl" (its own default), "resolved" (chosen by the server)."""


@dataclass(frozen=True, slots=True)
class EffectiveFlag:
    """One flag as the server runs with it, beside what was asked for."""

    name: str
    """With dashes."""
    value: str
    """What holds now; secrets are masked."""
    given: str | None = None
    """As the launch named it; None: it did not."""
    given_by: str | None = None
    """"preset NAME" or "command line"."""
    default: str | None = None
    """SGLang's default, "unset" where it has none; None: not known."""
    at_start: str | None = None
    """As resolved at the start, where that is not what holds now."""
    differs: tuple[str, ...] = ()
    """From what it differs: "given", "default", "run time"."""
    moves_ceiling: bool = False
    """It moves the KV ceiling."""


@dataclass(frozen=True, slots=True)
class Decode:
    """How the server decodes now; every figure with its source and age."""

    running: Figure = unknown("no server answers yet")
    queued: Figure = unknown("no server answers yet")
    token_usage: Figure = unknown("no server answers yet")
    """0..1 of the worst pool, prefix cache excluded."""
    used_tokens: Figure = unknown("no server answers yet")
    pool_tokens: Figure = unknown("no server answers yet")
    """max_total_num_tokens summed over DP ranks."""
    max_running: Figure = unknown("no server answers yet")
    generation_tokens_per_s: Figure = unknown("no server answers yet")
    """Server-side decode rate over all requests."""
    effective_tokens_per_s: Figure = unknown("nothing was completed yet")
    """Tokens of completed responses over `effective_window_s`, counted from the output."""
    effective_window_s: float | None = None
    completed_in_window: int | None = None
    completed_per_s: Figure = unknown("nothing was completed yet")
    """Completed responses over `effective_window_s`."""
    prefill_tokens_per_s: Figure = unknown("no server answers yet")
    prefill_share: Figure = unknown("no server answers yet")
    """0..1 of the busiest rank's time that prefill took in the last seconds."""
    retracted_per_min: Figure = unknown("the server runs without --enable-metrics")
    retracted_total: Figure = unknown("the server runs without --enable-metrics")
    recomputed_tokens_per_min: Figure = unknown("the server runs without --enable-metrics")
    cache_hit_ratio: Figure = unknown("the server runs without --enable-metrics")
    accept_length: Figure = unknown("no speculative decoding")
    queue_wait_s: Figure = unknown("not measured yet")
    answer_s: Figure = unknown("nothing was completed yet")
    """Seconds a request takes from send to end, mean of the last answers."""
    request_tokens_per_s: Figure = unknown("no server answers yet")
    """Generation rate of one running request: the whole rate over the running ones."""
    ttft_p50_s: Figure = unknown("the server runs without --enable-metrics")
    """Time to first token, of the last minute's requests."""
    ttft_p99_s: Figure = unknown("the server runs without --enable-metrics")
    itl_p50_s: Figure = unknown("the server runs without --enable-metrics")
    """Time between tokens, of the last minute's tokens."""
    itl_p99_s: Figure = unknown("the server runs without --enable-metrics")
    e2e_p50_s: Figure = unknown("the server runs without --enable-metrics")
    """Whole requests, of those that ended in the last minute."""
    e2e_p99_s: Figure = unknown("the server runs without --enable-metrics")
    imbalance: str | None = None
    """One line where a DP rank queues while another is nearly idle."""
    worst_pool: str | None = None
    """"full", "swa", "mamba" where the model has several pools."""
    worst_rank: str | None = None
    """"DP1" where usage differs between ranks."""
    steady_since: float | None = None
    """Monotonic seconds since when figures may be quoted as steady; None: burst or unknown."""
    is_frozen: bool = False
    """The engine is paused: the counts are those of the moment of the pause."""
    sources: tuple[Comparison, ...] = ()
    """What each source says of a figure that several tell, and where they disagree."""
    log_lines: int = 0
    """Log lines read while the log was followed."""
    unrecognised_lines: int = 0
    """Those whose shape is not known; nothing was guessed from them."""
    bad_metric_lines: int = 0
    """Lines of the last /metrics answer that could not be read."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server and everything known about it."""

    name: str
    url: str
    state: ServerState
    state_since: float
    """Monotonic seconds."""
    state_reason: str = ""
    is_managed: bool = False
    """Launched by kvctl: it can be stopped and restarted by it."""
    owner: str | None = None
    """The supervisor that would restart it; None if none."""
    preset: str | None = None
    model: str | None = None
    tp_size: int | None = None
    dp_size: int | None = None
    version: str | None = None
    pid: int | None = None
    start_ticks: int | None = None
    launched_wall: float | None = None
    ready_wall: float | None = None
    ready_after_s: float | None = None
    log_path: str | None = None
    last_log_at: float | None = None
    last_log_line: str = ""
    errors_in_log: int = 0
    available_gpu_memory_gb: float | None = None
    """Free per GPU after graph capture, as the start-up line says."""
    flags: tuple[LaunchFlag, ...] = ()
    effective: tuple[EffectiveFlag, ...] = ()
    """What was given or differs, as /server_info tells it; those that move the KV ceiling first."""
    are_defaults_known: bool = False
    """SGLang's defaults were read from the version that runs."""
    stages: tuple[Stage, ...] = ()
    """The start, stop or restart in progress, or the last one."""
    failure: Failure | None = None
    decode: Decode = Decode()
    foreign_requests: Figure = unknown("not known")
    """Running and queued requests that are not the run's own."""
    live_cap: int | None = None
    """pp_max_micro_batch_size where kvctl changed it."""
    launch_id: str | None = None
    """Id of its launch in the ledger; None where kvctl did not launch it."""
