"""Checks a run's output against its inputs: every id exactly once, every file readable.

Only reads; it works on a run that goes on, too. Whether a record is an answer is judged again.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.domain.runfile import RunSpec
from kvctl.core.runs.folder import MANIFEST, read_object, read_skipped
from kvctl.core.runs.foreign import read_done_from
from kvctl.core.runs.inputs import ModelFacts, PartitionIndex
from kvctl.core.runs.journal import ERRORS, PARTIALS, RESPONSES
from kvctl.core.runs.locating import readable, refuse_attached
from kvctl.core.runs.opening import index_run
from kvctl.core.runs.records import ErrorHead, PartialHead, WholeResponse, why_not_accepted
from kvctl.core.runs.scan import Damage, ScanNotes, read_stream

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
    """Lines that cannot be read; the first 20 of `damage_count`."""
    damage_count: int
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
        if self.elsewhere:
            found.append(f"{self.elsewhere:,} of them in done_from files")
        if self.unknown_count:
            found.append(f"{self.unknown_count:,} answers belong to no row of the inputs")
        found += [f"missing: {partition} {name}" for partition, name in self.missing]
        found += [f"twice: {partition} {name}" for partition, name in self.duplicates]
        found += [f"damaged: {damage}" for damage in self.damages]
        found += [f"torn: {tail}; the next start moves it aside" for tail in self.torn]
        return found + [f"bad: {line}" for line in self.bad_records]


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
    skipped = read_skipped(folder)
    indexes = index_run(spec, ModelFacts(), None, is_checked=False)
    found = (read_object(folder / MANIFEST) or {}).get("vocabulary")
    notes = ScanNotes()
    check = _Check(indexes, skipped, found if isinstance(found, int) else None)
    for line in read_stream(folder, RESPONSES, WholeResponse, notes, keeps_tail=True):
        check.add(line.head, f"{line.file.name} at byte {line.offset}")
    own = set(check.seen)
    rows = {index.spec.name: (n, index.rows) for n, index in enumerate(indexes)}
    others = {
        (indexes[n].spec.name, indexes[n].id_of(row))
        for n, row in read_done_from(spec.done_from, rows).done
    }
    elsewhere = (others & check.expected) - own
    done = own | elsewhere
    failed = _failed(folder, notes) & check.expected - done
    missing = sorted(check.expected - done - failed)
    for _ in read_stream(folder, PARTIALS, PartialHead, notes, keeps_tail=True):
        pass
    return VerifyReport(
        output=spec.output,
        total=len(check.expected),
        done=len(done),
        elsewhere=len(elsewhere),
        failed=len(failed),
        skipped=check.skipped + sum(len(index.skipped) for index in indexes),
        missing=tuple(missing[:_SHOWN]),
        missing_count=len(missing),
        duplicates=tuple(check.twice[:_SHOWN]),
        duplicate_count=len(check.twice),
        unknown_count=check.unknown,
        damages=tuple(notes.damages[:_SHOWN]),
        damage_count=len(notes.damages),
        torn=tuple(notes.tails),
        bad_records=tuple(check.bad),
        finish=check.finish,
        tokens=check.tokens,
        set_sha256=_set_hash(done),
    )


def _failed(folder: Path, notes: ScanNotes) -> set[Key]:
    failed: set[Key] = set()
    for line in read_stream(folder, ERRORS, ErrorHead, notes, keeps_tail=True):
        key = (line.head.partition, line.head.id)
        if line.head.is_final:
            failed.add(key)
        else:
            failed.discard(key)
    return failed


def _set_hash(keys: set[Key]) -> str:
    digest = hashlib.sha256()
    for partition, name in sorted(keys):
        digest.update(f"{partition}\0{name}\n".encode())
    return digest.hexdigest()


class _Check:
    """Counts accepted answers one by one."""

    def __init__(
        self,
        indexes: list[PartitionIndex],
        skipped: set[tuple[str, int]],
        vocabulary: int | None,
    ) -> None:
        self.vocabulary = vocabulary
        self.expected: set[Key] = set()
        for index in indexes:
            for name, row in index.rows.items():
                place = (str(index.shown[index.file_of[row]]), index.lines[row])
                if place not in skipped:
                    self.expected.add((index.spec.name, name))
        self.skipped = sum(len(index) for index in indexes) - len(self.expected)
        self.seen: set[Key] = set()
        self.twice: list[Key] = []
        self.unknown = self.tokens = 0
        self.bad: list[str] = []
        self.finish: dict[str, int] = {}

    def add(self, record: WholeResponse, where: str) -> None:
        key = (record.partition, record.id)
        if key not in self.expected:
            self.unknown += 1
        elif key in self.seen:
            self.twice.append(key)
        else:
            self.seen.add(key)
            self.tokens += len(record.output_ids)
        reason = str(record.finish_reason.get("type"))
        self.finish[reason] = self.finish.get(reason, 0) + 1
        if (problem := why_not_accepted(record, self.vocabulary)) and len(self.bad) < _SHOWN:
            self.bad.append(f"{where}: {record.partition} {record.id}: {problem}")
