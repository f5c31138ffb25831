"""A server's log, followed by inode: rotation, truncation and re-creation are survived.

Reading starts near the end of a big file, so attaching costs the same at 1 kB and at 1 GB; the
start-up of the last launch is found by `startup_records`, searching backwards.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvctl.core.domain.logs.lines import LogKind, LogRecord
from kvctl.core.domain.logs.scan import parse_line

ATTACH_BYTES = 256 * 1024
"""How much of an existing file is read on attach."""
_READ_BYTES = 4 * 1024 * 1024
"""At most this much a call, so that no call takes long; the rest comes with the next ones."""
_LINE_BYTES = 64 * 1024
"""Of a longer line only the beginning is kept."""
_SEARCH_BYTES = 1024 * 1024
"""Searched at once: few enough to be in the processor's cache still."""
_SEARCH_TRIES = 500
"""So many lone "=" in a block cost as much as looking for the word at once."""
_TAG_BYTES = 4096
_STARTUP_BYTES = 8 * 1024 * 1024
"""At most this much of a launch is read for its start-up facts."""
_PRINT_BYTES = 64
"""Last bytes read that must still be there, or the file was rewritten under its name."""
_LAUNCH_MARK = b"server_args="
_READY_MARK = b"The server is fired up and ready to roll!"


class FileLogTail:
    """Follows one path; implements `ports.LogTail`."""

    def __init__(self, path: str, attach_bytes: int = ATTACH_BYTES) -> None:
        """Follow `path`, which need not exist yet; nothing is read before `read_new`."""
        self.path = path
        self._attach_bytes = attach_bytes
        self._lines = _Lines()
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None
        self._position = 0
        self._print = b""
        self._was_looked_for = False

    def read_new(self) -> Sequence[LogRecord]:
        """Return the records since the last call, oldest first; empty if nothing is new.

        Units: whole lines; an unfinished line waits for its end, except that a progress bar of
        the start-up yields each new state it reaches.
        """
        records = list(self._read_open())
        if self._is_replaced():
            records += self._lines.finish()  # the old file is rotated away: its tail is whole
            is_first = not self._was_looked_for
            self._open(is_attach=is_first)
            records += [replace(r, is_backlog=is_first) for r in self._read_open()]
        self._was_looked_for = True
        return records

    def startup_records(self) -> Sequence[LogRecord]:
        """Return the records of the last launch in the file, up to its ready line if it has one.

        Reads backwards until the line that begins a launch; may take long on a huge file without
        one, so it is called in a thread.
        """
        try:
            with open(self.path, "rb") as file:
                end = file.seek(0, os.SEEK_END)
                start = _last_launch(file.fileno(), end)
                data = os.pread(file.fileno(), _STARTUP_BYTES, start)
        except OSError:
            return ()
        ready = data.find(_READY_MARK)
        whole = data[: ready + len(_READY_MARK)] if ready >= 0 else data[: data.rfind(b"\n") + 1]
        lines = _Lines(number=1 if start == 0 else None)
        records = [*lines.feed(whole), *lines.finish()]
        return [replace(record, is_backlog=True) for record in records]

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._identity = None, None

    def _is_replaced(self) -> bool:
        """Return whether another file lies under the path and has taken over.

        An empty one has not: after a rotation by rename the writer goes on in the old file.
        """
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        is_same = (status.st_dev, status.st_ino) == self._identity
        return not is_same and (self._descriptor is None or status.st_size > 0)

    def _open(self, *, is_attach: bool) -> None:
        self.close()
        try:
            # Not blocking: a path that became a pipe must not stop the caller.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            return
        self._descriptor, self._identity = descriptor, (status.st_dev, status.st_ino)
        self._start(status.st_size, skips=is_attach and status.st_size > self._attach_bytes)

    def _start(self, size: int, *, skips: bool) -> None:
        """Begin to read at the file's start, or near its end."""
        self._position = size - self._attach_bytes if skips else 0
        self._print = b""
        self._lines = _Lines(number=None if skips else 1, is_inside_line=skips)

    def _read_open(self) -> Iterator[LogRecord]:
        if self._descriptor is None:
            return
        try:
            size = os.fstat(self._descriptor).st_size
            if self._is_rewritten(self._descriptor, size):
                self._start(size, skips=size > self._attach_bytes)
            data = os.pread(self._descriptor, _READ_BYTES, self._position)
        except OSError:
            self.close()  # the file system took it away; the path is tried again next time
            return
        self._position += len(data)
        self._print = (self._print + data)[-_PRINT_BYTES:]
        yield from self._lines.feed(data)

    def _is_rewritten(self, descriptor: int, size: int) -> bool:
        """Return whether the file was truncated, also where it has grown past us again."""
        if size < self._position:
            return True
        start = self._position - len(self._print)
        return os.pread(descriptor, len(self._print), start) != self._print


