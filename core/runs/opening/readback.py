"""Reads a run's journal back into its schedule and counters: done, failed, and begun rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.opening.schedule import Job, PartialAt
from kvctl.core.runs.outputs.foreign import answers_elsewhere
from kvctl.core.runs.outputs.journal import ERRORS, PARTIALS
from kvctl.core.runs.outputs.records import ErrorHead, PartialHead
from kvctl.core.runs.outputs.scan import read_answers, read_stream


def read_back(opened: OpenedRun) -> None:
    """Take out of the schedule what needs no request, and count it.

    The first accepted record of a row wins; what cannot be read goes to the run's notes.
    """
    rows = {index.spec.name: (n, index.rows) for n, index in enumerate(opened.indexes)}
    _read_responses(opened, rows)
    if opened.spec.done_from:
        _read_elsewhere(opened, rows)
    _hold_turns(opened)
    _read_errors(opened, rows)
    _read_partials(opened, rows)


def _hold_turns(opened: OpenedRun) -> None:
    """Keep turns back whose conversation has not come to them; an answer before sends them."""
    for number in range(len(opened.indexes)):
        if opened.answers.has(number):
            for row in opened.answers.waiting(number):
                opened.schedule.mark_done(number, row)


Rows = Mapping[str, tuple[int, dict[str, int]]]


def _place(rows: Rows, partition: str, name: str) -> tuple[int, int] | None:
    number, ids = rows.get(partition, (0, {}))
    row = ids.get(name)
    return None if row is None else (number, row)


@dataclass(slots=True)
class _Read:
    """The answers of one partition, as they are read back."""

    ids: Mapping[str, int]
    taken: bytearray
    tokens: list[int] = field(default_factory=list)
    prompt_tokens: list[int | None] = field(default_factory=list)
    capped: int = 0
    latest: float = 0.0


def _read_responses(opened: OpenedRun, rows: Rows) -> None:
    lanes = opened.schedule.lanes
    reads = {name: _Read(ids, lanes[n].taken) for name, (n, ids) in rows.items()}
    unknown = duplicates = 0
    has_turns = opened.has_turns
    for file, entries in read_answers(opened.folder, opened.notes):
        for partition, name, offset, tokens, prompt_tokens, is_capped, t_done in entries.rows():
            read = reads.get(partition)
            row = None if read is None else read.ids.get(name)
            if read is None or row is None:
                unknown += 1
                continue
            if read.taken[row]:
                duplicates += 1
                continue
            read.taken[row] = 1
            read.tokens.append(tokens)
            read.prompt_tokens.append(prompt_tokens)
            read.capped += is_capped
            if t_done > read.latest:
                read.latest = t_done
            if has_turns:
                opened.answers.note(rows[partition][0], row, file, offset)
    opened.unknown_answers += unknown
    opened.counters.duplicates += duplicates
    for number, read in enumerate(reads.values()):
        _count(opened, number, read)


def _count(opened: OpenedRun, number: int, read: _Read) -> None:
    done = len(read.tokens)
    opened.schedule.mark_answered(number, done)
    part = opened.counters.partitions[number]
    part.done += done
    part.capped += read.capped
    part.lengths.add_all(read.tokens, read.prompt_tokens)
    part.last_wall = read.latest or None


def _read_elsewhere(opened: OpenedRun, rows: Rows) -> None:
    found = opened.elsewhere
    for answer in answers_elsewhere(opened.spec.done_from, rows, found):
        number, row = answer.partition, answer.row
        if not opened.schedule.lanes[number].taken[row]:
            opened.schedule.mark_done(number, row)
            opened.answers.note(number, row, answer.file, answer.offset)
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
    for (number, row), job in opened.failed.items():
        opened.schedule.mark_done(number, row)
        opened.counters.partitions[number].failed += opened.rows_lost(job)


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
