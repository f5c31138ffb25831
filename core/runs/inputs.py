"""The inputs of a run: validated completely before the first request, then read row by row.

An index of ids, files and offsets is kept, never the prompts: a million rows cost about 250 MB.
What cannot be sent is listed with file, line and reason; the caller writes it to skipped.jsonl.
"""

import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.outcomes import DEFAULT_MAX_NEW_TOKENS, ids_outside
from kvctl.core.domain.runfile import InputFormat, PartitionSpec
from kvctl.core.runs.rows import Row, RowReading, RowRejected, decode_object, detect, read_row
from kvctl.core.runs.sources import expand_inputs, needs_spool, plain_lines, unreadable
from kvctl.core.runs.templates import NEEDS_TEMPLATES, Renderer

_SHOWN_DUPLICATES = 5
_MODULUS = 1 << 256


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
    """From 1; in a JSON array the number of the element."""
    reason: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row ready to be sent; exactly one of text and input_ids."""

    id: str
    text: str | None
    input_ids: tuple[int, ...] | None
    sampling: Mapping[str, object]


@dataclass(slots=True)
class PartitionIndex:
    """Where the rows of one partition lie; row numbers count from 0 in input order."""

    spec: PartitionSpec
    facts: ModelFacts
    files: list[Path] = field(default_factory=list)
    """The files rows are read from: inputs, or spools of them."""
    shown: list[Path] = field(default_factory=list)
    """The inputs themselves, for messages."""
    formats: dict[str, InputFormat] = field(default_factory=dict)
    """Detected format of each input file."""
    rows: dict[str, int] = field(default_factory=dict)
    """Row number of each id."""
    skipped: list[Skipped] = field(default_factory=list)
    is_checked: bool = True
    """Rows are rendered and measured; without it only their ids are read."""
    duplicates: list[str] = field(default_factory=list)
    """Ids that come twice, with both lines; an index with any is refused."""
    digest: int = 0
    """Sum of the rows' hashes: the same whatever their order."""
    file_of: "array[int]" = field(default_factory=lambda: array("H"))
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    lines: "array[int]" = field(default_factory=lambda: array("I"))
    _ids: list[str] = field(default_factory=list)
    _open: dict[int, int] = field(default_factory=dict)
    """File descriptors of files rows were read from."""

    def __len__(self) -> int:
        """Return the number of rows that will be sent."""
        return len(self.offsets)

    def id_of(self, row: int) -> str:
        """Return the id of a row."""
        return self._ids[row]

    def load(self, row: int) -> Prompt:
        """Read one row again and make it ready to be sent.

        Raises:
            RowRejected: The file was changed under the run.
            OSError: It cannot be read any more.
        """
        return self._ready(self.row(row))

    def row(self, row: int) -> Row:
        """Read one row again as its file gives it. Raises as `load` does."""
        number = self.file_of[row]
        line = self._read_line(number, self.offsets[row])
        found = read_row(decode_object(line), self._reading(number))
        if found.id != self._ids[row]:
            raise RowRejected(f"{self.shown[number]} was changed while the run goes on")
        return found

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _read_line(self, number: int, offset: int) -> bytes:
        descriptor = self._open.get(number)
        if descriptor is None:
            descriptor = os.open(self.files[number], os.O_RDONLY | os.O_CLOEXEC)
            self._open[number] = descriptor
        size = 8192
        while True:
            data = os.pread(descriptor, size, offset)
            end = data.find(b"\n")
            if end >= 0 or len(data) < size:
                return data if end < 0 else data[:end]
            size *= 4

    def _reading(self, number: int) -> RowReading:
        found = self.formats[str(self.shown[number])]
        return RowReading(self.spec.name, found, self.spec.prompt_key, self.spec.as_chat)

    def _ready(self, row: Row) -> Prompt:
        sampling = {**self.spec.sampling, **row.sampling}
        if row.input_ids is not None:
            return Prompt(row.id, None, row.input_ids, sampling)
        renderer = self.facts.renderer
        if row.messages is not None:
            if renderer is None or not renderer.has_template:
                raise MessagesNeedTemplates(_no_template(self.spec.name, renderer))
            return Prompt(row.id, None, renderer.render(row.messages, row.tools), sampling)
        if renderer is not None and row.text is not None:
            return Prompt(row.id, None, renderer.encode(row.text), sampling)
        return Prompt(row.id, row.text, None, sampling)

    def add_file(self, shown: Path, spool: Path | None) -> None:
        """Index one input file; `spool` is where it is unwrapped to if it has to be.

        Raises:
            RunFileError: It cannot be read, no format fits, or an id comes twice.
        """
        number = len(self.files)
        self.shown.append(shown)
        self.files.append(spool or shown)
        for line_number, offset, line in _numbered(shown, spool):
            if line.strip():
                self._add_line(number, line_number, offset, line)
        self.formats.setdefault(str(shown), self.spec.format)

    def _add_line(self, number: int, line_number: int, offset: int, line: bytes) -> None:
        name = None
        try:
            decoded = decode_object(line)
            name = str(decoded.get("id") or decoded.get("custom_id") or "") or None
            self._note_format(number, decoded)
            row = read_row(decoded, self._reading(number))
            name = row.id
            if self.is_checked:
                self._check(self._ready(row))
        except RowRejected as problem:
            shown = str(self.shown[number])
            self.skipped.append(Skipped(self.spec.name, shown, line_number, str(problem), name))
            return
        first = self.rows.setdefault(row.id, len(self._ids))
        if first != len(self._ids):
            before = f"{self.shown[self.file_of[first]]}:{self.lines[first]}"
            self.duplicates.append(f"{row.id!r} at {before} and {self.shown[number]}:{line_number}")
            return
        self._ids.append(row.id)
        self.file_of.append(number)
        self.offsets.append(offset)
        self.lines.append(line_number)
        self.digest = (self.digest + _hash(line)) % _MODULUS

    def _note_format(self, number: int, decoded: Mapping[str, object]) -> None:
        shown = str(self.shown[number])
        if shown in self.formats:
            return
        found = self.spec.format
        if found is InputFormat.AUTO:
            found = detect(decoded, self.spec.prompt_key)
        self.formats[shown] = found

    def _check(self, prompt: Prompt) -> None:
        if prompt.input_ids is None:
            return
        if outside := ids_outside(prompt.input_ids, self.facts.vocabulary):
            size = self.facts.vocabulary
            raise RowRejected(f"token id {outside[0]} is outside the vocabulary of {size}")
        limit = self.facts.context_tokens
        wanted = prompt.sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
        asked = wanted if isinstance(wanted, int) else 0
        if limit is not None and len(prompt.input_ids) + asked > limit:
            length = len(prompt.input_ids)
            raise RowRejected(
                f"too long: {length} prompt + {asked} max_new_tokens > {limit} tokens of context"
            )


