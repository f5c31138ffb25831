"""The one sentence on top of the panel, and the arithmetic behind it."""

from dataclasses import dataclass
from enum import StrEnum


class VerdictWord(StrEnum):
    """How urgent it is; in this order."""

    FAILED = "FAILED"
    STALLED = "STALLED"
    ACT = "ACT"
    HOLD = "HOLD"
    WAIT = "WAIT"
    LIMIT = "LIMIT"
    LEVER = "LEVER"
    NOTE = "NOTE"
    OK = "OK"


@dataclass(frozen=True, slots=True)
class Why:
    """One line of the arithmetic behind a verdict."""

    label: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is the matter and what would move it."""

    word: VerdictWord
    sentence: str
    lever: str
    why: tuple[Why, ...] = ()
    short: str = ""
    """The sentence for an 80-column screen, at most 71 cells; "" where the full one must do."""
    short_lever: str = ""
    """The lever for an 80-column screen, at most 64 cells."""
