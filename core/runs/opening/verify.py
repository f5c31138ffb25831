"""Checks a run's output against its inputs: every id exactly once, every file readable.

Only reads; it works on a run that goes on, too. Whether a record is an answer is judged again.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.domain.runs.run_file import RunSpec
from kvctl.core.runs.inputs.partition import ModelFacts, PartitionIndex
from kvctl.core.runs.opening.locating import readable, refuse_attached
from kvctl.core.runs.opening.opening import index_run
from kvctl.core.runs.outputs.folder import MANIFEST, accepted_damage, read_object, read_skipped
from kvctl.core.runs.outputs.foreign import read_done_from
from kvctl.core.runs.outputs.journal import ERRORS, PARTIALS, RESPONSES
from kvctl.core.runs.outputs.records import ErrorHead, PartialHead, WholeResponse, why_not_accepted
from kvctl.core.runs.outputs.scan import Damage, ScanNotes, read_stream

_SHOWN = 20
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What the check found."""

    output: str
    total: int
    """Rows that should have an answer."""
    done: int
    elsewhere: int
    """Answered in a `done_from` file, among `done`."""
    failed: int
    """Rows in errors.jsonl for good."""
    skipped: int
    """Rows of the inputs that cannot be sent."""
    missing: tuple[Key, ...]
    """Rows with neither answer nor failure; the first 20 of `missing_count`."""
    missing_count: int
    duplicates: tuple[Key, ...]
    """Rows with more than one answer; the first 20 of `duplicate_count`."""
    duplicate_count: int
    unknown_count: int
    """Answers of no row of the inputs."""
    damages: tuple[Damage, ...]
    """Lines that cannot be read and were not accepted; the first 20 of `damage_count`."""
    damage_count: int
    accepted_damage_count: int
    """Lines that cannot be read and that the operator left there (`--accept-damage`)."""
    torn: tuple[Damage, ...]
    """Torn last lines; while the run goes on, the line that is being written."""
    bad_records: tuple[str, ...]
    """Whole records that are no accepted answer, one line each."""
    finish: dict[str, int]
    """Answers by finish reason."""
    tokens: int
    set_sha256: str
    """Hash of the sorted (partition, id) of all answers."""

    @property
    def is_exact(self) -> bool:
        """Whether every row has exactly one answer and everything is readable."""
        problems = self.missing_count or self.duplicate_count or self.unknown_count
        unreadable = self.damage_count or self.torn or self.bad_records
        return not (problems or self.failed or unreadable)

    def problem(self) -> str:
        """Return what is wrong in one line, with what does not occur left out."""
        counts = [
            (self.missing_count, "missing"),
            (self.failed, "failed"),
            (self.duplicate_count, "twice"),
            (self.unknown_count, "of no input row"),
            (self.damage_count, "damaged lines"),
            (len(self.torn), "torn last lines"),
            (len(self.bad_records), "records that are no answer"),
        ]
        return ", ".join(f"{count:,} {what}" for count, what in counts if count)

    def lines(self) -> list[str]:
        """Return the report as plain lines, the result first."""
        word = "every id exactly once" if self.is_exact else "NOT complete"
        found = [
            f"{word}: {self.done:,} of {self.total:,} answered, {self.failed:,} failed, "
            f"{self.skipped:,} skipped, {self.missing_count:,} missing, "
            f"{self.duplicate_count:,} twice",
            f"answers by finish reason: {_counts(self.finish)}; {self.tokens:,} output tokens",
            f"sha256 of the set of ids: {self.set_sha256}",
        ]
        if self.accepted_damage_count:
            found.append(
                f"{self.accepted_damage_count:,} damaged lines, accepted with --accept-damage"
            )
        if self.elsewhere:
            found.append(f"{self.elsewhere:,} of them in done_from files")
        if self.unknown_count:
            found.append(f"{self.unknown_count:,} answers belong to no row of the inputs")
        found += _first("missing", map(" ".join, self.missing), self.missing_count)
        found += _first("twice", map(" ".join, self.duplicates), self.duplicate_count)
        found += _first("damaged", map(str, self.damages), self.damage_count)
        found += [f"torn: {tail}; the next start moves it aside" for tail in self.torn]
        return found + [f"bad: {line}" for line in self.bad_records]


def _first(word: str, shown: Iterable[str], count: int) -> list[str]:
    """Return a line for each that is shown, and one for the rest of them."""
    lines = [f"{word}: {text}" for text in shown]
    more = count - len(lines)
    return [*lines, f"{word}: {more:,} more"] if more > 0 else lines


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in sorted(found.items())) or "none"


def verify(spec: RunSpec) -> VerifyReport:
    """Check the output of a run against its inputs, without modifying anything.

    Raises:
        RunFileError: The inputs cannot be read, or the answers are another client's.
        KvctlError: The output cannot be read.
    """
    folder = Path(refuse_attached(spec).output)
    with readable(folder):
        return _verify(folder, spec)


