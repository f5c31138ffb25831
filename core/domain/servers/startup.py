"""A start as its log tells it: the steps with times and progress, each rank's phase, the facts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvctl.core.domain.logs.lines import LogKind, LogRecord
from kvctl.core.domain.logs.stages import (
    BEGIN,
    DISTRIBUTED,
    END,
    GRAPHS,
    KV_POOL,
    PROCESS,
    PROGRESS,
    WARMUP,
    WEIGHTS,
)
from kvctl.core.domain.servers.server import Stage, StageState
from kvctl.core.domain.servers.start_failure import failure_of as failure_of

READY = "ready"
STEPS: tuple[tuple[str, str], ...] = (
    (PROCESS, "process"),
    (WEIGHTS, "weights"),
    (KV_POOL, "KV pool"),
    (GRAPHS, "graphs"),
    (WARMUP, "first token"),
    (READY, "ready"),
)
"""Key and shown name of every step in order; distributed set-up belongs to the process."""
_ORDER: Mapping[str, int] = {key: index for index, (key, _) in enumerate(STEPS)}
_FACTS = ("pool_tokens", "max_running", "context_tokens", "chunked_prefill_tokens")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When one step was seen to begin and end, and what it said."""

    began_at: float | None = None
    """Monotonic seconds of the reading; None: not seen."""
    ended_at: float | None = None
    ratio: float | None = None
    """0..1 where the step tells."""
    text: str = ""
    """What it said last: "3/8", "159277 tokens", "14.97 GB"."""

    @property
    def is_done(self) -> bool:
        """Return whether it has ended."""
        return self.ended_at is not None


@dataclass(frozen=True, slots=True)
class RankPhase:
    """Where one rank of the launch stands."""

    step: str
    edge: str
    wall: float | None
    """The line's own stamp, server's local time."""


@dataclass(frozen=True, slots=True)
class StartupProgress:
    """A start in progress or done."""

    launched_at: float | None = None
    """Monotonic seconds when the process was started, None if not by kvctl."""
    steps: Mapping[str, StepTimes] = field(default_factory=dict)
    ranks: Mapping[str, RankPhase] = field(default_factory=dict)
    """By rank tag, "" on a single GPU."""
    pool_tokens: int | None = None
    max_running: int | None = None
    context_tokens: int | None = None
    chunked_prefill_tokens: int | None = None
    available_gpu_memory_gb: float | None = None
    weights_gb: float | None = None
    """Memory of one rank's weights."""
    is_ready: bool = False
    ready_at: float | None = None
    """Monotonic seconds when the ready line was read."""

    @property
    def current(self) -> str | None:
        """Return the key of the step in progress, None before the first and once ready."""
        doing = [k for k, t in self.steps.items() if t.began_at is not None and t.ended_at is None]
        return max(doing, key=lambda key: _ORDER[key]) if doing and not self.is_ready else None

    @property
    def text(self) -> str:
        """Return the step in progress in a few words, "weights 3/8"; "" if there is none."""
        key = self.current
        return "" if key is None else f"{dict(STEPS)[key]} {self.steps[key].text}".strip()

    def step(self, key: str) -> StepTimes | None:
        """Return what is known of a step (process, weights, kv_pool, …), None before it began."""
        return self.steps.get(key)


def launched(at: float) -> StartupProgress:
    """Return the progress of a process that was just started."""
    return StartupProgress(launched_at=at, steps={PROCESS: StepTimes(began_at=at)})


def fold_startup(
    state: StartupProgress, records: Iterable[LogRecord], now: float
) -> StartupProgress:
    """Return the progress after log records, read at `now`."""
    for record in records:
        if record.kind is LogKind.STAGE:
            state = _fold_stage(state, record, now)
        elif record.kind is LogKind.READY:
            state = _fold_ready(state, now)
    return state


def stages_of(state: StartupProgress, failed: str | None = None) -> tuple[Stage, ...]:
    """Return the steps for the panel; `failed` is the cause that ended the start, if it did."""
    current = state.current or (PROCESS if failed is not None and not state.is_ready else None)
    return tuple(_stage(state, key, name, current, failed) for key, name in STEPS)


def phases_of(state: StartupProgress) -> tuple[str, ...]:
    """Return one line a rank where there are several: "TP0: weights begun"."""
    if len(state.ranks) < 2:
        return ()
    verbs = {BEGIN: "begun", PROGRESS: "in progress", END: "done"}
    return tuple(f"{rank}: {p.step} {verbs[p.edge]}" for rank, p in sorted(state.ranks.items()))


