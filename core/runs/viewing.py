"""Turns what a run has counted into the `Run` that frontends show."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvctl.core.domain.ceiling import fit, held_tokens
from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.progress import (
    ROUGH_BELOW,
    Rate,
    Work,
    expected_length,
    remaining_s,
)
from kvctl.core.domain.run import Partition, PartitionState, Run, RunState
from kvctl.core.domain.runfile import RunSpec
from kvctl.core.runs.counters import PartitionCounters
from kvctl.core.runs.journal import Journal
from kvctl.core.runs.opened import OpenedRun
from kvctl.core.runs.slots import Flight, ServerSlots


@dataclass(frozen=True, slots=True)
class Standing:
    """What the driver knows beside the counters."""

    state: RunState
    state_since: float
    reason: str
    is_auto: bool
    auto_target: int | None
    started_at: float
    """Monotonic seconds when this session began to send."""
    generation_tokens_per_s: float | None
    """Of all the run's servers; None: estimated from what was completed."""
    pool_tokens: int | None
    held: tuple[float, float] | None
    """Tokens in the pools and the running requests that hold them; None: not known."""
    disk_free_bytes: int | None
    now: float
    wall: float


def unopened(spec: RunSpec, state: RunState, since: float) -> Run:
    """Return a run of which nothing is read yet but its file."""
    return Run(
        name=spec.name,
        path=spec.path,
        output=spec.output,
        state=state,
        state_since=since,
        reason="reading inputs and journal" if state is RunState.LOADING else "",
        is_auto=spec.concurrency is None,
        policy=spec.policy,
        pause_above=spec.pause_above,
        resume_below=spec.resume_below,
        servers=spec.servers,
    )


def view_run(
    opened: OpenedRun, journal: Journal, servers: list[ServerSlots], standing: Standing
) -> Run:
    """Return the run as it stands."""
    flights = [flight for slots in servers for flight in slots.flights.values()]
    works = [_work(opened, n, flights, standing) for n in range(len(opened.indexes))]
    rate = _rate(opened, works, standing)
    partitions = tuple(_partition(opened, n, work, rate, standing) for n, work in enumerate(works))
    left = remaining_s(works, rate)
    held = _held(opened, works)
    spec = opened.spec
    pending = opened.schedule.partials
    completed = opened.counters.window.rate(standing.now, standing.started_at)
    return Run(
        name=spec.name,
        path=spec.path,
        output=spec.output,
        state=standing.state,
        state_since=standing.state_since,
        reason=standing.reason,
        is_auto=standing.is_auto,
        target=sum(slots.target for slots in servers),
        auto_target=standing.auto_target,
        in_flight=opened.counters.in_flight,
        in_flight_tokens=sum(
            _tokens_in_flight(opened, n, flights, standing) for n in range(len(works))
        ),
        policy=spec.policy,
        pause_above=spec.pause_above,
        resume_below=spec.resume_below,
        servers=tuple(slots.url for slots in servers),
        partitions=partitions,
        total=sum(p.total for p in partitions),
        done=sum(p.done for p in partitions),
        failed=sum(p.failed for p in partitions),
        skipped=sum(p.skipped for p in partitions),
        tokens=sum(p.tokens for p in partitions),
        partials=len(pending),
        partial_tokens=sum(job.partial.tokens for job in pending if job.partial),
        duplicates=opened.counters.duplicates,
        journal_at=journal.last_durable_at,
        disk_free_bytes=standing.disk_free_bytes,
        remaining_s=left,
        done_wall=None if left is None else standing.wall + left,
        effective_tokens_per_s=_figure(completed, standing.now),
        effective_window_s=completed.window_s or None,
        completed_in_window=completed.answers,
        completed_per_s=_answers_per_s(completed, standing.now),
        mean_answer_s=opened.counters.mean_answer_s,
        held_tokens_mean=held,
        fit_at_mean=fit(standing.pool_tokens, held),
    )


