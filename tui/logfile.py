"""Reads the end of a log file: the last lines first, then what is appended, bounded."""

import os
from collections import deque
from dataclasses import dataclass, field

KEPT_LINES = 2000
READ_BYTES = 512 * 1024


@dataclass(slots=True)
class LogFile:
    """A followed file; every call is short and reads a bounded piece. Called in a thread."""

    path: str
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    problem: str = ""
    """Why it cannot be read, "" if it can."""
    _offset: int | None = None
    _inode: int | None = None
    _rest: bytes = b""

    def read_new(self) -> bool:
        """Read what is new; return whether anything changed."""
        try:
            with open(self.path, "rb") as handle:
                status = os.fstat(handle.fileno())
                self._settle(status.st_ino, status.st_size)
                handle.seek(self._offset or 0)
                data = handle.read(READ_BYTES)
        except OSError as error:
            changed = not self.problem
            self.problem = f"{self.path}: {error.strerror or error}"
            return changed
        self.problem = ""
        self._offset = (self._offset or 0) + len(data)
        return self._take(data)

    def _settle(self, inode: int, size: int) -> None:
        """Begin near the end; begin again where the file was replaced or cut."""
        is_other = inode != self._inode or self._offset is None or size < self._offset
        if is_other:
            self._inode, self._rest = inode, b""
            self._offset = max(0, size - READ_BYTES)

    def _take(self, data: bytes) -> bool:
        if not data:
            return False
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-READ_BYTES:]
        self.lines.extend(line.decode("utf-8", "replace") for line in whole)
        return bool(whole)
