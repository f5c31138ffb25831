"""The rows of a run's inputs, found again one by one at their places in the files.

Ids, files and offsets are kept, never the prompts: a row costs the same whatever its length.
Finding and checking them before the first request is `kvctl.core.runs.inputs.indexing`.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.runs.outcomes import DEFAULT_MAX_NEW_TOKENS, ids_outside
from kvctl.core.domain.runs.run_file import InputFormat, PartitionSpec, Turns
from kvctl.core.runs.inputs.line_files import LineFiles
from kvctl.core.runs.inputs.rows import (
    Row,
    RowReading,
    RowRejected,
    decode_object,
    read_row,
    turn_of,
)
from kvctl.core.runs.inputs.templates import NEEDS_TEMPLATES, Renderer


class MessagesNeedTemplates(RunFileError):
    """There are messages and nothing that can render them."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What inputs are checked against; None is unknown and not checked."""

    renderer: Renderer | None = None
    vocabulary: int | None = None
    """Number of token ids."""
    context_tokens: int | None = None
    """Prompt and answer together."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """One row that will not be sent."""

    partition: str
    file: str
    line: int
    """From 1; in an array or a table the number of the element."""
    reason: str
    id: str | None = None


class Prompt(msgspec.Struct, frozen=True):
    """One row ready to be sent; exactly one of text and input_ids."""

    id: str
    text: str | None
    input_ids: tuple[int, ...] | None
    sampling: Mapping[str, object]


@dataclass(slots=True)
class InputFiles:
    """The files of one entry of the run file; partitions that it is split into share them."""

    read: list[Path] = field(default_factory=list)
    """What rows are read from: inputs, or spools of them."""
    shown: list[Path] = field(default_factory=list)
    """The inputs themselves, for messages."""
    formats: dict[str, InputFormat] = field(default_factory=dict)
    """Detected format of each input file."""
    _lines: LineFiles = field(init=False)

    def __post_init__(self) -> None:
        """Read lines of whatever `read` comes to hold."""
        self._lines = LineFiles(self.read)

    def line(self, number: int, offset: int) -> bytes:
        """Read one line again. Raises OSError if that cannot be done any more."""
        return self._lines.line(number, offset)

    def close(self) -> None:
        """Close the files."""
        self._lines.close()


@dataclass(slots=True)
class PartitionIndex:
    """Where the rows of one partition lie; row numbers count from 0 in input order.

    With `Turns.ALL` every user turn of a conversation is a row, in order.
    """

    spec: PartitionSpec
    facts: ModelFacts
    files: InputFiles = field(default_factory=InputFiles)
    rows: dict[str, int] = field(default_factory=dict)
    """Row number of each id."""
    skipped: list[Skipped] = field(default_factory=list)
    digest: int = 0
    """Sum of the rows' hashes: the same whatever their order."""
    file_of: "array[int]" = field(default_factory=lambda: array("H"))
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    lines: "array[int]" = field(default_factory=lambda: array("I"))
    turns: "array[int]" = field(default_factory=lambda: array("H"))
    """Which turn of its conversation a row is, from 0; empty where rows are whole prompts."""
    ids: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of rows that will be sent."""
        return len(self.offsets)

    @property
    def shown(self) -> list[Path]:
        """The input files."""
        return self.files.shown

    @property
    def formats(self) -> Mapping[str, InputFormat]:
        """Detected format of each input file."""
        return self.files.formats

    @property
    def has_turns(self) -> bool:
        """Whether rows are turns of conversations, each to be made after the one before it."""
        return self.spec.turns is Turns.ALL

    def id_of(self, row: int) -> str:
        """Return the id of a row."""
        return self.ids[row]

    def place_of(self, row: int) -> tuple[str, int]:
        """Return the input file and line of a row."""
        return str(self.shown[self.file_of[row]]), self.lines[row]

    def earlier(self, row: int) -> range:
        """Return the rows of the same conversation that come before a row."""
        return range(row - self.turns[row], row) if self.turns else range(row, row)

    def later(self, row: int) -> range:
        """Return the rows of the same conversation that come after a row."""
        end = row + 1
        while self.turns and end < len(self.turns) and self.turns[end]:
            end += 1
        return range(row + 1, end)

    def load(self, row: int, answers: Sequence[str] = ()) -> Prompt:
        """Read one row again and make it ready to be sent.

        Args:
            row: Its number.
            answers: New answers of the earlier turns of its conversation.

        Raises:
            RowRejected: The file was changed under the run, or the turn has become too long.
            OSError: It cannot be read any more.
        """
        prompt = ready(self.row(row, answers), self.spec, self.facts)
        if answers:
            check(prompt, self.facts)
        return prompt

    def row(self, row: int, answers: Sequence[str] = ()) -> Row:
        """Read one row again as its file gives it. Raises as `load` does."""
        number = self.file_of[row]
        line = self.files.line(number, self.offsets[row])
        how = reading(self.spec, self.formats[str(self.shown[number])])
        found = read_row(decode_object(line), how)
        if self.turns:
            found = turn_of(found, self.turns[row], answers)
        if found.id != self.ids[row]:
            raise RowRejected(f"{self.shown[number]} was changed while the run goes on")
        return found

    def close(self) -> None:
        """Close the files."""
        self.files.close()


def reading(spec: PartitionSpec, found: InputFormat) -> RowReading:
    """Return how the rows of a file of a partition are read."""
    return RowReading(spec.name, found, spec.prompt_key, spec.as_chat, spec.turns)


def ready(row: Row, spec: PartitionSpec, facts: ModelFacts) -> Prompt:
    """Return a row as it is sent.

    Raises:
        RowRejected: The chat template refuses it.
        MessagesNeedTemplates: It is messages and nothing can render them.
    """
    sampling = {**spec.sampling, **row.sampling}
    if row.input_ids is not None:
        return Prompt(row.id, None, row.input_ids, sampling)
    renderer = facts.renderer
    if row.messages is not None:
        if renderer is None or not renderer.has_template:
            raise MessagesNeedTemplates(_no_template(spec.name, renderer))
        return Prompt(row.id, None, renderer.render(row.messages, row.tools), sampling)
    if renderer is not None and row.text is not None:
        return Prompt(row.id, None, renderer.encode(row.text), sampling)
    return Prompt(row.id, row.text, None, sampling)


def check(prompt: Prompt, facts: ModelFacts) -> None:
    """Check a prompt against vocabulary and context.

    Raises:
        RowRejected: An id is outside the one, or it is too long for the other.
    """
    ids = prompt.input_ids
    if ids is None:
        return
    if outside := ids_outside(ids, facts.vocabulary):
        raise RowRejected(f"token id {outside[0]} is outside the vocabulary of {facts.vocabulary}")
    limit = facts.context_tokens
    wanted = prompt.sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    asked = wanted if isinstance(wanted, int) else 0
    if limit is not None and len(ids) + asked > limit:
        raise RowRejected(
            f"too long: {len(ids)} prompt + {asked} max_new_tokens > {limit} tokens of context"
        )


def _no_template(partition: str, renderer: Renderer | None) -> str:
    if renderer is not None:
        return f"{partition}: {renderer.folder} has no chat template: give prompts or input_ids"
    return (
        f"{partition}: messages need a chat template: {NEEDS_TEMPLATES}, "
        "and name the model's folder as `tokenizer` in the run file"
    )