class _Lines:
    """Bytes to records: cuts lines, numbers them and keeps an unfinished one."""

    def __init__(self, number: int | None = 1, *, is_inside_line: bool = False) -> None:
        """Begin at line `number` (None: not known), perhaps in the middle of a line."""
        self._number = number
        self._skips = is_inside_line
        self._rest = b""
        self._shown = ""

    def feed(self, data: bytes) -> Iterator[LogRecord]:
        """Yield the record of every line that `data` completes, and a bar's newest state."""
        if not data:
            return
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield from self._complete(line)
        self._rest = _bounded(self._rest + rest)
        yield from self._bar_state()

    def finish(self) -> Iterator[LogRecord]:
        """Yield what is left as the last line."""
        if self._rest:
            yield from self._complete(b"")

    def _complete(self, line: bytes) -> Iterator[LogRecord]:
        text = _bounded(self._rest + line)
        self._rest, self._shown = b"", ""
        number = self._number
        if number is not None:
            self._number = number + 1
        if self._skips:
            self._skips = False
        elif text.strip():
            yield parse_line(_decoded(text), number)

    def _bar_state(self) -> Iterator[LogRecord]:
        if self._skips or b"\r" not in self._rest:
            return
        record = parse_line(_decoded(self._rest), self._number)
        if record.kind is LogKind.STAGE and record.text != self._shown:
            self._shown = record.text
            yield record


def _bounded(line: bytes) -> bytes:
    """Return a line in bounded size: a redrawn one by its last states, a long one by its head."""
    if len(line) <= _LINE_BYTES:
        return line
    cut = line.rfind(b"\r", 0, len(line) - 1)
    if cut >= 0:
        return line[cut:][:_LINE_BYTES]
    return line[:_LINE_BYTES]


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")


def _last_launch(descriptor: int, end: int) -> int:
    """Return the offset of the line that begins the last launch, 0 if none is marked."""
    overlap = len(_LAUNCH_MARK)
    block = bytearray(_SEARCH_BYTES + overlap)
    stop = end
    while stop > 0:
        start = max(0, stop - _SEARCH_BYTES)
        size = os.preadv(descriptor, [memoryview(block)[: stop - start + overlap]], start)
        mark = _last_mark(block, size)
        if mark >= 0:
            return _line_start(descriptor, start + mark)
        stop = start
    return 0


def _last_mark(block: bytearray, size: int) -> int:
    """Return where in `block` the last launch mark stands, -1 if nowhere.

    One byte is found several times faster than a word, and "=" is rare in what a server writes
    while it serves. Where it is not, the word is looked for.
    """
    at = size
    for _ in range(_SEARCH_TRIES):
        at = block.rfind(b"=", 0, at)
        if at < 0:
            return -1
        if block.endswith(_LAUNCH_MARK, 0, at + 1):
            return at + 1 - len(_LAUNCH_MARK)
    return block.rfind(_LAUNCH_MARK, 0, at)


def _line_start(descriptor: int, mark: int) -> int:
    """Return where the line of a launch mark begins: before it stand a time and a rank's tag."""
    before = os.pread(descriptor, min(mark, _TAG_BYTES), max(0, mark - _TAG_BYTES))
    return mark - len(before) + before.rfind(b"\n") + 1
