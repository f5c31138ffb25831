"""zstd from the standard library where it is (Python 3.14), else from the package zstandard.

A cut file is an error here: zstandard's own reader ends it as if it were whole.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

_FED_BYTES = 1 << 10
"""Fed at once: what comes out of it is in memory whole, at most 128 KiB for every four bytes."""


class ZstdFailed(Exception):
    """A zstd file is damaged or cut."""


def open_zstd(file: Path) -> IO[bytes]:
    """Open a file for reading what is packed in it; reading raises ZstdFailed where it is damaged.

    Raises:
        ImportError: Neither package is there.
        OSError: It cannot be opened.
    """
    make, error = _decompressor()
    return io.BufferedReader(_Unpacked(file.open("rb"), make, error), 1 << 20)


def _decompressor() -> tuple[Callable[[], Any], type[Exception]]:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        import zstandard

        return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError
    return zstd.ZstdDecompressor, cast(type[Exception], zstd.ZstdError)


class _Unpacked(io.RawIOBase):
    """The content of all frames of a file, one after the other."""

    def __init__(self, packed: IO[bytes], make: Callable[[], Any], error: type[Exception]) -> None:
        self._packed, self._make, self._error = packed, make, error
        self._frame: Any = None
        self._fed, self._out = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._packed.close()
        super().close()

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        while not self._out:
            if not self._fed and not self._feed():
                return 0
            self._unpack()
        size = min(len(self._out), len(buffer))
        buffer[:size] = self._out[:size]
        self._out = self._out[size:]
        return size

    def _feed(self) -> bool:
        self._fed = self._packed.read(_FED_BYTES)
        if not self._fed and self._frame is not None:
            raise ZstdFailed("it ends within a frame")
        return bool(self._fed)

    def _unpack(self) -> None:
        self._frame = self._frame or self._make()
        try:
            self._out = memoryview(self._frame.decompress(self._fed))
        except self._error as error:
            raise ZstdFailed(str(error)) from None
        self._fed = b""
        if self._frame.eof:
            self._fed, self._frame = self._frame.unused_data, None
