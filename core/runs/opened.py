"""Everything that is known of a run before its first request; shared by what drives it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvctl.core.domain.runfile import RunSpec
from kvctl.core.runs.counters import Counters, PartitionCounters
from kvctl.core.runs.folder import FolderLock, Settings
from kvctl.core.runs.foreign import DoneElsewhere
from kvctl.core.runs.inputs import ModelFacts, PartitionIndex
from kvctl.core.runs.scan import ScanNotes
from kvctl.core.runs.schedule import Job, Schedule


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

    def lines(self) -> tuple[str, ...]:
        """Return what was found, a line a partition: rows, detected formats, skipped, done."""
        return tuple(
            _partition_line(index, counters)
            for index, counters in zip(self.indexes, self.counters.partitions, strict=True)
        )


def _partition_line(index: PartitionIndex, counters: PartitionCounters) -> str:
    formats = ", ".join(sorted({str(kind) for kind in index.formats.values()}))
    line = f"{index.spec.name}: {len(index):,} rows ({formats}), {counters.done:,} done"
    if index.skipped:
        first = index.skipped[0]
        line += f", {len(index.skipped):,} skipped ({first.file}:{first.line}: {first.reason})"
    return line
