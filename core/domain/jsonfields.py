"""Fields out of JSON from outside: the right type or None, never an exception."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

Json = object
"""What a JSON parser returns: null, bool, number, string, list or object."""


def as_mapping(value: Json) -> Mapping[str, Json]:
    """Return an object as it is, anything else as an empty one."""
    return value if _is_object(value) else {}


def as_list(value: Json) -> Sequence[Json]:
    """Return a list as it is, anything else as an empty one."""
    return value if isinstance(value, list) else ()


def number(fields: Mapping[str, Json], name: str) -> float | None:
    """Return a finite number; None for anything else, true and false included."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def count(fields: Mapping[str, Json], name: str) -> int | None:
    """Return a whole number from 0 up; None for anything else."""
    value = number(fields, name)
    return int(value) if value is not None and value >= 0 and value == int(value) else None


def text(fields: Mapping[str, Json], name: str) -> str | None:
    """Return a non-empty string, None for anything else."""
    value = fields.get(name)
    return value if isinstance(value, str) and value else None


def _is_object(value: Json) -> TypeGuard[Mapping[str, Json]]:
    return isinstance(value, dict)
