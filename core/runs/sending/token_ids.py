"""Token ids of an answer as they stand in the server's JSON.

An answer's ids are counted, compared with the vocabulary and written down; making 4,000 Python
numbers of them takes longer than all the rest, so that is done only where they are continued.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Self, overload

import msgspec

_NUMBERS = b"0123456789 "
_NOT_AS_WRITTEN = (b"\n", b"\r", b"\t", b"-")
"""What JSON allows in an array of whole numbers, and `TokenIds` does not."""

_decode = msgspec.json.Decoder(list[int]).decode


class TokenIds(Sequence[int]):
    """Whole numbers from 0, read from their JSON only when they are asked for."""

    __slots__ = ("_below", "_count", "json")

    def __init__(self, json: bytes) -> None:
        """Take one JSON array on one line, known to be valid JSON.

        Raises:
            ValueError: It is anything but an array of whole numbers from 0.
        """
        rest = json.translate(None, _NUMBERS)
        commas = len(rest) - 2
        if rest != b"[" + b"," * commas + b"]":
            raise ValueError("not an array of token ids")
        self.json = json
        self._below: int | None = None
        """A limit that was held against all of them."""
        self._count = commas + 1 if commas or json.strip(b"[] ") else 0

    @classmethod
    def below(cls, json: bytes, limit: int) -> Self:
        """Take one array, of bytes not known to be JSON, if every id is below a limit.

        Reading the numbers tells all that the constructor looks for, in one go over the bytes.

        Raises:
            ValueError: It is anything but an array on one line of whole numbers from 0.
            msgspec.MsgspecError: The same, or an id is not below the limit.
        """
        if any(mark in json for mark in _NOT_AS_WRITTEN):
            raise ValueError("not an array of token ids")
        made = cls.__new__(cls)
        made.json, made._below, made._count = json, limit, len(_bounded(limit)(json))
        return made

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        """Return one, or some."""
        return _decode(self.json)[at]

    def __iter__(self) -> Iterator[int]:
        """Yield them."""
        return iter(_decode(self.json))

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence of numbers."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def are_below(self, limit: int) -> bool:
        """Return whether every id is below a limit, as a vocabulary's size."""
        if self._below is not None and self._below <= limit:
            return True
        try:
            _bounded(limit)(self.json)
        except msgspec.ValidationError:
            return False
        return True


@lru_cache(maxsize=8)
def _bounded(limit: int) -> Callable[[bytes], list[int]]:
    return msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(lt=limit)]]).decode
