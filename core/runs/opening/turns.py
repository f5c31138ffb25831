"""The new answers that later turns of a conversation are made after, found in the journal.

Only where they lie is kept: 12 bytes a row of partitions that are made turn by turn.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvctl.core.runs.inputs.partition import PartitionIndex
from kvctl.core.runs.inputs.rows import RowRejected
from kvctl.core.runs.outputs.shapes import NotExportable, answer_text, foreign_answer

_NONE = -1


class TurnAnswers:
    """Where the answer of each turn lies."""

    def __init__(self, indexes: Sequence[PartitionIndex]) -> None:
        """Begin with no answers."""
        self._indexes = indexes
        self._files: list[Path] = []
        self._file_of = {
            n: array("i", [_NONE]) * len(index)
            for n, index in enumerate(indexes)
            if index.has_turns
        }
        self._offsets = {n: array("Q", [0]) * len(indexes[n]) for n in self._file_of}

    def has(self, partition: int) -> bool:
        """Whether a partition is made turn by turn."""
        return partition in self._file_of

    def note(self, partition: int, row: int, file: Path, offset: int) -> None:
        """Keep where the answer of a row lies."""
        if partition not in self._file_of:
            return
        if not self._files or self._files[-1] != file:
            self._files.append(file)
        self._file_of[partition][row] = len(self._files) - 1
        self._offsets[partition][row] = offset

    def is_answered(self, partition: int, row: int) -> bool:
        """Whether the answer of a row is known."""
        return self._file_of[partition][row] != _NONE

    def waiting(self, partition: int) -> Iterator[int]:
        """Yield the rows that must wait for an earlier turn of their conversation."""
        is_open = False
        for row, turn in enumerate(self._indexes[partition].turns):
            is_answered = self.is_answered(partition, row)
            if turn and is_open and not is_answered:
                yield row
            is_open = not is_answered or (is_open and turn > 0)

    def next_row(self, partition: int, row: int) -> int | None:
        """Return the row that may be made once a row is answered; None: there is none."""
        if partition not in self._file_of:
            return None
        return next((r for r in self._indexes[partition].later(row)
                     if not self.is_answered(partition, r)), None)  # fmt: skip

    def behind(self, partition: int, row: int) -> int:
        """Return how many rows can only be made after a row."""
        if partition not in self._file_of:
            return 0
        later = self._indexes[partition].later(row)
        return sum(not self.is_answered(partition, r) for r in later)

    def texts(self, partition: int, row: int) -> list[str]:
        """Return the answers of the earlier turns of a row's conversation.

        Raises:
            RowRejected: One is missing or not as it was written.
            OSError: The journal cannot be read.
        """
        if partition not in self._file_of:
            return []
        return [self._text(partition, earlier) for earlier in self._indexes[partition].earlier(row)]

    def _text(self, partition: int, row: int) -> str:
        index = self._indexes[partition]
        name = index.id_of(row)
        if not self.is_answered(partition, row):
            raise RowRejected(f"the answer of its earlier turn {name!r} is not there")
        file = self._files[self._file_of[partition][row]]
        with file.open("rb") as stream:
            stream.seek(self._offsets[partition][row])
            line = stream.readline()
        try:
            answer = foreign_answer(json.loads(line.decode("utf-8", "replace")), index.spec.name)
            if answer.id != name:
                raise ValueError(answer.id)
            return answer_text(answer, index.facts.renderer)
        except (ValueError, NotExportable) as problem:
            said = f"{file}: the answer of its earlier turn {name!r} cannot be used: {problem}"
            raise RowRejected(said) from None
