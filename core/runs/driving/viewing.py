"""Turns what a run has counted into the `Run` that frontends show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvctl.core.domain.capacity.fit import fit, held_tokens
from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.runs.eta import Estimate, Part, estimate, own_work, why_not_known
from kvctl.core.domain.runs.pace import Pace, PaceTrack
from kvctl.core.domain.runs.progress import ROUGH_BELOW, Rate, Work, expected_length
from kvctl.core.domain.runs.run import Partition, PartitionState, Run, RunState
from kvctl.core.domain.runs.run_file import RunSpec
from kvctl.core.runs.driving.pump import Pump
from kvctl.core.runs.driving.remaining import in_order, parts_left, tokens_made, with_paces
from kvctl.core.runs.opening.counters import PartitionCounters
from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.sending.slots import ServerSlots

_DRAIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What the driver knows beside the counters."""

    manual: int | None
    """The operator's number of slots; None is AUTO."""
    auto_target: int | None
    started_at: float
    """Monotonic seconds when this session began to send."""
    track: PaceTrack
    """Of all the run's servers; empty: estimated from what was completed."""
    pool_tokens: int | None
    held: tuple[float, float] | None
    """Tokens in the pools and the running requests that hold them; None: not known."""
    now: float
    """Monotonic seconds."""


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


def view_run(pump: Pump, standing: Standing) -> Run:
    """Return the run as it stands."""
    opened, servers, state = pump.opened, pump.servers, pump.gate.state
    flights = [flight for slots in servers for flight in slots.flights.values()]
    made = tokens_made(opened, flights, standing.held, standing.now)
    parts = parts_left(opened, flights, made)
    works = [_work(opened, n, part) for n, part in enumerate(parts)]
    left = _left(opened, parts, works, standing, is_going_on=_is_going_on(servers, parts, state))
    run = replace(
        _as_driven(pump, standing),
        in_flight_tokens=sum(made.values()),
        in_flight_fixed=sum(flight.is_fixed for flight in flights),
        partitions=tuple(
            _partition(opened, n, work, left.parts[n], standing) for n, work in enumerate(works)
        ),
    )
    run = _with_rates(_counted(run, pump), opened, standing, _held(opened, works))
    return _with_end(run, left, pump.clock.wall())


def _as_driven(pump: Pump, standing: Standing) -> Run:
    servers, gate = pump.servers, pump.gate
    return replace(
        unopened(pump.opened.spec, gate.state, gate.since),
        reason=gate.reason or "; ".join(slots.note for slots in servers if slots.note),
        is_auto=standing.manual is None,
        target=sum(slots.target for slots in servers),
        is_held=_is_held(servers, gate.state),
        auto_target=standing.auto_target,
        in_flight=pump.opened.counters.in_flight,
        servers=tuple(slots.url for slots in servers),
        journal_at=pump.journal.last_durable_at,
        disk_free_bytes=pump.disk_free_bytes,
    )


def _counted(run: Run, pump: Pump) -> Run:
    """Return the run with the sums over its partitions."""
    counters, pending = pump.opened.counters, pump.opened.schedule.partials
    return replace(
        run,
        total=sum(p.total for p in run.partitions),
        done=sum(p.done for p in run.partitions),
        failed=sum(p.failed for p in run.partitions),
        skipped=sum(p.skipped for p in run.partitions),
        tokens=sum(p.tokens for p in run.partitions),
        partials=len(pending),
        partial_tokens=sum(job.partial.tokens for job in pending if job.partial),
        duplicates=counters.duplicates,
        unwritten=sum(p.writing for p in counters.partitions),
    )


def _with_rates(run: Run, opened: OpenedRun, standing: Standing, held: float | None) -> Run:
    completed = opened.counters.window.rate(standing.now, standing.started_at)
    # Before as many answers have ended as are in flight, their length is a guess, and often far
    # too high a one: on an H200 the fit of the first 30 s was half the true one.
    is_turned_over = run.done >= run.in_flight
    return replace(
        run,
        effective_tokens_per_s=_figure(completed, standing.now),
        effective_window_s=completed.window_s or None,
        completed_in_window=completed.answers,
        completed_per_s=_answers_per_s(completed, standing.now),
        mean_answer_s=opened.counters.mean_answer_s,
        held_tokens_mean=held,
        fit_at_mean=fit(standing.pool_tokens, held) if is_turned_over else None,
    )


