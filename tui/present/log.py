"""The log page: lines filtered and folded, errors marked, all literal."""

import re
from collections.abc import Sequence

from kvctl.tui.present.line import Ink, Line, Pen
from kvctl.tui.present.text import literal

_ERROR = re.compile(r"error|exception|traceback|sigquit|out of memory|fatal|killed", re.IGNORECASE)
_POLL = re.compile(
    r'"GET /(?:v1/loads|metrics|get_load|server_info|get_server_info|model_info|health)\b[^"]*" 200'
)
_DECODE = re.compile(r"\bDecode batch\b")


def kept(lines: Sequence[str], query: str) -> list[str]:
    """Return the lines that match: words all of which occur, or none of them after "!"."""
    wanted = query.strip().lower()
    if not wanted:
        return list(lines)
    if wanted.startswith("!"):
        rest = wanted[1:].strip()
        return [line for line in lines if not rest or rest not in line.lower()]
    return [line for line in lines if wanted in line.lower()]


def folded(lines: Sequence[str]) -> list[str]:
    """Return the lines without answered polls, each stretch of decode lines as its last one."""
    out: list[str] = []
    count = 0
    for line in lines:
        if _POLL.search(line):
            continue
        is_decode = bool(_DECODE.search(line))
        count = count + 1 if is_decode else 0
        shown = f"{line}   (+{count - 1} decode lines)" if count > 1 else line
        if count > 1:
            out[-1] = shown
        else:
            out.append(shown)
    return out


def is_error(line: str) -> bool:
    """Return whether a line speaks of an error."""
    return bool(_ERROR.search(line))


def first_error(lines: Sequence[str]) -> int | None:
    """Return the index of the first line that speaks of an error."""
    return next((number for number, line in enumerate(lines) if is_error(line)), None)


def drawn(lines: Sequence[str], columns: int) -> list[Line]:
    """Return the lines literally, cut at the width."""
    out = []
    for line in lines:
        pen = Pen(columns)
        pen.put(1, literal(line), Ink.BAD if is_error(line) else Ink.PLAIN)
        out.append(pen.line())
    return out
