"""A JSON array read element by element: memory holds one element and a window of text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kvctl.core.domain.errors import RunFileError

_CHUNK_BYTES = 1 << 20


def array_rows(stream: IO[bytes], file: Path, most_bytes: int) -> Iterator[bytes]:
    """Yield the elements of an array whose opening bracket was read, one JSON line each.

    Raises:
        RunFileError: It is damaged, goes on after its end, or an element is above `most_bytes`.
    """
    decoder = json.JSONDecoder()
    text = _Text(stream, most_bytes)
    while True:
        text.skip(" \t\r\n,")
        if text.starts_with("]"):
            break
        try:
            found = text.value(decoder)
        except RecursionError:
            raise _damaged(file, text, "is nested too deeply") from None
        if found is None:
            raise _damaged(file, text, "is damaged or cut")
        yield json.dumps(found[0]).encode()
    text.drop(1)
    text.skip(" \t\r\n\0")
    if text.has_more:
        raise _damaged(file, text, "ends and something follows it")


def _damaged(file: Path, text: "_Text", what: str) -> RunFileError:
    return RunFileError(f"{file}: the JSON array {what} within its first {text.read:,} bytes")


class _Text:
    """A window of decoded text that moves over a stream."""

    def __init__(self, stream: IO[bytes], most_bytes: int) -> None:
        self._stream, self._most = stream, most_bytes
        self._buffer, self._at = "", 0
        self._tail = b""
        self.read = 0

    def _more(self) -> bool:
        left = len(self._buffer) - self._at
        if left > self._most:
            return False
        chunk = self._stream.read(max(_CHUNK_BYTES, left))
        if not chunk:
            return False
        self.read += len(chunk)
        whole = self._tail + chunk
        cut = _last_start(whole)
        self._buffer = self._buffer[self._at :] + whole[:cut].decode("utf-8", errors="replace")
        self._at = 0
        self._tail = whole[cut:]
        return True

    @property
    def has_more(self) -> bool:
        return self._at < len(self._buffer)

    def drop(self, characters: int) -> None:
        self._at += characters

    def skip(self, characters: str) -> None:
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in characters:
                self._at += 1
            if self.has_more or not self._more():
                return

    def starts_with(self, character: str) -> bool:
        return self._buffer.startswith(character, self._at)

    def value(self, decoder: json.JSONDecoder) -> tuple[object] | None:
        while True:
            try:
                found, end = decoder.raw_decode(self._buffer, self._at)
            except ValueError:
                if not self._more():
                    return None
                continue
            if end == len(self._buffer) and self._more():
                continue
            self._at = end
            return (found,)


def _last_start(data: bytes) -> int:
    """Return where the last, possibly cut, UTF-8 character begins."""
    for back in range(1, min(4, len(data)) + 1):
        if data[-back] & 0xC0 != 0x80:
            return len(data) - back if data[-back] >= 0xC0 else len(data)
    return len(data)