def _with_end(run: Run, left: "_Left", wall: float) -> Run:
    whole = left.whole
    if whole is None:
        return replace(run, remaining_reason=left.reason)
    return replace(
        run,
        remaining_s=whole.middle_s,
        remaining_low_s=whole.low_s,
        remaining_high_s=whole.high_s,
        remaining_reason=left.reason,
        done_wall=wall + whole.middle_s,
    )


def _partition(
    opened: OpenedRun, number: int, work: Work, left: Estimate | None, standing: Standing
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
        remaining_s=left.middle_s if left else None,
        is_estimate_rough=lengths.count < ROUGH_BELOW,
        weight=opened.schedule.lanes[number].weight,
        max_new_tokens=opened.indexes[number].spec.max_new_tokens,
        done_wall=counters.last_wall if state is PartitionState.DONE else None,
        held_tokens=_held_of(counters, work),
        prompt_tokens=lengths.prompt_mean if lengths.prompt_count else None,
        left_tokens=work.tokens_left,
    )


def _state(opened: OpenedRun, number: int, counters: PartitionCounters) -> PartitionState:
    if counters.done + counters.failed >= counters.total:
        return PartitionState.DONE
    busy = counters.in_flight + counters.writing
    return opened.schedule.state_of(number, in_flight=busy, done=counters.done)


def _is_held(servers: Sequence[ServerSlots], state: RunState) -> bool:
    """Whether nothing new may be sent to any server."""
    if state is RunState.FINISHED:
        return False
    is_quiet = all(slots.is_held or slots.down is not None for slots in servers)
    return state is not RunState.RUNNING or is_quiet


def _is_going_on(servers: Sequence[ServerSlots], parts: list[Part], state: RunState) -> bool:
    """Whether the run gets to its end by itself: it sends, or has sent all that it has."""
    if state is not RunState.RUNNING:
        return state is RunState.FINISHED
    return any(slots.is_open for slots in servers) or not any(part.unsent for part in parts)


def _work(opened: OpenedRun, number: int, part: Part) -> Work:
    counters = opened.counters.partitions[number]
    limit = opened.indexes[number].spec.max_new_tokens
    made = sum(part.begun)
    length = expected_length(counters.lengths, made, limit)
    return Work(max(0, counters.total - counters.done - counters.failed), length, made)


@dataclass(frozen=True, slots=True)
class _Left:
    """When the run and each partition are done; None while that is not known."""

    whole: Estimate | None
    parts: tuple[Estimate | None, ...]
    reason: str = ""
    """Why the whole is not known."""


def _left(
    opened: OpenedRun,
    parts: list[Part],
    works: list[Work],
    standing: Standing,
    *,
    is_going_on: bool,
) -> _Left:
    if not is_going_on:
        return _Left(None, (None,) * len(parts), "nothing is sent now")
    # With nothing left to send fewer and fewer run: only the pace of now says how fast.
    last_s = math.inf if any(part.unsent for part in parts) else _DRAIN_S
    pace = standing.track.pace(last_s) or _pace(opened, works, standing)
    most = math.inf if standing.manual is None else float(standing.manual)
    paced = with_paces(opened, parts, pace, standing.pool_tokens, most)
    whole = estimate(in_order(opened, paced), pace)
    names = [counters.name for counters in opened.counters.partitions]
    reason = "" if whole else why_not_known(dict(zip(names, paced, strict=True)), pace)
    return _Left(whole, tuple(own_work(part, pace) for part in paced), reason)


def _pace(opened: OpenedRun, works: list[Work], standing: Standing) -> Pace | None:
    """Return the pace by what was completed, and is in flight while the run is young."""
    rate = opened.counters.window.rate(standing.now, standing.started_at)
    if rate.tokens_per_s is None:
        return None
    is_young = standing.now - standing.started_at < opened.counters.window.longest_s
    extra = sum(w.tokens_made for w in works) / rate.window_s if is_young else 0.0
    spread = 1.0 / math.sqrt(rate.answers)
    # Little's law: requests at once are those that end in a second times how long each takes.
    at_once = rate.answers / rate.window_s * (opened.counters.mean_answer_s or 0.0)
    return Pace(rate.tokens_per_s + extra, max(1.0, at_once), spread)


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
