"""One line of foreign text made safe to show: no terminal control, one line, bounded length."""

import re
import unicodedata

LIMIT = 2_000
"""Characters of a line that are kept; the last one is then an ellipsis."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, clear
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC and other strings: titles, links
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_PLAIN = re.compile(r"[ -~]*\Z")
_INVISIBLE = {"Cc", "Cf"}
_SPACES = {"Zs", "Zl", "Zp"}


def last_state(text: str) -> str:
    r"""Return what a terminal would show of a line that was redrawn with carriage returns.

    >>> last_state(" progress 10%\rprogress 99%\r")
    'progress 99%'
    """
    if "\r" not in text:
        return text
    return next((part for part in reversed(text.split("\r")) if part.strip()), "")


def clean_line(text: str, limit: int = LIMIT) -> str:
    r"""Return `text` as one harmless line: last state of \r, no controls or bidi, cut at `limit`.

    >>> clean_line("\x1b[36m(Worker pid=7)\x1b[0m \u202etfel\x07")
    '(Worker pid=7) tfel'
    """
    line = last_state(text.rstrip("\r\n"))
    if not _PLAIN.match(line):
        line = _without_controls(_ESCAPES.sub("", line[: 8 * limit]))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _without_controls(text: str) -> str:
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    category = unicodedata.category(character)
    if character in "\t\n\v\f\x85" or category in _SPACES:
        return " "
    return "" if category in _INVISIBLE else "\ufffd"
