"""What is left of a run, put into the terms of `kvctl.core.domain.runs.eta`."""

from collections.abc import Sequence
from dataclasses import replace

from kvctl.core.domain.capacity.fit import held_tokens
from kvctl.core.domain.runs.eta import Part
from kvctl.core.domain.runs.pace import Pace
from kvctl.core.domain.runs.survival import Survival, survival
from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.sending.slots import Flight

_USAGE = 0.8
"""What a pool holds on average at the least while requests wait for it."""


def tokens_made(
    opened: OpenedRun, flights: Sequence[Flight], held: tuple[float, float] | None, now: float
) -> dict[str, float]:
    """Return the tokens that each request in flight has made so far, by request id.

    By the pools where they tell (`held`: tokens in use and the requests that hold them): the
    requests sent first hold them, each in proportion to its time. Else by time alone.
    """
    sent = sorted((f for f in flights if f.is_sent), key=lambda f: f.started_at)
    speed = opened.counters.speed or 0.0
    if held is None:
        return {f.rid: _capped(opened, f, speed * (now - f.started_at)) for f in sent}
    used, running = held
    decoding = sent[: max(0, round(running))]
    made = {f.rid: float(f.kept_tokens) for f in sent}
    prompts = sum(_prompt_tokens(opened, f) + f.kept_tokens for f in decoding)
    time = sum(now - f.started_at for f in decoding)
    each = max(0.0, used - prompts) / time if time > 0 else 0.0
    for flight in decoding:
        made[flight.rid] = _capped(opened, flight, each * (now - flight.started_at))
    return made


def _prompt_tokens(opened: OpenedRun, flight: Flight) -> float:
    if flight.prompt is not None and flight.prompt.input_ids is not None:
        return float(len(flight.prompt.input_ids))
    return opened.counters.partitions[flight.job.partition].lengths.prompt_mean


def _capped(opened: OpenedRun, flight: Flight, new: float) -> float:
    limit = opened.indexes[flight.job.partition].spec.max_new_tokens
    made = flight.kept_tokens + new
    return made if limit is None else min(made, float(limit))


def parts_left(opened: OpenedRun, flights: Sequence[Flight], made: dict[str, float]) -> list[Part]:
    """Return what is left of each partition, its pace taken as that of now."""
    return [_part(opened, number, flights, made) for number in range(len(opened.indexes))]


def _part(
    opened: OpenedRun, number: int, flights: Sequence[Flight], made: dict[str, float]
) -> Part:
    counters = opened.counters.partitions[number]
    limit = opened.indexes[number].spec.max_new_tokens
    begun = [made[f.rid] for f in flights if f.job.partition == number and f.rid in made]
    begun += [
        float(job.partial.tokens)
        for job in opened.schedule.partials
        if job.partial is not None and job.partition == number
    ]
    left = counters.total - counters.done - counters.failed - counters.writing
    ceiling = None if limit is None else float(limit)
    lengths = survival(counters.lengths.histogram(), begun, ceiling)
    return Part(max(0, left - len(begun)), tuple(begun), lengths)


def in_order(opened: OpenedRun, parts: Sequence[Part]) -> list[Part]:
    """Return the parts as they will run; the one that is open now first."""
    numbers = opened.schedule.in_order()
    return [parts[number] for number in numbers]


def with_paces(
    opened: OpenedRun,
    parts: Sequence[Part],
    pace: Pace | None,
    pool_tokens: int | None,
    most: float,
) -> list[Part]:
    """Return the parts with the pace that the pool will allow each of them, against that of now.

    Args:
        opened: The run.
        parts: By partition.
        pace: As it is now.
        pool_tokens: Of all servers; None is unknown, and leaves everything as it is.
        most: The most requests that may be in flight; infinite where the law sets it.
    """
    if pace is None or pool_tokens is None or pace.used_tokens is None:
        return list(parts)
    # A pool is never as full as it could be: as full as it was, if it was near its ceiling.
    usable = max(pace.used_tokens, _USAGE * pool_tokens)
    counters = opened.counters.partitions
    found = []
    for n, part in enumerate(parts):
        held = _held(counters[n].lengths.prompt_mean, part.lengths)
        if held and part.unsent:
            # AUTO may find more room than it has seen, but that is not to be counted on.
            relative = pace.at(min(most, usable / held, pace.most)) / pace.tokens_per_s
            part = replace(part, relative_pace=relative)
        found.append(part)
    return found


def _held(prompt: float, lengths: Survival | None) -> float | None:
    """Return k: tokens that a running request of such lengths holds on average."""
    if lengths is None:
        return None
    return held_tokens(prompt, lengths.mean, lengths.square[0])
