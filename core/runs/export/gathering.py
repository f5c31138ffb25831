"""Finds the answers that are exported: the first accepted record of every row, and where it lies.

Only offsets are kept (10 bytes a row), so that a journal of any size can be put in order.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvctl.core.runs.export.where import Where
from kvctl.core.runs.inputs.partition import PartitionIndex
from kvctl.core.runs.outputs.foreign import AnswerElsewhere, DoneElsewhere, answers_elsewhere
from kvctl.core.runs.outputs.journal import RESPONSES
from kvctl.core.runs.outputs.records import WholeResponse, why_not_accepted
from kvctl.core.runs.outputs.scan import Line, ScanNotes, read_stream

_NONE, _LEFT_OUT = -1, -2
_SHOWN = 20


class JournalAnswer(WholeResponse):
    """An accepted answer with the fields that a condition can name."""

    attempt: object = None
    cached_tokens: object = None
    e2e_latency: object = None
    t_submit: object = None
    t_done: object = None
    server: object = None
    launch: object = None
    model: object = None
    weight_version: object = None
    segments: object = None


@dataclass(slots=True)
class Lane:
    """The rows of one partition in the order they are exported."""

    name: str
    rows: dict[str, int]
    """Place of each id."""
    index: PartitionIndex | None = None
    """The inputs; None: the order is that of the journal."""
    total: int | None = None
    """Rows that should have an answer; None: not known without the inputs."""
    answered: int = 0
    chosen: int = 0
    """Answers that pass the condition."""
    files: "array[int]" = field(default_factory=lambda: array("i"))
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))

    def __post_init__(self) -> None:
        """Make room for the rows that are known."""
        for _ in range(len(self.rows)):
            self._grow()

    def _grow(self) -> None:
        self.files.append(_NONE)
        self.offsets.append(0)

    def place(self, name: str) -> int | None:
        """Return the row of an id; None if there is none."""
        if self.index is not None:
            return self.rows.get(name)
        row = self.rows.setdefault(name, len(self.rows))
        if row == len(self.files):
            self._grow()
        return row

    def is_answered(self, row: int) -> bool:
        """Whether an accepted record of the row was met."""
        return self.files[row] != _NONE

    def take(self, row: int, file: int, offset: int, *, is_chosen: bool) -> None:
        """Keep where the row's answer lies."""
        self.answered += 1
        self.chosen += is_chosen
        self.files[row] = file if is_chosen else _LEFT_OUT - file
        self.offsets[row] = offset

    def place_of(self, row: int) -> tuple[int, int] | None:
        """Return file number and offset of a row's answer, chosen or not; None: it has none."""
        file = self.files[row]
        if file == _NONE:
            return None
        return file if file >= 0 else _LEFT_OUT - file, self.offsets[row]

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Yield (row, number of the file, offset) of every chosen answer, in order."""
        for row, file in enumerate(self.files):
            if file >= 0:
                yield row, file, self.offsets[row]


@dataclass(slots=True)
class Gathered:
    """What is exported and what is left out."""

    lanes: dict[str, Lane]
    """By partition, in the order they are exported."""
    files: list[Path] = field(default_factory=list)
    """By number."""
    own_files: int = 0
    """How many of them are the run's own parts; the others are `done_from` files."""
    duplicates: int = 0
    filtered: int = 0
    """Answers that the condition leaves out."""
    elsewhere: int = 0
    """Chosen answers from `done_from` files."""
    unknown: int = 0
    """Records of no row of the inputs."""
    bad: list[str] = field(default_factory=list)
    """The first whole records that are no accepted answer, one line each."""
    bad_count: int = 0
    notes: ScanNotes = field(default_factory=ScanNotes)

    def file_number(self, file: Path) -> int:
        """Return the number of a file, which is usually the last one."""
        if not self.files or self.files[-1] != file:
            self.files.append(file)
        return len(self.files) - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """Which answers are meant."""

    partitions: frozenset[str] | None
    """None: all."""
    where: Where | None
    vocabulary: int | None
    """Number of token ids; None is not checked."""

    def includes(self, partition: str) -> bool:
        """Whether answers of a partition are exported."""
        return self.partitions is None or partition in self.partitions


