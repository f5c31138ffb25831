"""Lines and cells: what a pane returns, and the pen that places text at exact columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvctl.tui.present.text import clip, literal, to_ascii, width, width_of_char


class Ink(StrEnum):
    """How a cell is drawn; the words beside it carry the meaning, ink only repeats it."""

    PLAIN = "plain"
    DIM = "dim"
    BOLD = "bold"
    REVERSE = "reverse"
    FRAME = "frame"
    TITLE = "title"
    KEY = "key"
    BAR = "bar"
    SPARK = "spark"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    ALARM = "alarm"
    """Reverse video for what is wrong."""
    CURSOR = "cursor"
    """The selected row or the focused button."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A stretch of text in one ink."""

    text: str
    ink: Ink = Ink.PLAIN


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the screen."""

    cells: tuple[Cell, ...]

    @property
    def text(self) -> str:
        """The characters without ink."""
        return "".join(cell.text for cell in self.cells)

    @property
    def width(self) -> int:
        """Cells taken on the screen."""
        return sum(width(cell.text) for cell in self.cells)

    def in_ascii(self) -> "Line":
        """Return the line without a character beyond ASCII, every column kept."""
        return Line(
            tuple(Cell(to_ascii(c.text, is_spark=c.ink is Ink.SPARK), c.ink) for c in self.cells)
        )

    def inked(self, ink: Ink) -> "Line":
        """Return the line wholly in one ink."""
        return Line((Cell(self.text, ink),))


@dataclass(slots=True)
class Pen:
    """A row of fixed width; text is put at columns and clipped to the room it has."""

    width: int
    _chars: list[str] = field(init=False)
    _inks: list[Ink] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with spaces."""
        self._chars = [" "] * self.width
        self._inks = [Ink.PLAIN] * self.width

    def put(self, column: int, text: str, ink: Ink = Ink.PLAIN, room: int | None = None) -> int:
        """Put text from a column on, in at most `room` cells; return the column after it."""
        if column < 0:
            return column
        space = self.width - column
        shown = clip(text, space if room is None else min(room, space))
        for char in shown:
            cells = width_of_char(char)
            if cells == 0:
                self._join(column, char)
                continue
            self._place(column, char, cells, ink)
            column += cells
        return column

    def _join(self, column: int, mark: str) -> None:
        """Attach a combining mark to the character before the column."""
        at = column - 1
        while at > 0 and self._chars[at] == "":
            at -= 1
        if at >= 0:
            self._chars[at] += mark

    def _place(self, column: int, char: str, cells: int, ink: Ink) -> None:
        """Set one character and the empty cells a wide one covers."""
        self._free(column, cells)
        self._chars[column] = char
        self._inks[column] = ink
        for covered in range(column + 1, column + cells):
            self._chars[covered] = ""
            self._inks[covered] = ink

    def _free(self, column: int, cells: int) -> None:
        """Turn halves of wide characters that would be overwritten into spaces."""
        if self._chars[column] == "" and column > 0:
            self._chars[column - 1] = " "
        after = column + cells
        if after < self.width and self._chars[after] == "":
            self._chars[after] = " "

    def right(self, end: int, text: str, ink: Ink = Ink.PLAIN, room: int | None = None) -> None:
        """Put text so that it ends before column `end`, in at most `room` cells."""
        space = min(end, self.width) if room is None else min(room, end, self.width)
        shown = clip(text, space)
        self.put(min(end, self.width) - width(shown), shown, ink)

    def cells(self, column: int, cells: Iterable[Cell], room: int | None = None) -> int:
        """Put several cells one after another; return the column after them."""
        end = self.width if room is None else min(self.width, column + room)
        for cell in cells:
            column = self.put(column, cell.text, cell.ink, max(0, end - column))
        return column

    def line(self) -> Line:
        """Return the row; neighbours of one ink are one cell."""
        cells: list[Cell] = []
        start = 0
        for at in range(1, self.width + 1):
            if at == self.width or self._inks[at] is not self._inks[start]:
                cells.append(Cell("".join(self._chars[start:at]), self._inks[start]))
                start = at
        return Line(tuple(cells))


def row(width_: int, *cells: Cell) -> Line:
    """Return a line of these cells from the left edge, cut or padded to the width."""
    pen = Pen(width_)
    pen.cells(0, cells)
    return pen.line()


def plain(width_: int, text: str, ink: Ink = Ink.PLAIN) -> Line:
    """Return a line of one text."""
    return row(width_, Cell(text, ink))


def blank(width_: int) -> Line:
    """Return an empty line."""
    return Line((Cell(" " * width_),))


def widened(line: Line, width_: int) -> Line:
    """Return the line padded to a width."""
    return row(width_, *line.cells)


def fitted(lines: Sequence[Line], height: int, width_: int) -> list[Line]:
    """Return exactly `height` lines: cut at the end or filled with blanks."""
    return [*lines[:height], *[blank(width_)] * max(0, height - len(lines))]


def beside(left: Sequence[Line], right: Sequence[Line]) -> list[Line]:
    """Return lines joined pairwise; both sides have the same number."""
    return [Line(a.cells + b.cells) for a, b in zip(left, right, strict=True)]


def rule(width_: int, title: str, corners: str = "──", ink: Ink = Ink.FRAME) -> Line:
    """Return a frame's top line: "┌─1 Decode ── steady ──┐"; parts of the title at " ── "."""
    pen = Pen(width_)
    pen.put(0, "─" * width_, ink)
    pen.put(0, corners[0], ink)
    column = 2 if corners[0] != "─" else 1
    for number, part in enumerate(literal(title).split(" ── ") if title else ()):
        if column + width(part) + (3 if number else 0) > width_ - 1:
            continue
        if number:
            column = pen.put(column, "── ", ink)
        column = pen.put(column, part, Ink.TITLE if number == 0 else Ink.DIM)
        if column < width_ - 1:
            column = pen.put(column, " ")
    pen.put(width_ - 1, corners[1], ink)
    return pen.line()


def sided(lines: Iterable[Line], width_: int, ink: Ink = Ink.FRAME) -> list[Line]:
    """Return lines of `width_ - 2` cells between frame sides."""
    side = Cell("│", ink)
    return [Line((side, *line.cells, side)) for line in lines]


def in_ascii(lines: Iterable[Line]) -> list[Line]:
    """Return every line in ASCII."""
    return [line.in_ascii() for line in lines]
