"""The journal: a run's output files, written so that nothing accepted is lost or torn.

One writer, one descriptor a file (O_APPEND), one write a batch of whole lines, fsync at most ten
times a second; a record counts only after its fsync. When the disk refuses, the file is cut back
to what is durable and the records stay in memory until they fit. It reads nothing back:
resuming is `kvctl.core.runs.outputs.scan`.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from kvctl.core.clock import Clock
from kvctl.core.domain.errors import KvctlError
from kvctl.core.runs.outputs.index import IndexWriter
from kvctl.core.runs.outputs.records import ResponseHead

RESPONSES, ERRORS, PARTIALS = "raw_responses", "errors", "partials"
STREAMS = (RESPONSES, ERRORS, PARTIALS)
_PART_BYTES = 1 << 30
_MOST_LINES = 1024
"""IOV_MAX of Linux."""
_GROUP_S = 0.1
_RETRY_S = 5.0

T = TypeVar("T")


class Offload(Protocol):
    """Runs blocking work off the event loop."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Return what the work returns."""


class DiskTrouble(KvctlError):
    """The output cannot be written; what was not written stays in memory."""


async def in_thread(work: Callable[[], T], /) -> T:
    """Run blocking work in a thread, as the default way to keep it off the event loop."""
    return await asyncio.to_thread(work)


def part_path(folder: Path, stream: str, number: int) -> Path:
    """Return the path of a numbered part; the first has no number."""
    return folder / (f"{stream}.jsonl" if number == 1 else f"{stream}.{number:04d}.jsonl")


def parts_of(folder: Path, stream: str) -> list[Path]:
    """Return the parts of a stream that are there, oldest first."""
    first = [p for p in [part_path(folder, stream, 1)] if p.exists()]
    return first + sorted(folder.glob(f"{stream}.[0-9][0-9][0-9][0-9].jsonl"))


def part_number(part: Path) -> int:
    """Return the number of a part, from 1."""
    number = part.name.split(".")[-2]
    return int(number) if number.isdigit() else 1


@dataclass(frozen=True, slots=True)
class Where:
    """Where a durable line begins."""

    file: str
    offset: int


@dataclass(slots=True)
class _Line:
    stream: str
    data: bytes
    head: ResponseHead | None
    durable: "asyncio.Future[Where]"


@dataclass(slots=True)
class _Part:
    """The part of a stream that is written now."""

    folder: Path
    stream: str
    number: int
    limit_bytes: int
    index: IndexWriter | None = None
    """Takes what became durable; None: this stream is not indexed."""
    descriptor: int | None = None
    durable_bytes: int = 0
    cut_to: int | None = None
    """Where the file must end before anything is appended; None: it ends with a whole line."""
    is_named: bool = True
    """The file's name is durable."""

    def write(self, lines: list[_Line]) -> list[Where]:
        """Append whole lines and fsync; return where they begin. Raises OSError, file repaired."""
        try:
            descriptor = self._opened()
            _write_all(descriptor, [line.data for line in lines])
            os.fsync(descriptor)
        except OSError:
            self._cut_back()
            raise
        path = part_path(self.folder, self.stream, self.number)
        if self.index is not None:
            self.index.add(path.name, self.durable_bytes, lines, descriptor)
        places = []
        for line in lines:
            places.append(Where(str(path), self.durable_bytes))
            self.durable_bytes += len(line.data)
        return places

    def _opened(self) -> int:
        if self.descriptor is not None and self.durable_bytes >= self.limit_bytes:
            self.close()
            self.number, self.durable_bytes = self.number + 1, 0
        if self.descriptor is None:
            path = part_path(self.folder, self.stream, self.number)
            if not path.exists():
                self.cut_to, self.is_named = None, False
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self.descriptor = os.open(path, flags, 0o644)
            if self.cut_to is None:
                self.durable_bytes = os.fstat(self.descriptor).st_size
            self._cut(self.descriptor)
        if not self.is_named:
            fsync_folder(self.folder)
            self.is_named = True
        return self.descriptor

    def _cut(self, descriptor: int) -> None:
        if self.cut_to is not None:
            os.ftruncate(descriptor, self.cut_to)
            self.cut_to = None

    def _cut_back(self) -> None:
        """Remove what was written but is not durable; a later try writes it again, whole."""
        if self.descriptor is None:
            return
        self.cut_to = self.durable_bytes
        try:
            self._cut(self.descriptor)
        except OSError:
            return  # nothing is appended before that was made up for
        finally:
            # After a failed fsync the kernel may call the pages clean: begin with a new descriptor.
            self.close()

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


