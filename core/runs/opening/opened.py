"""Everything that is known of a run before its first request; shared by what drives it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvctl.core.domain.runs.run_file import RunSpec
from kvctl.core.runs.inputs.partition import ModelFacts, PartitionIndex, Prompt
from kvctl.core.runs.opening.counters import Counters, PartitionCounters
from kvctl.core.runs.opening.schedule import Job, Schedule
from kvctl.core.runs.opening.turns import TurnAnswers
from kvctl.core.runs.outputs.folder import FolderLock, Settings
from kvctl.core.runs.outputs.foreign import DoneElsewhere
from kvctl.core.runs.outputs.journal import Where
from kvctl.core.runs.outputs.scan import ScanNotes


@dataclass(slots=True)
class OpenedRun:
    """Everything that is known before the first request."""

    spec: RunSpec
    folder: Path
    lock: FolderLock
    run8: str
    """Eight characters that begin every request id of this run."""
    manifest: dict[str, Any]
    facts: ModelFacts
    indexes: list[PartitionIndex]
    schedule: Schedule
    counters: Counters
    settings: Settings
    tries: dict[tuple[int, int], Job] = field(default_factory=dict)
    """Attempts so far of rows that failed at least once."""
    failed: dict[tuple[int, int], Job] = field(default_factory=dict)
    """Rows in errors.jsonl for good."""
    notes: ScanNotes = field(default_factory=ScanNotes)
    elsewhere: DoneElsewhere = field(default_factory=DoneElsewhere)
    unknown_answers: int = 0
    """Answers in the journal whose row is in no input."""
    answers: TurnAnswers = field(init=False)
    """Of partitions that are made turn by turn."""

    def __post_init__(self) -> None:
        """Begin without answers."""
        self.answers = TurnAnswers(self.indexes)

    @property
    def has_turns(self) -> bool:
        """Whether any partition is made turn by turn."""
        return any(index.has_turns for index in self.indexes)

    def load(self, job: Job) -> Prompt:
        """Return the prompt of a row, after the new answers before it. Raises as its index does."""
        answers = self.answers.texts(job.partition, job.row)
        return self.indexes[job.partition].load(job.row, answers)

    def note_answer(self, job: Job, where: Where) -> None:
        """Take an answer that is durable; the next turn of its conversation may be sent now."""
        if not self.answers.has(job.partition):
            return
        self.answers.note(job.partition, job.row, Path(where.file), where.offset)
        following = self.answers.next_row(job.partition, job.row)
        if following is not None:
            self.schedule.requeue(Job(job.partition, following))

    def rows_lost(self, job: Job) -> int:
        """Return how many rows get no answer when one fails: it and the turns after it."""
        return 1 + self.answers.behind(job.partition, job.row)

    def lines(self) -> tuple[str, ...]:
        """Return what was found, a line a partition: rows, done, detected formats, skipped."""
        return tuple(
            _partition_line(index, counters)
            for index, counters in zip(self.indexes, self.counters.partitions, strict=True)
        )


def _partition_line(index: PartitionIndex, counters: PartitionCounters) -> str:
    formats = ", ".join(sorted({str(kind) for kind in index.formats.values()}))
    line = f"{index.spec.name}: {len(index):,} prompts, {counters.done:,} done, read as {formats}"
    if index.skipped:
        first = index.skipped[0]
        line += f", {len(index.skipped):,} skipped ({first.file}:{first.line}: {first.reason})"
    return line
