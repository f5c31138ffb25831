"""Text from outside as literal, one-line text whose width in cells is certain.

Terminals disagree about joined emoji, flags and stacked marks; what they disagree about is
split or dropped here, so that no name and no log line can move a column.
"""

import re
import unicodedata
from functools import lru_cache

from rich.cells import get_character_cell_size

LONGEST = 2000
MARKS_KEPT = 1
ELLIPSIS = "…"

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_FLAG_A = 0x1F1E6
_SKIN_TONES = range(0x1F3FB, 0x1F400)


def literal(text: str) -> str:
    """Return text with nothing in it that a terminal would act on or draw wider than counted.

    Control sequences are removed, a carriage return shows the last state, other control
    characters vanish, bidirectional overrides and joiners are dropped.
    """
    if text.isascii() and text.isprintable():
        return text if len(text) <= LONGEST else text[:LONGEST] + ELLIPSIS
    plain = _SEQUENCE.sub("", _last_state(text)[: LONGEST * 4])
    kept = "".join(_kept(unicodedata.normalize("NFC", plain)))
    return kept if len(kept) <= LONGEST else kept[:LONGEST] + ELLIPSIS


def _last_state(text: str) -> str:
    """Return what a progress line shows at the end: the text after its last carriage return."""
    states = [state for state in text.split("\r") if state.strip()]
    return states[-1] if states else ""


def _kept(text: str) -> list[str]:
    """Return the characters to show; stacked marks beyond the first of a letter are dropped."""
    kept: list[str] = []
    marks = MARKS_KEPT
    for char in text:
        if char.isascii():
            shown = char if char.isprintable() else " " if char in "\t\n\v\f" else ""
        else:
            shown = _visible(char)
        is_mark = bool(shown) and width_of_char(shown) == 0
        if is_mark and (marks >= MARKS_KEPT or not kept):
            continue
        marks = marks + 1 if is_mark else 0
        if shown:
            kept.append(shown)
    return kept


def _visible(char: str) -> str:
    """Return what stands for one character beyond ASCII, "" for what is not shown."""
    code = ord(char)
    if _FLAG_A <= code < _FLAG_A + 26:
        return chr(ord("A") + code - _FLAG_A)
    if code in _SKIN_TONES or 0xFE00 <= code <= 0xFE0F:
        return ""
    category = unicodedata.category(char)
    if category in ("Cc", "Cf"):
        return ""
    if category in ("Cn", "Co", "Cs", "Zl", "Zp"):
        return "\ufffd"
    return char


@lru_cache(maxsize=4096)
def width_of_char(char: str) -> int:
    """Return the cells of one character: 0, 1 or 2."""
    return get_character_cell_size(char)


def width(text: str) -> int:
    """Return the cells of a literal text."""
    return len(text) if text.isascii() else sum(map(width_of_char, text))


def clip(text: str, cells: int) -> str:
    """Return literal text of at most that many cells, "…" where something was cut."""
    shown = literal(text)
    if cells <= 0:
        return ""
    if width(shown) <= cells:
        return shown
    taken, used = [], 0
    for char in shown:
        used += width_of_char(char)
        if used > cells - 1:
            break
        taken.append(char)
    return "".join(taken).rstrip() + ELLIPSIS


def wrap(text: str, cells: int) -> list[str]:
    """Return the text in lines of at most that many cells, broken at spaces where possible."""
    shown = literal(text)
    if width(shown) <= cells:
        return [shown] if shown.strip() else []
    lines: list[str] = []
    line = ""
    for word in shown.split():
        for piece in _pieces(word, max(1, cells)):
            joined = f"{line} {piece}" if line else piece
            if width(joined) <= cells:
                line = joined
            else:
                lines.append(line)
                line = piece
    return [*lines, line] if line or not lines else lines


def wrap_most(text: str, cells: int, most: int) -> list[str]:
    """Return at most so many lines, "…" at the end where there would be more."""
    lines = wrap(text, cells)
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], clip(" ".join(lines[most - 1 :]), cells)]


def _pieces(word: str, cells: int) -> list[str]:
    """Return a word in pieces that fit a line."""
    if width(word) <= cells:
        return [word]
    pieces, piece = [], ""
    for char in word:
        if width(piece) + width_of_char(char) > cells:
            pieces.append(piece)
            piece = ""
        piece += char
    return [*pieces, piece]


_ASCII = str.maketrans(
    {
        "─": "-", "│": "|", "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+",
        "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": ".", "▎": ".", "▏": ".",
        "·": ".", "•": "*", "✓": "v", "✗": "x", "…": "~", "–": "-", "—": "-", "−": "-",
        "→": ">", "←": "<", "↑": "^", "↓": "v", "±": "~", "×": "x", "≤": "<", "≥": ">",
        "°": " ", "Σ": "S", "’": "'", "“": '"', "”": '"', "\u00a0": " ",
    }
)  # fmt: skip
_ASCII_SPARK = str.maketrans("▁▂▃▄▅▆▇█", "01234689")


def to_ascii(text: str, *, is_spark: bool = False) -> str:
    """Return the text in ASCII with every cell in its place."""
    if text.isascii():
        return text
    table = text.translate(_ASCII_SPARK) if is_spark else text
    plain = table.translate(_ASCII)
    return "".join(c if c.isascii() else "?" * width_of_char(c) for c in plain)
