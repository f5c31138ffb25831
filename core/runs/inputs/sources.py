"""Bytes of input files, row by row, whatever they are wrapped in.

Plain JSON lines are read in place, so that a row can be read again at its offset. gzip, zstd, JSON
arrays, parquet and Arrow are unwrapped once into a spool of plain lines beside the run's output.
What a file is wrapped in is told by its first bytes. Memory does not grow with a file: one row is
in memory at a time, and one above `MOST_ROW_BYTES` is passed over.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import IO

from kvctl.core.domain.errors import RunFileError
from kvctl.core.runs.inputs.columnar import NEEDS_PYARROW, arrow_rows, parquet_rows
from kvctl.core.runs.inputs.json_array import array_rows
from kvctl.core.runs.inputs.zstd import ZstdFailed, open_zstd

MOST_ROW_BYTES = 64 << 20
"""A longer row is rejected: no context holds such a prompt."""


class Wrapping(StrEnum):
    """What the rows of a file are wrapped in."""

    LINES = "lines"
    ARRAY = "array"
    GZIP = "gzip"
    ZSTD = "zstd"
    PARQUET = "parquet"
    ARROW = "arrow"
    """Both kinds, file and stream."""


_MAGIC = {
    b"\x1f\x8b": Wrapping.GZIP,
    b"\x28\xb5\x2f\xfd": Wrapping.ZSTD,
    b"PAR1": Wrapping.PARQUET,
    b"ARROW1": Wrapping.ARROW,
    b"\xff\xff\xff\xff": Wrapping.ARROW,
}
_BY_SUFFIX = {
    ".gz": Wrapping.GZIP,
    ".zst": Wrapping.ZSTD,
    ".parquet": Wrapping.PARQUET,
    ".arrow": Wrapping.ARROW,
}
_FOREIGN = {
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\xfd7zXZ\x00": "packed by xz: unpack it, or pack it with gzip or zstd",
    b"BZh": "packed by bzip2: unpack it, or pack it with gzip or zstd",
    b"\xff\xfe": "UTF-16 text: convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text: convert it to UTF-8",
    b"SQLite format 3": "an SQLite database: export its rows as JSON lines",
    b"\x89HDF": "an HDF5 file: export its rows as JSON lines",
    b"\x80\x04": "a Python pickle, which is never loaded: export its rows as JSON lines",
}
_TABLES = (".csv", ".tsv", ".xlsx")


def wrapping_of(file: Path) -> Wrapping:
    """Return what the rows of a file are wrapped in, by its first bytes and then by its name.

    Raises:
        RunFileError: It cannot be read, or is of a kind that is not.
    """
    try:
        with file.open("rb") as stream:
            start = stream.read(4096)
    except OSError as error:
        raise unreadable(file, error) from error
    for magic, wrapping in _MAGIC.items():
        if start.startswith(magic):
            return wrapping
    for magic, advice in _FOREIGN.items():
        if start.startswith(magic):
            raise RunFileError(f"{file}: {advice}")
    if file.suffix.lower() in _TABLES:
        raise RunFileError(f"{file}: tables of text are not read: convert it to JSON lines")
    if file.suffix in _BY_SUFFIX:
        return _BY_SUFFIX[file.suffix]
    is_array = start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    return Wrapping.ARRAY if is_array else Wrapping.LINES


def unreadable(file: Path, error: OSError) -> RunFileError:
    """Return the error of an input that cannot be read."""
    return RunFileError(f"{file}: cannot be read: {error.strerror or error}")


def plain_lines(file: Path, wrapping: Wrapping) -> Iterator[bytes | None]:
    """Yield the rows of a wrapped file, one line each, without line ends.

    None stands for a row above `MOST_ROW_BYTES`.

    Raises:
        RunFileError: It cannot be read, is damaged, or needs a package that is not there.
    """
    try:
        match wrapping:
            case Wrapping.PARQUET:
                yield from parquet_rows(file)
            case Wrapping.ARROW:
                yield from arrow_rows(file)
            case _:
                with closing(_open(file, wrapping)) as stream:
                    yield from _text_rows(stream, file)
    except ImportError:
        raise RunFileError(f"{file}: {wrapping} cannot be read here: {_NEEDS[wrapping]}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RunFileError(f"{file}: damaged or cut gzip: {error}") from error
    except ZstdFailed as error:
        raise RunFileError(f"{file}: damaged or cut zstd: {error}") from error
    except OSError as error:
        raise unreadable(file, error) from error


_NEEDS = {
    Wrapping.ZSTD: "pip install 'kvctl[zstd]', or unpack it",
    Wrapping.PARQUET: NEEDS_PYARROW,
    Wrapping.ARROW: NEEDS_PYARROW,
}


def _open(file: Path, wrapping: Wrapping) -> IO[bytes]:
    if wrapping is Wrapping.GZIP:
        return gzip.open(file, "rb")  # type: ignore[return-value]
    if wrapping is Wrapping.ZSTD:
        return open_zstd(file)
    return file.open("rb")


def _text_rows(stream: IO[bytes], file: Path) -> Iterator[bytes | None]:
    start = stream.read(1)
    while start and start in b" \t\r\n\xef\xbb\xbf":
        start = stream.read(1)
    if start == b"[":
        yield from array_rows(stream, file, MOST_ROW_BYTES)
        return
    for _, line in bounded_lines(stream, start):
        yield None if line is None else line.rstrip(b"\r\n")


def bounded_lines(stream: IO[bytes], start: bytes = b"") -> Iterator[tuple[int, bytes | None]]:
    """Yield the size of every line, `start` in front of the first, and the line or None.

    None: it is above `MOST_ROW_BYTES` and was passed over.
    """
    while True:
        line = start + stream.readline(MOST_ROW_BYTES)
        start = b""
        if not line:
            return
        if len(line) < MOST_ROW_BYTES or line.endswith(b"\n"):
            yield len(line), line
        else:
            yield len(line) + _pass_over(stream), None


def _pass_over(stream: IO[bytes]) -> int:
    """Read to the end of the line; return its bytes."""
    passed = 0
    while True:
        more = stream.readline(1 << 20)
        passed += len(more)
        if not more or more.endswith(b"\n"):
            return passed
