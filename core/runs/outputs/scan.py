"""Reads a run's own output back at a start: what is done, failed, and begun.

Strict, unlike `foreign` beside it: kvctl wrote these lines whole, so a bad one means damage. A torn
tail (the end of a file that a crash cut) is moved aside and reported; damage elsewhere stops the
resume with its offset.
"""

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate, islice
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kvctl.core.domain.errors import CommandRefused
from kvctl.core.runs.outputs.index import (
    Entries,
    IndexedPart,
    compact,
    indexed_part,
    no_entries,
    read_index,
    write_index,
)
from kvctl.core.runs.outputs.journal import (
    ERRORS,
    PARTIALS,
    RESPONSES,
    STREAMS,
    fsync_folder,
    part_number,
    part_path,
    parts_of,
)
from kvctl.core.runs.outputs.records import ErrorHead, PartialHead, ResponseHead

H = TypeVar("H")
_NOT_WHOLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class JournalDamaged(CommandRefused):
    """A line inside the journal is not whole."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One line that cannot be read."""

    file: str
    offset: int
    """Bytes from the start of the file."""
    line: int
    """From 1; 0: the whole file."""
    detail: str

    @property
    def place(self) -> str:
        """What it is told by when it is met again."""
        return f"{self.file}@{self.offset}"

    def __str__(self) -> str:
        """Return it in one line."""
        place = f" line {self.line} at byte {self.offset}:" if self.line else ""
        return f"{self.file}:{place} {self.detail}"


@dataclass(frozen=True, slots=True)
class Torn:
    """A torn tail that was moved aside."""

    file: str
    kept_as: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Line(Generic[H]):
    """One whole line, reduced."""

    head: H
    file: Path
    offset: int
    size: int
    """Bytes, line end included."""


@dataclass(slots=True)
class ScanNotes:
    """What a scan met beside whole lines."""

    damages: list[Damage] = field(default_factory=list)
    torn: list[Torn] = field(default_factory=list)
    tails: list[Damage] = field(default_factory=list)
    """Torn last lines of the newest parts, where a scan only looks."""
    blank: int = 0

    def damages_beyond(self, known: Collection[str]) -> list[Damage]:
        """Return the damages at other places than those that were accepted before."""
        return [damage for damage in self.damages if damage.place not in known]


_DECODERS: dict[str, Callable[[bytes], object]] = {
    RESPONSES: msgspec.json.Decoder(ResponseHead).decode,
    ERRORS: msgspec.json.Decoder(ErrorHead).decode,
    PARTIALS: msgspec.json.Decoder(PartialHead).decode,
}


def repair_tails(folder: Path, notes: ScanNotes, *, stamp: str) -> None:
    """Move a torn tail of the newest part of every stream into torn-<stamp>-<stream>.bin.

    Only the last bytes can be torn by a crash: no final line end, or a last line that is not JSON.
    """
    for stream in STREAMS:
        parts = parts_of(folder, stream)
        if parts:
            _repair_tail(parts[-1], stream, stamp, notes)


def _repair_tail(file: Path, stream: str, stamp: str, notes: ScanNotes) -> None:
    with file.open("r+b") as opened:
        good, tail = _good_end(opened.read, file.stat().st_size, opened.seek, stream)
        if not tail:
            return
        aside = file.parent / f"torn-{stamp}-{stream}.bin"
        with aside.open("ab") as kept:
            kept.write(tail)
            kept.flush()
            os.fsync(kept.fileno())
        fsync_folder(file.parent)
        opened.truncate(good)
        opened.flush()
        os.fsync(opened.fileno())
    notes.torn.append(Torn(file.name, aside.name, len(tail)))


def _good_end(
    read: Callable[[int], bytes], size: int, seek: Callable[[int], int], stream: str
) -> tuple[int, bytes]:
    """Return where the whole lines end, and what follows."""
    window = 1 << 16
    while True:
        start = max(0, size - window)
        seek(start)
        data = read(size - start)
        end = data.rfind(b"\n")
        if end < 0 and start > 0:
            window *= 4
            continue
        if end != len(data) - 1:
            return start + end + 1, data[end + 1 :]
        before = data.rfind(b"\n", 0, end)
        if before < 0 and start > 0:
            window *= 4
            continue
        last = data[before + 1 :]
        if not last.strip() or _decodes(stream, last):
            return size, b""
        return start + before + 1, last


def _decodes(stream: str, line: bytes) -> bool:
    try:
        _DECODERS[stream](line)
    except _NOT_WHOLE:
        return False
    return True


def read_stream(
    folder: Path, stream: str, kind: type[H], notes: ScanNotes, *, keeps_tail: bool = False
) -> Iterator[Line[H]]:
    """Yield every whole line of a stream, oldest first; what is not whole goes to the notes.

    Args:
        folder: The output folder.
        stream: One of `STREAMS`.
        kind: What is decoded of each line.
        notes: Takes damage.
        keeps_tail: The last line of the newest part may be torn, or be written just now, and is
            noted as a tail: for those who only look. Without it `repair_tails` went before.
    """
    parts = parts_of(folder, stream)
    _note_gaps(folder, stream, parts, notes)
    for file in parts:
        yield from _read_part(file, kind, notes, keeps_tail=keeps_tail and file == parts[-1])