@dataclass(frozen=True, slots=True)
class _Written:
    places: dict[int, Where]
    """Where each durable line begins, by its position in the batch."""
    problem: OSError | None


def _write_all(descriptor: int, lines: Sequence[bytes]) -> None:
    """Write lines one after the other, as many as fit in one call."""
    for first in range(0, len(lines), _MOST_LINES):
        batch = [memoryview(line) for line in lines[first : first + _MOST_LINES]]
        while batch:
            written = os.writev(descriptor, batch)
            while batch and written >= len(batch[0]):
                written -= len(batch.pop(0))
            if batch:
                batch[0] = batch[0][written:]


def fsync_folder(folder: Path) -> None:
    """Make names created in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class Journal:
    """The single writer of an output folder."""

    folder: Path
    clock: Clock
    offload: Offload = in_thread
    part_bytes: int = _PART_BYTES
    on_trouble: Callable[[str | None], None] = lambda _: None
    """Called with what is wrong when the disk refuses, and with None when it is well again."""
    trouble: str | None = None
    last_durable_at: float | None = None
    """Monotonic seconds of the last successful fsync."""
    _pending: list[_Line] = field(default_factory=list)
    _parts: dict[str, _Part] = field(default_factory=dict)
    _index: IndexWriter = field(init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _writer: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        """Make the writer of the index beside the answers."""
        self._index = IndexWriter(self.folder)

    def start(self) -> None:
        """Begin writing; needs a running event loop."""
        for stream in STREAMS:
            numbers = [part_number(part) for part in parts_of(self.folder, stream)]
            self._parts[stream] = _Part(
                self.folder,
                stream,
                max(numbers, default=1),
                self.part_bytes,
                self._index if stream == RESPONSES else None,
            )
        self._idle.set()
        self._writer = asyncio.create_task(self._write_forever())

    def append(
        self, stream: str, data: bytes, head: ResponseHead | None = None
    ) -> "asyncio.Future[Where]":
        """Queue one whole line; the future ends once it is durable.

        `head` spares the index from reading an answer's line, and must say what the line says.
        """
        durable: asyncio.Future[Where] = asyncio.get_running_loop().create_future()
        self._pending.append(_Line(stream, data, head, durable))
        self._idle.clear()
        self._wake.set()
        return durable

    @property
    def pending(self) -> int:
        """Records in memory that are not durable yet."""
        return len(self._pending)

    async def flush(self) -> None:
        """Wait until everything queued is durable, however long the disk refuses."""
        await self._idle.wait()

    async def close(self) -> None:
        """Try once more to write what is queued, then stop.

        Raises:
            DiskTrouble: Records could not be written; their rows will be made again.
        """
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
            self._writer = None
        problem = await self._commit()
        for part in self._parts.values():
            part.close()
        self._index.close()
        if problem is not None:
            raise DiskTrouble(
                f"{self.folder}: {len(self._pending)} records could not be written: "
                f"{_words(problem)}; their rows are made again at the next start"
            )

    async def _write_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            problem = await self._commit()
            if problem is None:
                self._set_trouble(None)
            else:
                self._set_trouble(f"{self.folder}: cannot be written: {_words(problem)}")
                self._wake.set()
            await self.clock.sleep(_GROUP_S if problem is None else _RETRY_S)

    async def _commit(self) -> OSError | None:
        batch = list(self._pending)
        if not batch:
            return None
        # Shielded: a cancelled writer must not leave while the thread still writes.
        work = asyncio.ensure_future(self.offload(lambda: self._write(batch)))
        try:
            written = await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            self._settle(batch, work.result())
            raise
        self._settle(batch, written)
        return written.problem

    def _settle(self, batch: list[_Line], written: _Written) -> None:
        self._pending[: len(batch)] = [
            line for n, line in enumerate(batch) if n not in written.places
        ]
        if written.places:
            self.last_durable_at = self.clock.monotonic()
        for n, place in written.places.items():
            if not batch[n].durable.done():
                batch[n].durable.set_result(place)
        if not self._pending:
            self._idle.set()

    def _write(self, batch: list[_Line]) -> _Written:
        """Write a batch, stream by stream; runs in a thread."""
        places: dict[int, Where] = {}
        problem: OSError | None = None
        for stream in STREAMS:
            chosen = [n for n, line in enumerate(batch) if line.stream == stream]
            if not chosen:
                continue
            try:
                found = self._parts[stream].write([batch[n] for n in chosen])
            except OSError as error:
                problem = error
                continue
            places.update(zip(chosen, found, strict=True))
        return _Written(places, problem)

    def _set_trouble(self, trouble: str | None) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self.on_trouble(trouble)


def _words(error: OSError) -> str:
    return error.strerror or str(error)