def _partition(
    opened: OpenedRun, number: int, work: Work, rate: float | None, standing: Standing
) -> Partition:
    counters = opened.counters.partitions[number]
    lengths = counters.lengths
    state = _state(opened, number, counters)
    return Partition(
        name=counters.name,
        state=state,
        total=counters.total,
        done=counters.done,
        failed=counters.failed,
        skipped=counters.skipped,
        in_flight=counters.in_flight,
        retrying=opened.schedule.retrying(number),
        tokens=lengths.total,
        mean_tokens=lengths.mean,
        p95_tokens=lengths.quantile(0.95),
        length_capped=counters.capped,
        effective_tokens_per_s=_figure(
            counters.window.rate(standing.now, standing.started_at), standing.now
        ),
        remaining_s=remaining_s([work], rate),
        is_estimate_rough=lengths.count < ROUGH_BELOW,
        weight=opened.schedule.lanes[number].weight,
        max_new_tokens=opened.indexes[number].spec.max_new_tokens,
        done_wall=counters.last_wall if state is PartitionState.DONE else None,
    )


def _state(opened: OpenedRun, number: int, counters: PartitionCounters) -> PartitionState:
    if counters.done + counters.failed >= counters.total:
        return PartitionState.DONE
    busy = counters.in_flight + counters.writing
    return opened.schedule.state_of(number, in_flight=busy, done=counters.done)


def _work(opened: OpenedRun, number: int, flights: list[Flight], standing: Standing) -> Work:
    counters = opened.counters.partitions[number]
    limit = opened.indexes[number].spec.max_new_tokens
    made = _tokens_in_flight(opened, number, flights, standing)
    partials = sum(
        job.partial.tokens
        for job in opened.schedule.partials
        if job.partial is not None and job.partition == number
    )
    length = expected_length(counters.lengths, made + partials, limit)
    left = max(0, counters.total - counters.done - counters.failed)
    return Work(left, length, made + partials)


def _tokens_in_flight(
    opened: OpenedRun, number: int, flights: list[Flight], standing: Standing
) -> float:
    """Return what a partition's answers in flight have made: by the pools, else by time."""
    own = [f for f in flights if f.job.partition == number and f.is_sent]
    if standing.held is not None and own:
        used, running = standing.held
        share = len(own) / max(1, len(flights))
        prompts = running * opened.counters.partitions[number].lengths.prompt_mean
        return max(0.0, used - prompts) * share
    speed = opened.counters.speed or 0.0
    limit = opened.indexes[number].spec.max_new_tokens
    made = [f.kept_tokens + speed * (standing.now - f.started_at) for f in own]
    return sum(min(m, float(limit)) if limit is not None else m for m in made)


def _rate(opened: OpenedRun, works: list[Work], standing: Standing) -> float | None:
    """Return generated tok/s: the servers' own figure, else completed and in flight over time."""
    if standing.generation_tokens_per_s:
        return standing.generation_tokens_per_s
    rate = opened.counters.window.rate(standing.now, standing.started_at)
    if rate.tokens_per_s is None:
        return None
    is_young = standing.now - standing.started_at < opened.counters.window.longest_s
    extra = sum(w.tokens_made for w in works) / rate.window_s if is_young else 0.0
    return rate.tokens_per_s + extra


def _held(opened: OpenedRun, works: Sequence[Work]) -> float | None:
    """Return k of what is in flight: the partitions' own k, weighted by their requests."""
    parts = list(zip(opened.counters.partitions, works, strict=True))
    busy = [(p, w) for p, w in parts if p.in_flight and p.lengths.count]
    chosen = busy or [(p, w) for p, w in parts if p.done + p.failed < p.total] or parts
    each = [(_held_of(p, work), max(1, p.in_flight)) for p, work in chosen]
    known = [(held, weight) for held, weight in each if held is not None]
    total = sum(weight for _, weight in known)
    return sum(held * weight for held, weight in known) / total if total else None


def _held_of(counters: PartitionCounters, work: Work) -> float | None:
    """Return k of one partition, stretched as far as finished answers alone are too short."""
    lengths = counters.lengths
    held = held_tokens(lengths.prompt_mean, lengths.total, lengths.squares)
    if held is None or not lengths.mean or work.length is None:
        return held
    return held * max(1.0, work.length / lengths.mean)


def _answers_per_s(rate: Rate, now: float) -> Figure:
    if not rate.answers or rate.window_s <= 0:
        return unknown("nothing completed in the window", "journal")
    return Figure(rate.answers / rate.window_s, f"journal, last {rate.window_s:.0f} s", now)


def _figure(rate: Rate, now: float) -> Figure:
    if rate.tokens_per_s is None:
        return unknown("nothing completed in the window", "journal")
    return Figure(rate.tokens_per_s, f"journal, last {rate.window_s:.0f} s", now)
