"""Reads one table of a TOML document key by key and notes every problem in one line each."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

Choice = TypeVar("Choice", bound=StrEnum)

_MISSING = object()


class Table:
    """One table of a document: its keys are taken one by one, what is wrong is noted."""

    def __init__(self, document: object, where: str, file: str, problems: list[str]) -> None:
        """Begin with a table of `file` called `where`; problems are appended to `problems`."""
        self.where, self.file, self.problems = where, file, problems
        self.rest: dict[str, object] = {}
        if isinstance(document, Mapping):
            self.rest = {str(k): v for k, v in document.items()}
        elif document is not None:
            self.problems.append(f"{file}: [{where}] must be a table")

    def note(self, key: str, expected: str, found: object = _MISSING) -> None:
        """Note a key that is not as expected."""
        place = f"{self.where}.{key}" if self.where else key
        said = "it is missing" if found is _MISSING else f"found {found!r}"
        self.problems.append(f"{self.file}: {place}: expected {expected}, {said}")

    def take(self, key: str) -> object:
        """Return a key's value and count the key as known; None if it is missing."""
        return self.rest.pop(key, None)

    def text(self, key: str, default: str | None = None, *, is_needed: bool = False) -> str:
        """Return a text that is not blank."""
        value = self.take(key)
        if value is None and not is_needed:
            return default or ""
        if isinstance(value, str) and value.strip():
            return value
        self.note(key, "a text", _MISSING if value is None else value)
        return default or ""

    def texts(self, key: str, *, is_needed: bool = False) -> tuple[str, ...]:
        """Return a text or a list of texts as a tuple."""
        value = self.take(key)
        if isinstance(value, str) and value.strip():
            return (value,)
        if value is None and not is_needed:
            return ()
        if isinstance(value, list) and value and all(isinstance(v, str) and v for v in value):
            return tuple(value)
        if value == [] and not is_needed:
            return ()
        self.note(key, "a text or a list of texts", _MISSING if value is None else value)
        return ()

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """Return a number within bounds."""
        value = self.take(key)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and isinstance(value, int | float) and low <= value <= high:
            return float(value)
        upper = f" to {high:g}" if high < 1e300 else " or more"
        self.note(key, f"a number from {low:g}{upper}", value)
        return default

    def whole(self, key: str, default: int, low: int) -> int:
        """Return a whole number of at least `low`."""
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value >= low:
            return value
        self.note(key, f"a whole number from {low}", value)
        return default

    def flag(self, key: str) -> bool:
        """Return true or false; false if it is missing."""
        value = self.take(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.note(key, "true or false", value)
        return False

    def choice(self, key: str, kind: type[Choice], default: Choice) -> Choice:
        """Return one member of an enumeration."""
        value = self.take(key)
        if value is None:
            return default
        known = [member.value for member in kind]
        if isinstance(value, str) and value in known:
            return kind(value)
        self.note(key, " or ".join(f'"{k}"' for k in known), value)
        return default

    def close(self) -> None:
        """Note every key that nobody took."""
        for key in self.rest:
            place = f"{self.where}.{key}" if self.where else key
            self.problems.append(f"{self.file}: {place}: this key is not known")
