"""Reads a run's journal back into its schedule and counters: done, failed, and begun rows."""

from collections.abc import Mapping

from kvctl.core.runs.foreign import read_done_from
from kvctl.core.runs.journal import ERRORS, PARTIALS, RESPONSES
from kvctl.core.runs.opened import OpenedRun
from kvctl.core.runs.records import ErrorHead, PartialHead, ResponseHead
from kvctl.core.runs.scan import read_stream
from kvctl.core.runs.schedule import Job, PartialAt


def read_back(opened: OpenedRun) -> None:
    """Take out of the schedule what needs no request, and count it.

    The first accepted record of a row wins; what cannot be read goes to the run's notes.
    """
    rows = {index.spec.name: (n, index.rows) for n, index in enumerate(opened.indexes)}
    _read_responses(opened, rows)
    if opened.spec.done_from:
        _read_elsewhere(opened, rows)
    _read_errors(opened, rows)
    _read_partials(opened, rows)


Rows = Mapping[str, tuple[int, dict[str, int]]]


def _place(rows: Rows, partition: str, name: str) -> tuple[int, int] | None:
    number, ids = rows.get(partition, (0, {}))
    row = ids.get(name)
    return None if row is None else (number, row)


def _read_responses(opened: OpenedRun, rows: Rows) -> None:
    counters, lanes = opened.counters, opened.schedule.lanes
    for line in read_stream(opened.folder, RESPONSES, ResponseHead, opened.notes):
        head = line.head
        place = _place(rows, head.partition, head.id)
        if place is None:
            opened.unknown_answers += 1
            continue
        number, row = place
        if lanes[number].taken[row]:
            counters.duplicates += 1
            continue
        opened.schedule.mark_done(number, row)
        opened.schedule.mark_scouted(number, 1)
        capped = head.finish_reason.type == "length"
        counters.accept(number, head.completion_tokens, head.prompt_tokens, capped)
        part = counters.partitions[number]
        part.last_wall = max(part.last_wall or 0.0, head.t_done) or None


def _read_elsewhere(opened: OpenedRun, rows: Rows) -> None:
    found = read_done_from(opened.spec.done_from, rows)
    opened.elsewhere = found
    for number, row in found.done:
        if not opened.schedule.lanes[number].taken[row]:
            opened.schedule.mark_done(number, row)
            opened.counters.partitions[number].done += 1
            opened.counters.partitions[number].elsewhere += 1


def _read_errors(opened: OpenedRun, rows: Rows) -> None:
    for line in read_stream(opened.folder, ERRORS, ErrorHead, opened.notes):
        head = line.head
        place = _place(rows, head.partition, head.id)
        if place is None or opened.schedule.lanes[place[0]].taken[place[1]]:
            continue
        job = Job(*place, attempt=head.attempt + 1, failures=head.counted)
        if head.is_final:
            opened.failed[place] = job
        else:
            opened.failed.pop(place, None)
        opened.tries[place] = job
    for number, row in opened.failed:
        opened.schedule.mark_done(number, row)
        opened.counters.partitions[number].failed += 1


def _read_partials(opened: OpenedRun, rows: Rows) -> None:
    latest: dict[tuple[int, int], PartialAt] = {}
    attempts: dict[tuple[int, int], int] = {}
    for line in read_stream(opened.folder, PARTIALS, PartialHead, opened.notes):
        head = line.head
        place = _place(rows, head.partition, head.id)
        if place is None or opened.schedule.lanes[place[0]].taken[place[1]]:
            continue
        attempts[place] = head.attempt + 1
        at = PartialAt(str(line.file), line.offset, head.n_output, head.numerics)
        # An empty one says that the row starts again.
        if head.n_output:
            latest[place] = at
        else:
            latest.pop(place, None)
    for place, attempt in attempts.items():
        job = opened.tries.setdefault(place, Job(*place))
        job.attempt = max(job.attempt, attempt)
    for place, at in latest.items():
        job = opened.tries[place]
        opened.schedule.add_partial(
            Job(*place, attempt=job.attempt, failures=job.failures, partial=at)
        )