def _no_template(partition: str, renderer: Renderer | None) -> str:
    if renderer is not None:
        return f"{partition}: {renderer.folder} has no chat template: give prompts or input_ids"
    return (
        f"{partition}: messages need a chat template: {NEEDS_TEMPLATES}, "
        "and name the model's folder as `tokenizer` in the run file"
    )


def _hash(line: bytes) -> int:
    return int.from_bytes(hashlib.sha256(line.strip()).digest(), "big")


def _numbered(shown: Path, spool: Path | None) -> Iterator[tuple[int, int, bytes]]:
    if spool is not None:
        yield from _spooled(shown, spool)
        return
    offset = 0
    try:
        with shown.open("rb", buffering=1 << 20) as stream:
            for number, line in enumerate(stream, 1):
                skip = 3 if number == 1 and line.startswith(b"\xef\xbb\xbf") else 0
                yield number, offset + skip, line[skip:].rstrip(b"\r\n")
                offset += len(line)
    except OSError as error:
        raise unreadable(shown, error) from error


def _spooled(shown: Path, spool: Path) -> Iterator[tuple[int, int, bytes]]:
    offset = 0
    with spool.open("wb") as stream:
        for number, line in enumerate(plain_lines(shown), 1):
            stream.write(line + b"\n")
            yield number, offset, line
            offset += len(line) + 1


def index_partition(
    spec: PartitionSpec,
    facts: ModelFacts,
    spool_folder: Path | None,
    *,
    is_checked: bool = True,
) -> PartitionIndex:
    """Read and check every row of a partition.

    Args:
        spec: The partition.
        facts: What rows are checked against.
        spool_folder: Where packed inputs are unwrapped; None: packed rows cannot be loaded later.
        is_checked: Render and measure every row, too; without it only ids are read.

    Raises:
        RunFileError: An input cannot be used as a whole, or ids come twice; in one line.
    """
    index = PartitionIndex(spec, facts, is_checked=is_checked)
    for file in expand_inputs(spec.inputs, spec.name):
        spool = None
        if needs_spool(file):
            name = f"{spec.name}-{len(index.files)}.jsonl".replace(os.sep, "_")
            spool = Path(os.devnull) if spool_folder is None else spool_folder / name
        index.add_file(file, spool)
    if found := index.duplicates:
        shown = "; ".join(found[:_SHOWN_DUPLICATES])
        more = f"; and {len(found) - _SHOWN_DUPLICATES} more" if len(found) > 5 else ""
        raise RunFileError(f"{spec.name}: {len(found)} ids come twice: {shown}{more}")
    return index
