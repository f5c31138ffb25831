"""Reads a run's own output back at a start: what is done, failed, and begun.

Strict, unlike `kvctl.core.runs.foreign`: kvctl wrote these lines whole, so a bad one means damage.
A torn tail (the end of a file that a crash cut) is moved aside and reported; damage elsewhere
stops the resume with its offset.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kvctl.core.domain.errors import CommandRefused
from kvctl.core.runs.journal import ERRORS, PARTIALS, RESPONSES, STREAMS, fsync_folder, parts_of
from kvctl.core.runs.records import ErrorHead, PartialHead, ResponseHead

H = TypeVar("H")


class JournalDamaged(CommandRefused):
    """A line inside the journal is not whole."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One line that cannot be read."""

    file: str
    offset: int
    """Bytes from the start of the file."""
    line: int
    """From 1."""
    detail: str

    def __str__(self) -> str:
        """Return it in one line."""
        return f"{self.file}: line {self.line} at byte {self.offset}: {self.detail}"


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
    except (msgspec.MsgspecError, UnicodeDecodeError):
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
    decode = msgspec.json.Decoder(kind).decode
    parts = parts_of(folder, stream)
    for file in parts:
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
            is_tail = keeps_tail and file == parts[-1]
            (notes.tails if is_tail else notes.damages).append(bad)


def _read_line(decode: Callable[[bytes], H], line: bytes) -> tuple[H | None, str]:
    """Return what a line holds, or why it is not whole; neither for a blank one."""
    if not line.strip():
        return None, ""
    if not line.endswith(b"\n"):
        return None, "no line end"
    try:
        return decode(line), ""
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return None, str(error) or type(error).__name__


def refuse_damage(notes: ScanNotes, *, accept: bool) -> None:
    """Stop a resume on damage inside the journal unless it was accepted.

    Raises:
        JournalDamaged: With the first place and how many there are.
    """
    if notes.damages and not accept:
        more = f" (and {len(notes.damages) - 1} more)" if len(notes.damages) > 1 else ""
        raise JournalDamaged(
            f"{notes.damages[0]}{more}: look at it; --accept-damage leaves it there and makes "
            "its row again"
        )


def torn_stamp(wall: float) -> str:
    """Return a time as it stands in the name of a torn file, UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y%m%dT%H%M%SZ")
