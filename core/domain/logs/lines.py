"""SGLang log lines as typed records, by key/value scanning (0.4.0 to 0.5.23)."""

import re
from dataclasses import dataclass
from enum import StrEnum

_PYTHON_WARNING = re.compile(r"\S+\.py:\d+: \w*Warning: |\s+warnings\.warn\(")
"""Its two lines: the message, and the source line that gave it. After a kill they come last."""


class LogKind(StrEnum):
    """What a line tells."""

    DECODE = "decode"
    PREFILL = "prefill"
    RETRACTION = "retraction"
    STAGE = "stage"
    READY = "ready"
    FAILURE = "failure"
    DRAINING = "draining"
    LOST_WORK = "lost work"
    """A request was aborted for lack of KV: its tokens are gone, unlike a retraction's."""
    ACCESS = "access"
    UNRECOGNISED = "unrecognised"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of the log (or one state of a progress bar)."""

    kind: LogKind
    text: str
    """The line as shown: control characters removed, cut at 2,000 characters."""
    number: int | None = None
    """Line number in the file where known, from 1."""
    wall: float | None = None
    """Seconds of the line's own stamp (server's local time), None without one."""
    rank: str = ""
    """"TP0", "DP1 TP1", "" on a single GPU."""
    fields: tuple[tuple[str, float], ...] = ()
    """Numbers by name: running, tokens, token_usage, generation_tokens_per_s, queued, …"""
    words: tuple[tuple[str, str], ...] = ()
    """Words by name: stage, edge, class, pool, …"""
    is_backlog: bool = False
    """It was in the file before the tail attached: a fact, but not about now."""

    @property
    def is_telling(self) -> bool:
        """Whether it tells of the server: neither one request nor a warning of Python's own."""
        return self.kind is not LogKind.ACCESS and not _PYTHON_WARNING.match(self.text)

    def number_of(self, name: str) -> float | None:
        """Return a field by name, None where the line has none."""
        return next((value for key, value in self.fields if key == name), None)

    def word_of(self, name: str) -> str | None:
        """Return a word by name, None where the line has none."""
        return next((value for key, value in self.words if key == name), None)