def _fold_stage(state: StartupProgress, record: LogRecord, now: float) -> StartupProgress:
    stage, edge = record.word_of("stage") or PROCESS, record.word_of("edge") or BEGIN
    step = PROCESS if stage == DISTRIBUTED else stage
    if stage == DISTRIBUTED and edge == END:
        edge = PROGRESS
    is_final = stage == KV_POOL and record.number_of("max_running") is not None
    ranks = state.ranks
    if stage != WARMUP and (record.rank or record.wall is not None):
        ranks = {**state.ranks, record.rank: RankPhase(step, edge, record.wall)}
    if edge == END and (step == GRAPHS or not _is_ended_by_all(ranks, step)):
        edge = PROGRESS  # graphs are captured in several rounds, ranks load at their own pace
    steps = dict(state.steps)
    _end_earlier(steps, step, now)
    before = steps.get(step, StepTimes())
    steps[step] = _advanced(before, record, edge, now)
    if is_final:
        if before.ended_at is not None:  # the pool was made long before: graphs took the time
            steps[step] = replace(steps[step], ended_at=before.ended_at)
        # The summary line: every rank's graphs are captured, the warm-up is next.
        _end_earlier(steps, WARMUP, now)
    return _with_facts(replace(state, steps=steps, ranks=ranks), record, step)


def _is_ended_by_all(ranks: Mapping[str, RankPhase], step: str) -> bool:
    """Return whether no rank that has begun a step is still in it."""
    return not any(phase.step == step and phase.edge != END for phase in ranks.values())


def _advanced(times: StepTimes, record: LogRecord, edge: str, now: float) -> StepTimes:
    ratio = record.number_of("progress_ratio")
    began_at = now if times.began_at is None else times.began_at
    return StepTimes(
        began_at=began_at,
        ended_at=now if edge == END else None,
        ratio=times.ratio if ratio is None else ratio,
        text=times.text
        if record.word_of("stage") == DISTRIBUTED
        else _detail(record) or times.text,
    )


def _end_earlier(steps: dict[str, StepTimes], step: str, now: float) -> None:
    for key, times in steps.items():
        if _ORDER[key] < _ORDER[step] and times.ended_at is None:
            steps[key] = replace(times, ended_at=now)


def _detail(record: LogRecord) -> str:
    done, total = record.number_of("shards_done"), record.number_of("shards_total")
    if done is not None and total is not None:
        return f"{done:.0f}/{total:.0f}"
    pool = record.number_of("pool_tokens")
    if pool is not None:
        return f"{pool:.0f} tokens"
    size = record.number_of("mem_usage_gb")
    if size is not None:
        return f"{size:.2f} GB"
    ratio = record.number_of("progress_ratio")
    return f"{ratio:.0%}" if ratio is not None else ""


def _with_facts(state: StartupProgress, record: LogRecord, step: str) -> StartupProgress:
    found = {name: record.number_of(name) for name in _FACTS}
    facts = {name: int(value) for name, value in found.items() if value is not None}
    available = record.number_of("available_gb")
    weights = record.number_of("mem_usage_gb") if step == WEIGHTS else None
    is_later = step in (KV_POOL, GRAPHS) and available is not None
    return replace(
        state,
        pool_tokens=facts.get("pool_tokens", state.pool_tokens),
        max_running=facts.get("max_running", state.max_running),
        context_tokens=facts.get("context_tokens", state.context_tokens),
        chunked_prefill_tokens=facts.get("chunked_prefill_tokens", state.chunked_prefill_tokens),
        available_gpu_memory_gb=available if is_later else state.available_gpu_memory_gb,
        weights_gb=weights if weights is not None else state.weights_gb,
    )


def _fold_ready(state: StartupProgress, now: float) -> StartupProgress:
    steps = dict(state.steps)
    _end_earlier(steps, READY, now)
    steps[READY] = StepTimes(began_at=now, ended_at=now)
    return replace(state, steps=steps, is_ready=True, ready_at=now)


def _stage(
    state: StartupProgress, key: str, name: str, current: str | None, failed: str | None
) -> Stage:
    times = state.steps.get(key, StepTimes())
    detail = times.text
    if failed is not None and key == current:
        status, detail = StageState.FAILED, failed
    elif times.ended_at is not None:
        status = StageState.DONE
    elif times.began_at is not None:
        status = StageState.DOING
    else:
        passed = any(_ORDER[k] > _ORDER[key] and t.began_at for k, t in state.steps.items())
        status = StageState.SKIPPED if passed else StageState.TODO
    ratio = times.ratio if status is StageState.DOING else None
    return Stage(name, status, times.began_at, times.ended_at, detail, ratio)
