"""Reads answers that another client wrote: counted as they are, never modified.

Lenient, byte by byte: blank lines are ignored, glued records and malformed lines are found with
their numbers, a torn last line is told from damage inside, half surrogate pairs are shown as
U+FFFD. Only a good answer counts as done.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.runs.outcomes import ForeignKind, judge_foreign
from kvctl.core.runs.inputs.places import LINE_SUFFIXES
from kvctl.core.runs.outputs.records import whole_text


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not one record."""

    line: int
    """From 1."""
    offset: int
    """Bytes from the start of the file."""
    what: str
    """glued, malformed, not an object, no id, or torn."""


@dataclass(frozen=True, slots=True)
class ForeignRecord:
    """One record that could be read."""

    line: int
    id: str
    partition: str | None
    kind: ForeignKind
    record: Mapping[str, Any]
    offset: int = 0
    """Bytes from the start of the file to its line."""
    is_recovered: bool = False
    """Cut out of a glued line: shown as such, not counted as done."""

    @property
    def is_answer(self) -> bool:
        """Whether its row is done with it.

        kvctl's own records (they carry `v`) count as it would count them: an answer that ended
        at max_new_tokens is an answer.
        """
        is_own = isinstance(self.record.get("v"), int)
        good = {ForeignKind.GOOD, ForeignKind.TRUNCATED} if is_own else {ForeignKind.GOOD}
        return self.kind in good


@dataclass(slots=True)
class ForeignScan:
    """What a foreign file holds."""

    done: list[str] = field(default_factory=list)
    """Ids with a good answer, in file order, each once."""
    duplicates: list[tuple[str, int]] = field(default_factory=list)
    """Good answers beyond the first of their id, with their lines."""
    recovered: list[str] = field(default_factory=list)
    """Ids found whole behind a torn record on the same line."""
    bad: list[BadLine] = field(default_factory=list)
    blank: int = 0
    kinds: dict[ForeignKind, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """Where a foreign record says what it is."""

    id_key: str = "id"
    partition_key: str = "partition"


def read_records(
    file: Path, bad: list[BadLine], keys: ForeignKeys = ForeignKeys()
) -> Iterator[ForeignRecord | None]:
    """Yield the records of a file, None for a blank line; what is no record goes to `bad`.

    Raises:
        RunFileError: The file cannot be read.
    """
    offset = 0
    try:
        with file.open("rb", buffering=1 << 20) as stream:
            for number, line in enumerate(stream, 1):
                start, offset = offset, offset + len(line)
                if not line.strip():
                    yield None
                    continue
                found, what = _read_line(line, number, keys)
                if what:
                    bad.append(BadLine(number, start, what))
                yield from (replace(record, offset=start) for record in found)
    except OSError as error:
        raise RunFileError(f"{file}: cannot be read: {error.strerror}") from error


def _read_line(line: bytes, number: int, keys: ForeignKeys) -> tuple[list[ForeignRecord], str]:
    text = line.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return _read_broken(text, number, keys, is_torn=not line.endswith(b"\n"))
    if "\\ud" in text or "\\uD" in text:
        found = whole_text(found)
    record = _record(found, number, keys)
    if record is None:
        return [], "no id" if isinstance(found, dict) else "not an object"
    return [record], ""


def _read_broken(
    text: str, number: int, keys: ForeignKeys, *, is_torn: bool
) -> tuple[list[ForeignRecord], str]:
    """Look for a whole record behind a torn one on the same line."""
    at = text.find("{", 1)
    while at >= 0:
        try:
            found = json.loads(text[at:])
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            continue
        record = _record(found, number, keys)
        if record is not None:
            return [replace(record, is_recovered=True)], "glued"
        at = text.find("{", at + 1)
    return [], "torn" if is_torn else "malformed"


def _record(found: object, number: int, keys: ForeignKeys) -> ForeignRecord | None:
    if not isinstance(found, dict):
        return None
    name = found.get(keys.id_key)
    if isinstance(name, bool) or not isinstance(name, str | int):
        return None
    partition = found.get(keys.partition_key)
    return ForeignRecord(
        number,
        str(name),
        partition if isinstance(partition, str) else None,
        judge_foreign(found),
        found,
    )


def scan_foreign(file: Path, keys: ForeignKeys = ForeignKeys()) -> ForeignScan:
    """Count a foreign file without modifying it. Raises RunFileError if it cannot be read."""
    scan = ForeignScan()
    seen: set[tuple[str | None, str]] = set()
    for record in read_records(file, scan.bad, keys):
        if record is None:
            scan.blank += 1
            continue
        if record.is_recovered:
            scan.recovered.append(record.id)
            continue
        scan.kinds[record.kind] = scan.kinds.get(record.kind, 0) + 1
        if record.kind is not ForeignKind.GOOD:
            continue
        key = (record.partition, record.id)
        if key in seen:
            scan.duplicates.append((record.id, record.line))
        else:
            seen.add(key)
            scan.done.append(record.id)
    return scan


@dataclass(slots=True)
class DoneElsewhere:
    """Rows that count as done because of answers in other files."""

    done: set[tuple[int, int]] = field(default_factory=set)
    """(partition number, row)."""
    not_good: int = 0
    """Answers that do not count: aborted, empty, truncated, failed."""
    ambiguous: int = 0
    """Answers without a partition whose id is in several."""
    unknown: int = 0
    """Answers of no row of this run."""
    bad_lines: int = 0


Rows = Mapping[str, tuple[int, dict[str, int]]]


def read_done_from(places: Sequence[str], rows: Rows) -> DoneElsewhere:
    """Return the rows of a run that have a good answer in other files or run folders.

    Raises:
        RunFileError: A file is missing or cannot be read.
    """
    found = DoneElsewhere()
    for _ in answers_elsewhere(places, rows, found):
        pass
    return found


@dataclass(frozen=True, slots=True)
class AnswerElsewhere:
    """The first good answer of a row in a `done_from` file."""

    partition: int
    """Its number."""
    row: int
    file: Path
    offset: int
    record: Mapping[str, Any]


def answers_elsewhere(
    places: Sequence[str], rows: Rows, found: DoneElsewhere
) -> Iterator[AnswerElsewhere]:
    """Yield the first good answer of every row; what does not count is counted in `found`.

    Raises:
        RunFileError: A file is missing or cannot be read.
    """
    for place in places:
        for file in _files(Path(place)):
            bad: list[BadLine] = []
            for record in read_records(file, bad):
                if record is None or record.is_recovered:
                    continue
                hit = _row_of(record, rows, found)
                if hit is not None and hit not in found.done:
                    found.done.add(hit)
                    yield AnswerElsewhere(*hit, file, record.offset, record.record)
            found.bad_lines += len(bad)


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        files = sorted(place.glob("raw_responses*.jsonl"), key=lambda f: (len(f.name), f.name))
        files = files or sorted(f for f in place.iterdir() if f.suffix in LINE_SUFFIXES)
    else:
        files = [place]
    if not files:
        raise RunFileError(f"{place}: done_from holds no answers: correct the run file")
    return files


def _row_of(record: ForeignRecord, rows: Rows, found: DoneElsewhere) -> tuple[int, int] | None:
    if not record.is_answer:
        found.not_good += 1
        return None
    names = [record.partition] if record.partition is not None else list(rows)
    hits = [
        (rows[n][0], rows[n][1][record.id]) for n in names if n in rows if record.id in rows[n][1]
    ]
    if len(hits) == 1:
        return hits[0]
    if hits:
        found.ambiguous += 1
    else:
        found.unknown += 1
    return None
