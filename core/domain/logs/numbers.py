"""Numbers out of "key: value" text: what is not wholly a finite number is left out."""

import math
import re
from collections.abc import Mapping

Fields = tuple[tuple[str, float], ...]
"""Numbers by name, as a log record keeps them."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?\Z", re.ASCII)


def plain_number(text: str) -> float | None:
    """Return a decimal number, or a percentage as a ratio; None for anything else.

    >>> plain_number("0.31"), plain_number("20.00%"), plain_number("81[2026"), plain_number("nan")
    (0.31, 0.2, None, None)
    """
    is_percent = text.endswith("%")
    digits = text[:-1] if is_percent else text
    if not _NUMBER.match(digits):
        return None
    value = float(digits) / (100.0 if is_percent else 1.0)
    return value if math.isfinite(value) else None


def numbers_of(pairs: Mapping[str, str], names: Mapping[str, str]) -> Fields:
    """Return the numbers of the pairs that have a name, in the order of the line."""
    found = ((names[key], plain_number(value)) for key, value in pairs.items() if key in names)
    return tuple((name, value) for name, value in found if value is not None)


def first_number(pattern: re.Pattern[str], text: str) -> float | None:
    """Return the number in group 1 of a pattern, None where it does not occur."""
    match = pattern.search(text)
    return plain_number(match[1].rstrip(".")) if match else None
