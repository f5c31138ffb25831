"""Bytes of input files, line by line, whatever they are wrapped in.

Plain JSON lines are read in place, so that a row can be read again at its offset. gzip, zstd and
JSON arrays are unwrapped once into a spool of plain lines beside the run's output.
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

from kvctl.core.domain.errors import RunFileError

SUFFIXES = (".jsonl", ".json", ".ndjson")
PACKED = (".gz", ".zst")
_CHUNK_BYTES = 1 << 20


def expand_inputs(patterns: tuple[str, ...], partition: str) -> list[Path]:
    """Return the input files of a partition in a stable order, each once.

    Raises:
        RunFileError: A path is missing, or a pattern or folder holds no input.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        files = _expand(pattern)
        if not files:
            raise RunFileError(
                f"{partition}: no input at {pattern}: correct `input` of the run file"
            )
        found.update(dict.fromkeys(files))
    return list(found)


def _expand(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        return sorted(f for f in path.iterdir() if f.is_file() and _is_input(f))
    if path.is_file():
        return [path]
    return sorted(
        f for f in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if f.is_file()
    )


def _is_input(file: Path) -> bool:
    suffixes = [s for s in file.suffixes if s not in PACKED]
    return bool(suffixes) and suffixes[-1] in SUFFIXES and not file.name.startswith(".")


def needs_spool(file: Path) -> bool:
    """Return whether rows cannot be read again at an offset of the file itself."""
    return file.suffix in PACKED or _is_json_array(file)


def _is_json_array(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            start = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError as error:
        raise unreadable(file, error) from error
    return start.startswith(b"[")


def unreadable(file: Path, error: OSError) -> RunFileError:
    """Return the error of an input that cannot be read."""
    return RunFileError(f"{file}: cannot be read: {error.strerror or error}")


def plain_lines(file: Path) -> Iterator[bytes]:
    """Yield the rows of a packed file or a JSON array, one line each, without line ends.

    Raises:
        RunFileError: It cannot be read, is damaged, or needs a package that is not there.
    """
    try:
        with closing(_open(file)) as stream:
            start = stream.read(1)
            while start and start in b" \t\r\n\xef\xbb\xbf":
                start = stream.read(1)
            yield from (_array_rows(stream, file) if start == b"[" else _rows(start, stream))
    except (EOFError, gzip.BadGzipFile) as error:
        raise RunFileError(f"{file}: damaged or cut gzip: {error}") from error
    except OSError as error:
        raise unreadable(file, error) from error


def _rows(start: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    first = start + stream.readline()
    if first.strip():
        yield first.rstrip(b"\r\n")
    for line in stream:
        yield line.rstrip(b"\r\n")


def _open(file: Path) -> IO[bytes]:
    if file.suffix == ".gz":
        return gzip.open(file, "rb")  # type: ignore[return-value]
    if file.suffix == ".zst":
        return _open_zstd(file)
    return file.open("rb")


def _open_zstd(file: Path) -> IO[bytes]:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            import zstandard as zstd  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            hint = "pip install zstandard, or unpack it"
            raise RunFileError(f"{file}: zstd cannot be read here: {hint}") from None
    opened: IO[bytes] = zstd.open(file, "rb")
    return opened


def _array_rows(stream: IO[bytes], file: Path) -> Iterator[bytes]:
    decoder = json.JSONDecoder()
    text = _Text(stream)
    while True:
        text.skip(" \t\r\n,")
        if text.starts_with("]"):
            return
        found = text.value(decoder)
        if found is None:
            raise RunFileError(f"{file}: the JSON array is damaged or cut after {text.read} bytes")
        yield json.dumps(found[0]).encode()


class _Text:
    """A window of decoded text that moves over a stream."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._buffer = ""
        self._tail = b""
        self.read = 0

    def _more(self) -> bool:
        chunk = self._stream.read(max(_CHUNK_BYTES, len(self._buffer)))
        if not chunk:
            return False
        self.read += len(chunk)
        whole = self._tail + chunk
        cut = _last_start(whole)
        self._buffer += whole[:cut].decode("utf-8", errors="replace")
        self._tail = whole[cut:]
        return True

    def skip(self, characters: str) -> None:
        while True:
            self._buffer = self._buffer.lstrip(characters)
            if self._buffer or not self._more():
                return

    def starts_with(self, character: str) -> bool:
        return self._buffer.startswith(character)

    def value(self, decoder: json.JSONDecoder) -> tuple[object] | None:
        while True:
            try:
                found, end = decoder.raw_decode(self._buffer)
            except ValueError:
                if not self._more():
                    return None
                continue
            if end == len(self._buffer) and self._more():
                continue
            self._buffer = self._buffer[end:]
            return (found,)


def _last_start(data: bytes) -> int:
    """Return where the last, possibly cut, UTF-8 character begins."""
    for back in range(1, min(4, len(data)) + 1):
        if data[-back] & 0xC0 != 0x80:
            return len(data) - back if data[-back] >= 0xC0 else len(data)
    return len(data)