def _verify(folder: Path, spec: RunSpec) -> VerifyReport:
    indexes = index_run(spec, ModelFacts(), None, is_checked=False)
    manifest = read_object(folder / MANIFEST) or {}
    vocabulary = manifest.get("vocabulary")
    notes = ScanNotes()
    check = _Check(
        indexes, read_skipped(folder), vocabulary if isinstance(vocabulary, int) else None
    )
    for line in read_stream(folder, RESPONSES, WholeResponse, notes, keeps_tail=True):
        check.add(line.head, f"{line.file.name} at byte {line.offset}")
    elsewhere = check.add_elsewhere(spec)
    check.add_failed(folder, notes)
    for _ in read_stream(folder, PARTIALS, PartialHead, notes, keeps_tail=True):
        pass
    missing = sorted(check.keys(_MISSING))
    damages = notes.damages_beyond(accepted_damage(manifest))
    return VerifyReport(
        output=spec.output,
        total=check.total,
        done=check.count(_DONE),
        elsewhere=elsewhere,
        failed=check.count(_FAILED),
        skipped=check.count(_SKIPPED) + sum(len(index.skipped) for index in indexes),
        missing=tuple(missing[:_SHOWN]),
        missing_count=len(missing),
        duplicates=tuple(check.twice),
        duplicate_count=check.twice_count,
        unknown_count=check.unknown,
        damages=tuple(damages[:_SHOWN]),
        damage_count=len(damages),
        accepted_damage_count=len(notes.damages) - len(damages),
        torn=tuple(notes.tails),
        bad_records=tuple(check.bad),
        finish=check.finish,
        tokens=check.tokens,
        set_sha256=_set_hash(check.keys(_DONE)),
    )


def _set_hash(keys: Iterable[Key]) -> str:
    digest = hashlib.sha256()
    for partition, name in sorted(keys):
        digest.update(f"{partition}\0{name}\n".encode())
    return digest.hexdigest()


_MISSING, _DONE, _FAILED, _SKIPPED = range(4)


class _Check:
    """Counts accepted answers one by one; of each row only where it stands is kept."""

    def __init__(
        self,
        indexes: list[PartitionIndex],
        skipped: set[tuple[str, int]],
        vocabulary: int | None,
    ) -> None:
        self._indexes, self._vocabulary = indexes, vocabulary
        self._numbers = {index.spec.name: n for n, index in enumerate(indexes)}
        self._states = [bytearray(len(index)) for index in indexes]
        for n, index in enumerate(indexes):
            for row in range(len(index) if skipped else 0):
                if index.place_of(row) in skipped:
                    self._states[n][row] = _SKIPPED
        self.total = self.count(_MISSING)
        self.twice: list[Key] = []
        """The first of them."""
        self.twice_count = self.unknown = self.tokens = 0
        self.bad: list[str] = []
        self.finish: dict[str, int] = {}

    def count(self, state: int) -> int:
        return sum(states.count(state) for states in self._states)

    def keys(self, state: int) -> Iterator[Key]:
        for index, states in zip(self._indexes, self._states, strict=True):
            for row, found in enumerate(states):
                if found == state:
                    yield index.spec.name, index.id_of(row)

    def _place(self, partition: str, name: str) -> tuple[int, int] | None:
        number = self._numbers.get(partition)
        row = None if number is None else self._indexes[number].rows.get(name)
        return None if number is None or row is None else (number, row)

    def add(self, record: WholeResponse, where: str) -> None:
        place = self._place(record.partition, record.id)
        if place is None or self._states[place[0]][place[1]] == _SKIPPED:
            self.unknown += 1
        elif self._states[place[0]][place[1]] == _DONE:
            self.twice_count += 1
            if len(self.twice) < _SHOWN:
                self.twice.append((record.partition, record.id))
        else:
            self._states[place[0]][place[1]] = _DONE
            self.tokens += len(record.output_ids)
        reason = str(record.finish_reason.get("type"))
        self.finish[reason] = self.finish.get(reason, 0) + 1
        if (problem := why_not_accepted(record, self._vocabulary)) and len(self.bad) < _SHOWN:
            self.bad.append(f"{where}: {record.partition} {record.id}: {problem}")

    def add_elsewhere(self, spec: RunSpec) -> int:
        """Take what `done_from` files answer; return how many rows only they do."""
        rows = {index.spec.name: (n, index.rows) for n, index in enumerate(self._indexes)}
        before = self.count(_DONE)
        for number, row in read_done_from(spec.done_from, rows).done:
            if self._states[number][row] == _MISSING:
                self._states[number][row] = _DONE
        return self.count(_DONE) - before

    def add_failed(self, folder: Path, notes: ScanNotes) -> None:
        """Take the rows that failed for good, and the turns that could only follow them."""
        failed: set[tuple[int, int]] = set()
        for line in read_stream(folder, ERRORS, ErrorHead, notes, keeps_tail=True):
            place = self._place(line.head.partition, line.head.id)
            if place is not None and line.head.is_final:
                failed.add(place)
            elif place is not None:
                failed.discard(place)
        for number, row in failed:
            for each in (row, *self._indexes[number].later(row)):
                if self._states[number][each] == _MISSING:
                    self._states[number][each] = _FAILED