def gather_own(folder: Path, choice: Choice, found: Gathered, *, is_open: bool) -> None:
    """Find the first accepted record of every row in the run's own journal.

    Args:
        folder: The output folder.
        choice: Which answers are meant.
        found: Takes them.
        is_open: Partitions that are not known yet are added as they are met.
    """
    for line in read_stream(folder, RESPONSES, JournalAnswer, found.notes, keeps_tail=True):
        answer = line.head
        if not choice.includes(answer.partition):
            continue
        lane = found.lanes.get(answer.partition)
        if lane is None and is_open:
            lane = found.lanes[answer.partition] = Lane(answer.partition, {})
        if lane is None or (row := lane.place(answer.id)) is None:
            found.unknown += 1
        elif problem := why_not_accepted(answer, choice.vocabulary):
            _note_bad(line, problem, found)
        elif lane.is_answered(row):
            found.duplicates += 1
        else:
            is_chosen = choice.where is None or choice.where(own_fields(answer))
            found.filtered += not is_chosen
            lane.take(row, found.file_number(line.file), line.offset, is_chosen=is_chosen)
    found.own_files = len(found.files)


def _note_bad(line: Line[JournalAnswer], problem: str, found: Gathered) -> None:
    answer, at = line.head, f"{line.file.name} at byte {line.offset}"
    found.bad_count += 1
    if len(found.bad) < _SHOWN:
        found.bad.append(f"{at}: {answer.partition} {answer.id}: {problem}")


def gather_elsewhere(places: Sequence[str], choice: Choice, found: Gathered) -> None:
    """Find the answers of `done_from` files whose rows the run itself did not answer.

    Raises:
        RunFileError: A file is missing or cannot be read.
    """
    lanes = list(found.lanes.values())
    rows = {lane.name: (number, lane.rows) for number, lane in enumerate(lanes)}
    for answer in answers_elsewhere(places, rows, DoneElsewhere()):
        lane = lanes[answer.partition]
        if lane.is_answered(answer.row):
            continue
        fields = foreign_fields(answer, lane.name)
        is_chosen = choice.where is None or choice.where(fields)
        found.filtered += not is_chosen
        found.elsewhere += is_chosen
        number = found.file_number(answer.file)
        lane.take(answer.row, number, answer.offset, is_chosen=is_chosen)


def own_fields(answer: JournalAnswer) -> dict[str, object]:
    """Return the fields of a record of kvctl's own that a condition can name."""
    segments = answer.segments
    return {
        "id": answer.id,
        "partition": answer.partition,
        "finish": answer.finish_reason.get("type"),
        "server": answer.server,
        "launch": answer.launch,
        "model": answer.model,
        "weight_version": answer.weight_version,
        "source": "run",
        "attempt": answer.attempt,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "cached_tokens": answer.cached_tokens,
        "e2e_latency": answer.e2e_latency,
        "t_submit": answer.t_submit,
        "t_done": answer.t_done,
        "segments": len(segments) if isinstance(segments, list) and segments else 1,
    }


_SAME_NAME = (
    "server",
    "launch",
    "model",
    "weight_version",
    "attempt",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "e2e_latency",
    "t_submit",
    "t_done",
)


def foreign_fields(answer: AnswerElsewhere, partition: str) -> dict[str, object]:
    """Return the same of another client's record; what it does not say is None."""
    record = answer.record
    meta = record.get("meta_info")
    beside: Mapping[str, object] = meta if isinstance(meta, Mapping) else {}
    fields = {name: record.get(name, beside.get(name)) for name in _SAME_NAME}
    finish = record.get("finish_reason", beside.get("finish_reason"))
    ids = record.get("output_ids")
    if fields["completion_tokens"] is None and isinstance(ids, list):
        fields["completion_tokens"] = len(ids)
    segments = record.get("segments")
    return {
        **fields,
        "id": str(record.get("id")),
        "partition": partition,
        "finish": finish.get("type") if isinstance(finish, Mapping) else finish,
        "source": "done_from",
        "segments": len(segments) if isinstance(segments, list) and segments else 1,
    }
