"""Lines of files read again by where they begin; each file is opened once."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_FIRST_BYTES = 8192
_FACTOR = 4


@dataclass(slots=True)
class LineFiles:
    """Reads single lines of `paths`; the sequence may grow meanwhile."""

    paths: Sequence[Path]
    _open: dict[int, int] = field(default_factory=dict)
    """File descriptors by the file's place in `paths`."""

    def line(self, number: int, offset: int) -> bytes:
        """Read the line of file `number` that begins at byte `offset`, without its end.

        Raises:
            OSError: It cannot be read any more.
        """
        descriptor = self._open.get(number)
        if descriptor is None:
            descriptor = os.open(self.paths[number], os.O_RDONLY | os.O_CLOEXEC)
            self._open[number] = descriptor
        size = _FIRST_BYTES
        while True:
            data = os.pread(descriptor, size, offset)
            end = data.find(b"\n")
            if end >= 0 or len(data) < size:
                return data if end < 0 else data[:end]
            size *= _FACTOR

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