def _note_gaps(folder: Path, stream: str, parts: list[Path], notes: ScanNotes) -> None:
    there = {part_number(part) for part in parts}
    for number in range(1, max(there, default=1)):
        if number not in there:
            name = part_path(folder, stream, number).name
            notes.damages.append(Damage(name, 0, 0, "this part is missing"))


def _read_part(
    file: Path, kind: type[H], notes: ScanNotes, *, keeps_tail: bool
) -> Iterator[Line[H]]:
    decode = msgspec.json.Decoder(kind).decode
    bad: Damage | None = None
    offset = 0
    with file.open("rb", buffering=1 << 20) as opened:
        for number, line in enumerate(opened, 1):
            if bad is not None:
                notes.damages.append(bad)
            start, offset = offset, offset + len(line)
            head, detail = _read_line(decode, line)
            bad = Damage(file.name, start, number, detail) if detail else None
            if head is not None:
                yield Line(head, file, start, len(line))
            elif bad is None:
                notes.blank += 1
            if not line.endswith(b"\n"):
                break  # the end; what a writer adds meanwhile would look like a line of its own
    if bad is not None:
        (notes.tails if keeps_tail else notes.damages).append(bad)


def read_answers(folder: Path, notes: ScanNotes) -> Iterator[tuple[Path, Entries]]:
    """Yield the run's own answers for a resume, oldest first, with the part that they lie in.

    Parts that are as they were when they were indexed are not read again; the others are, and the
    index is written anew. Only for who holds the folder's lock; `repair_tails` went before.
    """
    known = read_index(folder)
    parts = parts_of(folder, RESPONSES)
    _note_gaps(folder, RESPONSES, parts, notes)
    is_current = known.is_whole and set(known.parts) <= {file.name for file in parts}
    kept: list[tuple[str, IndexedPart]] = []
    for file in parts:
        part = known.parts.get(file.name)
        if part is not None and part.fits(file.stat()):
            for entries in part.entries():
                yield file, entries
        else:
            is_current = False
            before, facts = len(notes.damages), file.stat()
            entries = _entries_of(file, notes)
            yield file, entries
            if len(notes.damages) > before:
                continue  # never indexed: damage must stay in sight
            part = indexed_part(entries, facts)
        kept.append((file.name, part))
    if not is_current or known.blocks > _MANY_BLOCKS:
        write_index(folder, [(name, compact(part)) for name, part in kept])


_MANY_BLOCKS = 10_000
"""A run of one record a second leaves a block for each; beyond this they are joined."""


def _entries_of(file: Path, notes: ScanNotes) -> Entries:
    """Read one part whole."""
    entries = _entries_at_once(file)
    if entries is None:
        entries = no_entries()
        for line in _read_part(file, ResponseHead, notes, keeps_tail=False):
            entries.extend([line.head], [line.offset])
    return entries


_BATCH = 256
"""Lines decoded at once: few enough to be in the processor's cache still."""


def _entries_at_once(file: Path) -> Entries | None:
    """Read one part as fast as can be; None where any line is not whole."""
    decode = msgspec.json.Decoder(ResponseHead).decode
    entries, offset, line = no_entries(), 0, b"\n"
    with file.open("rb", buffering=1 << 18) as opened:
        try:
            while lines := list(islice(opened, _BATCH)):
                starts = list(accumulate(map(len, lines), initial=offset))
                offset, line = starts.pop(), lines[-1]
                entries.extend(list(map(decode, lines)), starts)
        except _NOT_WHOLE:
            return None
    return entries if line.endswith(b"\n") else None


def _read_line(decode: Callable[[bytes], H], line: bytes) -> tuple[H | None, str]:
    """Return what a line holds, or why it is not whole; neither for a blank one."""
    if not line.strip():
        return None, ""
    if not line.endswith(b"\n"):
        return None, "no line end"
    try:
        return decode(line), ""
    except _NOT_WHOLE as error:
        return None, str(error) or type(error).__name__


def refuse_damage(notes: ScanNotes, *, accept: bool, known: Collection[str] = frozenset()) -> None:
    """Stop a resume on damage inside the journal unless it was accepted, now or before (`known`).

    Raises:
        JournalDamaged: With the first place and how many there are.
    """
    found = notes.damages_beyond(known)
    if found and not accept:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise JournalDamaged(
            f"{found[0]}{more}: look at it; --accept-damage leaves it there and makes its row again"
        )


def torn_stamp(wall: float) -> str:
    """Return a time as it stands in the name of a torn file, UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y%m%dT%H%M%SZ")
