"""index.bin: what a resume needs of every answer, so that it need not read the answers again.

Derived from the data and never trusted over it: a part of the journal whose size, times or inode
are not those that were sealed when its last line was indexed is read again, whole. A torn or
missing index costs time only. Who checks or exports answers reads the data itself.

File: the magic, then blocks of <length, crc32> and a MessagePack array (`_Block`).
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from kvctl.core.runs.outputs.records import ResponseHead

INDEX = "index.bin"
_MAGIC = b"kvctl index 1\n"
_FRAME = struct.Struct("<II")
_BLOCK_ENTRIES = 4096
_GAP = -1

Seal: TypeAlias = tuple[int, int, int, int]
"""Size in bytes, mtime_ns, ctime_ns and inode of a part."""


class Entry(NamedTuple):
    """One accepted answer as a resume needs it."""

    partition: str
    id: str
    offset: int
    """Bytes from the start of its part."""
    tokens: int
    prompt_tokens: int | None
    is_capped: bool
    t_done: float
    """UTC seconds; 0 is not known."""


class Entries(msgspec.Struct, array_like=True):
    """Answers column by column, oldest first; the columns are those of `Entry`."""

    partition: list[str]
    id: list[str]
    offset: list[int]
    tokens: list[int]
    prompt_tokens: list[int | None]
    is_capped: list[bool]
    t_done: list[float]

    def rows(self) -> Iterator[tuple[str, str, int, int, int | None, bool, float]]:
        """Yield the fields of every answer in the order of `Entry`."""
        return zip(
            self.partition,
            self.id,
            self.offset,
            self.tokens,
            self.prompt_tokens,
            self.is_capped,
            self.t_done,
            strict=True,
        )

    def extend(self, heads: Sequence[ResponseHead], offsets: Iterable[int]) -> None:
        """Add answers, each with where it begins."""
        self.partition += [head.partition for head in heads]
        self.id += [head.id for head in heads]
        self.offset += offsets
        self.tokens += [head.completion_tokens for head in heads]
        self.prompt_tokens += [head.prompt_tokens for head in heads]
        self.is_capped += [head.finish_reason.type == "length" for head in heads]
        self.t_done += [head.t_done for head in heads]

    def part(self, start: int, end: int) -> "Entries":
        """Return some of them."""
        return Entries(*(column[start:end] for column in msgspec.structs.astuple(self)))


def no_entries() -> Entries:
    """Return none, to be added to."""
    return Entries([], [], [], [], [], [], [])


class _Block(msgspec.Struct, array_like=True):
    """Entries of one part that follow each other."""

    part: str
    start: int
    end: int
    """Bytes of the part that this block covers."""
    seal: Seal
    entries: msgspec.Raw


_decode_block = msgspec.msgpack.Decoder(_Block).decode
_decode_entries = msgspec.msgpack.Decoder(Entries).decode
_decode_head = msgspec.json.Decoder(ResponseHead).decode


def seal_of(facts: os.stat_result) -> Seal:
    """Return what must be unchanged for a part's entries to hold."""
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


@dataclass(slots=True)
class IndexedPart:
    """The index of one part."""

    seal: Seal
    end: int = 0
    blocks: list[msgspec.Raw] = field(default_factory=list)

    def fits(self, facts: os.stat_result) -> bool:
        """Whether the part is as it was when its last line was indexed."""
        return self.end == facts.st_size and self.seal == seal_of(facts)

    def entries(self) -> Iterator[Entries]:
        """Yield the entries, oldest first, a block at a time."""
        return map(_decode_entries, self.blocks)


@dataclass(slots=True)
class ReadIndex:
    """What could be read of an index file."""

    parts: dict[str, IndexedPart] = field(default_factory=dict)
    """By file name."""
    blocks: int = 0
    is_whole: bool = False
    """Everything in the file could be read, so that it can be appended to."""


def read_index(folder: Path) -> ReadIndex:
    """Read as much of the index as is whole; an unreadable one is empty."""
    found = ReadIndex()
    try:
        data = (folder / INDEX).read_bytes()
    except OSError:
        return found
    if not data.startswith(_MAGIC):
        return found
    at = len(_MAGIC)
    while at + _FRAME.size <= len(data):
        size, crc = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + size]
        if len(payload) < size or zlib.crc32(payload) != crc or not _take(found, payload):
            return found
        at += _FRAME.size + size
    found.is_whole = at == len(data)
    return found


