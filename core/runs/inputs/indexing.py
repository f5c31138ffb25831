"""Reads and checks every row of a run's inputs before the first request.

One entry of the run file becomes one partition, or as many as its files or a column name. What
cannot be sent is listed with file, line and reason; the caller writes it to skipped.jsonl.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.runs.run_file import InputFormat, PartitionSettings, PartitionSpec
from kvctl.core.runs.inputs.partition import (
    InputFiles,
    ModelFacts,
    PartitionIndex,
    Skipped,
    check,
    reading,
    ready,
)
from kvctl.core.runs.inputs.places import expand_inputs, partition_name
from kvctl.core.runs.inputs.rows import (
    Row,
    RowReading,
    RowRejected,
    count_turns,
    decode_object,
    detect,
    read_row,
    turn_of,
)
from kvctl.core.runs.inputs.sources import (
    MOST_ROW_BYTES,
    Wrapping,
    bounded_lines,
    plain_lines,
    unreadable,
    wrapping_of,
)

_SHOWN_DUPLICATES = 5
_MODULUS = 1 << 256
_MOST_PARTITIONS = 1000
_MOST_FILES = 1 << 16
_MOST_TURNS = 1 << 16
_NO_ANSWER = "."
"""Stands for an answer that is not there yet, where a whole conversation is checked."""


def index_entry(
    spec: PartitionSpec,
    facts: ModelFacts,
    spool_folder: Path | None,
    *,
    settings: Mapping[str, PartitionSettings] | None = None,
    is_checked: bool = True,
) -> list[PartitionIndex]:
    """Read and check every row of one entry of the run file.

    Args:
        spec: The entry.
        facts: What rows are checked against.
        spool_folder: Where wrapped inputs are unwrapped; None: their rows cannot be loaded later.
        settings: Weights and sampling by the names that an entry is split into.
        is_checked: Render and measure every row, too; without it only ids are read.

    Returns:
        Its partitions, in the order in which they were met.

    Raises:
        RunFileError: An input cannot be used as a whole, or ids come twice; in one line.
    """
    files = expand_inputs(spec.inputs, spec.name or "partition")
    if len(files) >= _MOST_FILES:
        raise RunFileError(f"{spec.name or 'partition'}: more than {_MOST_FILES:,} input files")
    builder = _Builder(spec, facts, spool_folder, settings or {}, is_checked)
    for file in files:
        builder.add_file(file)
    builder.list_unassigned()
    for built in builder.partitions.values():
        built.refuse_duplicates()
    return [built.index for built in builder.partitions.values()]


class _Place(NamedTuple):
    """Where a line stands."""

    number: int
    """Of its file."""
    line_number: int
    offset: int


@dataclass(slots=True)
class _Built:
    """One partition that is being indexed."""

    index: PartitionIndex
    duplicates: list[str] = field(default_factory=list)
    """The first ids that come twice, with both lines."""
    duplicate_count: int = 0

    def add(self, row: Row, place: _Place) -> None:
        """Take a row, or each turn of a conversation."""
        if not self.index.has_turns or row.messages is None:
            self._add(row.id, place, 0)
            return
        turns = count_turns(row)
        if turns >= _MOST_TURNS:
            raise RowRejected(f"more than {_MOST_TURNS:,} turns")
        for turn in range(turns):
            self._add(turn_of(row, turn, ()).id, place, turn)

    def _add(self, name: str, place: _Place, turn: int) -> None:
        index = self.index
        first = index.rows.setdefault(name, len(index.ids))
        if first != len(index.ids):
            self.duplicate_count += 1
            if len(self.duplicates) < _SHOWN_DUPLICATES:
                file, line = index.place_of(first)
                here = f"{index.shown[place.number]}:{place.line_number}"
                self.duplicates.append(f"{_short(name)} at {file}:{line} and {here}")
            return
        index.ids.append(name)
        index.file_of.append(place.number)
        index.offsets.append(place.offset)
        index.lines.append(place.line_number)
        if index.has_turns:
            index.turns.append(turn)

    def refuse_duplicates(self) -> None:
        if self.duplicate_count:
            more = self.duplicate_count - len(self.duplicates)
            shown = "; ".join(self.duplicates) + (f"; and {more} more" if more else "")
            name = self.index.spec.name
            raise RunFileError(f"{name}: {self.duplicate_count} ids come twice: {shown}")


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:79] + "…")


class _Builder:
    """Indexes the files of one entry."""

    def __init__(
        self,
        spec: PartitionSpec,
        facts: ModelFacts,
        spool_folder: Path | None,
        settings: Mapping[str, PartitionSettings],
        is_checked: bool,
    ) -> None:
        self.partitions: dict[str, _Built] = {}
        self._spec, self._facts, self._spool_folder = spec, facts, spool_folder
        self._settings, self._is_checked = settings, is_checked
        self._files = InputFiles()
        self._unassigned: list[Skipped] = []
        self._how: dict[tuple[int, str], RowReading] = {}
        """How the rows of a file and partition are read."""
        if not spec.is_split:
            self._partition(spec.name)

    def add_file(self, shown: Path) -> None:
        wrapping = wrapping_of(shown)
        spool = None if wrapping is Wrapping.LINES else self._spool(len(self._files.read))
        number = len(self._files.read)
        self._files.shown.append(shown)
        self._files.read.append(spool or shown)
        by_file = self._partition(partition_name(shown)) if self._spec.by_file else None
        for line_number, offset, line in _numbered(shown, wrapping, spool):
            place = _Place(number, line_number, offset)
            if line is None:
                self._skip(place, f"longer than {MOST_ROW_BYTES >> 20} MiB", None, by_file)
            elif line and not line.isspace():
                self._add_line(place, line, by_file)
        self._files.formats.setdefault(str(shown), self._spec.format)

    def _spool(self, number: int) -> Path:
        if self._spool_folder is None:
            return Path(os.devnull)
        # Two names may differ only in what a file name cannot hold.
        entry = repr((self._spec.name, self._spec.inputs)).encode("utf-8", "replace")
        return self._spool_folder / f"{hashlib.sha256(entry).hexdigest()[:16]}-{number}.jsonl"

    def _add_line(self, place: _Place, line: bytes, built: _Built | None) -> None:
        name = None
        built = built or self.partitions.get(self._spec.name)
        try:
            decoded = decode_object(line)
            name = str(decoded.get("id") or decoded.get("custom_id") or "") or None
            built = built or self._partition_of(decoded)
            spec = built.index.spec
            how = self._how.get((place.number, spec.name))
            if how is None:
                how = self._how[place.number, spec.name] = self._reading(place, spec, decoded)
            row = read_row(decoded, how)
            name = row.id
            if self._is_checked:
                self._check(row, spec)
            built.add(row, place)
        except RowRejected as problem:
            self._skip(place, str(problem), name, built)
            return
        built.index.digest = (built.index.digest + _hash(line)) % _MODULUS

    def _check(self, row: Row, spec: PartitionSpec) -> None:
        turns = count_turns(row) if row.messages is not None else 0
        if spec.turns is spec.turns.ALL and turns:
            # The last turn holds the others: what is too long before its answers stays so.
            row = turn_of(row, turns - 1, [_NO_ANSWER] * (turns - 1))
        check(ready(row, spec, self._facts), self._facts)

    def _skip(self, place: _Place, reason: str, name: str | None, built: _Built | None) -> None:
        file, partition = str(self._files.shown[place.number]), self._spec.name
        if built is not None:
            partition = built.index.spec.name
        skipped = Skipped(partition, file, place.line_number, reason, name)
        (self._unassigned if built is None else built.index.skipped).append(skipped)

    def list_unassigned(self) -> None:
        """List rows that name no partition with the first one.

        Raises:
            RunFileError: No row names one.
        """
        if not self._unassigned:
            return
        first = self._unassigned[0]
        if not self.partitions:
            raise RunFileError(f"no row can be used: {first.file}:{first.line}: {first.reason}")
        built = next(iter(self.partitions.values()))
        built.index.skipped += [
            replace(row, partition=built.index.spec.name) for row in self._unassigned
        ]

    def _reading(
        self, place: _Place, spec: PartitionSpec, decoded: Mapping[str, Any]
    ) -> RowReading:
        shown = str(self._files.shown[place.number])
        found = self._files.formats.get(shown)
        if found is None:
            found = spec.format
            if found is InputFormat.AUTO:
                found = detect(decoded, spec.prompt_key)
            self._files.formats[shown] = found
        return reading(spec, found)

    def _partition_of(self, decoded: Mapping[str, Any]) -> _Built:
        column = self._spec.by_column or ""
        value = decoded.get(column)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise RowRejected(f"no partition under {column!r}")
        return self._partition(str(value))

    def _partition(self, name: str) -> _Built:
        built = self.partitions.get(name)
        if built is None:
            if len(self.partitions) >= _MOST_PARTITIONS:
                raise RunFileError(
                    f"more than {_MOST_PARTITIONS:,} partitions by "
                    f"{self._spec.by_column or 'file'}: is that what names them?"
                )
            spec = _named(self._spec, name, self._settings.get(name))
            built = self.partitions[name] = _Built(PartitionIndex(spec, self._facts, self._files))
        return built


def _named(spec: PartitionSpec, name: str, given: PartitionSettings | None) -> PartitionSpec:
    if not spec.is_split:
        return spec
    if given is None:
        return replace(spec, name=name)
    weight = spec.weight if given.weight is None else given.weight
    return replace(spec, name=name, weight=weight, sampling={**spec.sampling, **given.sampling})


def _hash(line: bytes) -> int:
    return int.from_bytes(hashlib.sha256(line.strip()).digest(), "big")


def _numbered(
    shown: Path, wrapping: Wrapping, spool: Path | None
) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield number from 1, offset in what is read later, and every line; None is too long."""
    if spool is not None:
        yield from _spooled(shown, wrapping, spool)
        return
    offset = 0
    try:
        with shown.open("rb", buffering=1 << 20) as stream:
            for number, (size, line) in enumerate(bounded_lines(stream), 1):
                skip = 3 if number == 1 and line and line.startswith(b"\xef\xbb\xbf") else 0
                yield number, offset + skip, line[skip:].rstrip(b"\r\n") if line else line
                offset += size
    except OSError as error:
        raise unreadable(shown, error) from error


def _spooled(
    shown: Path, wrapping: Wrapping, spool: Path
) -> Iterator[tuple[int, int, bytes | None]]:
    offset = 0
    with spool.open("wb") as stream:
        for number, line in enumerate(plain_lines(shown, wrapping), 1):
            yield number, offset, line
            if line is not None:
                stream.write(line + b"\n")
                offset += len(line) + 1