def _take(found: ReadIndex, payload: bytes) -> bool:
    try:
        block = _decode_block(payload)
    except msgspec.MsgspecError:
        return False
    part = found.parts.setdefault(block.part, IndexedPart(block.seal))
    found.blocks += 1
    if block.start != part.end:
        part.end = _GAP  # what lies between was never indexed: this part is read again
        return True
    part.end, part.seal = block.end, block.seal
    part.blocks.append(block.entries)
    return True


def _frame(part: str, start: int, end: int, seal: Seal, entries: msgspec.Raw) -> bytes:
    payload = msgspec.msgpack.encode(_Block(part, start, end, seal, entries))
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def indexed_part(entries: Entries, facts: os.stat_result) -> IndexedPart:
    """Return the index of a part that was just read, whole, and has no damage."""
    return IndexedPart(seal_of(facts), facts.st_size, _blocks(entries))


def compact(part: IndexedPart) -> IndexedPart:
    """Return the same part with its many small blocks joined."""
    joined = no_entries()
    for entries in part.entries():
        for column, more in zip(
            msgspec.structs.astuple(joined), msgspec.structs.astuple(entries), strict=True
        ):
            column += more
    return IndexedPart(part.seal, part.end, _blocks(joined))


def _blocks(entries: Entries) -> list[msgspec.Raw]:
    starts = range(0, len(entries.id), _BLOCK_ENTRIES) or range(1)
    return [
        msgspec.Raw(msgspec.msgpack.encode(entries.part(at, at + _BLOCK_ENTRIES))) for at in starts
    ]


def write_index(folder: Path, parts: Iterable[tuple[str, IndexedPart]]) -> None:
    """Replace the index; where that cannot be done there is none, and the data is read next time.

    It is not synced: after a power failure its CRCs and seals tell what is missing.
    """
    beside = folder / f".{INDEX}.new"
    try:
        with beside.open("wb") as stream:
            stream.write(_MAGIC)
            for name, part in parts:
                last = len(part.blocks) - 1
                start = 0
                for number, block in enumerate(part.blocks):
                    end = part.end if number == last else start
                    stream.write(_frame(name, start, end, part.seal, block))
                    start = end
        beside.replace(folder / INDEX)
    except OSError:
        for file in (beside, folder / INDEX):
            _remove(file)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return  # a stale index is told by its seals


class Indexed(Protocol):
    """A line with what the index holds of it."""

    @property
    def data(self) -> bytes:
        """The line with its end."""

    @property
    def head(self) -> ResponseHead | None:
        """What a reader would find in the line; None: it is read from there."""


@dataclass(slots=True)
class IndexWriter:
    """Appends to the index what was made durable in the journal; never stops the journal."""

    folder: Path
    _descriptor: int | None = None
    _is_broken: bool = False

    def add(self, part: str, start: int, lines: Sequence[Indexed], descriptor: int) -> None:
        """Index whole lines that were just made durable.

        Args:
            part: Name of the file.
            start: Where the first line begins.
            lines: What was written, in order.
            descriptor: Of the part they were written to.
        """
        if self._is_broken:
            return
        try:
            facts = os.fstat(descriptor)
            frame = _frame(part, start, facts.st_size, seal_of(facts), _entries(start, lines))
            if os.write(self._opened(), frame) < len(frame):
                self._is_broken = True  # behind a torn block nothing would be read
        except (OSError, msgspec.MsgspecError):
            self._is_broken = True

    def _opened(self) -> int:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self.folder / INDEX, flags, 0o644)
            if os.fstat(self._descriptor).st_size == 0:
                os.write(self._descriptor, _MAGIC)
        return self._descriptor

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _entries(start: int, lines: Sequence[Indexed]) -> msgspec.Raw:
    entries = no_entries()
    offsets = accumulate((len(line.data) for line in lines[:-1]), initial=start)
    entries.extend([line.head or _decode_head(line.data) for line in lines], offsets)
    return msgspec.Raw(msgspec.msgpack.encode(entries))
