"""What dialogs are made of: a frame with sections, options, buttons and a typed field."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvctl.tui.present.line import Cell, Ink, Line, Pen, blank, plain, row, rule, sided
from kvctl.tui.present.text import width, wrap

WIDEST = 100


@dataclass(frozen=True, slots=True)
class Option:
    """One way to go, with what it costs."""

    name: str
    text: str
    cost: str = ""
    why_not: str = ""
    """Why it cannot be chosen now, "" if it can."""


@dataclass(slots=True)
class Box:
    """Lines of a dialog, top to bottom."""

    columns: int
    drawn: list[Line] = field(default_factory=list)

    @property
    def inner(self) -> int:
        """Cells between the sides."""
        return self.columns - 2

    def section(self, title: str) -> None:
        """Begin the frame, or a section of it."""
        self.drawn.append(rule(self.columns, title, "├┤" if self.drawn else "┌┐"))

    def lines(self, lines: Sequence[Line]) -> None:
        """Add lines of the inner width."""
        self.drawn += sided(lines, self.columns)

    def text(self, text: str, ink: Ink = Ink.PLAIN, most: int = 99) -> None:
        """Add text, wrapped."""
        self.lines([plain(self.inner, f" {t}", ink) for t in wrap(text, self.inner - 2)[:most]])

    def gap(self) -> None:
        """Add an empty line."""
        self.lines([blank(self.inner)])

    def options(self, options: Sequence[Option], chosen: int) -> None:
        """Add ways to go, the chosen one marked."""
        name_room = max(width(option.name) for option in options) + 1
        for number, option in enumerate(options):
            self.lines(option_lines(option, number == chosen, name_room, self.inner))

    def buttons(self, names: Sequence[str], focused: int, keys: str) -> None:
        """Add the last line: buttons at the left, keys at the right."""
        pen = Pen(self.inner)
        column = 2
        for number, name in enumerate(names):
            ink = Ink.CURSOR if number == focused else Ink.PLAIN
            column = pen.put(column, f"[ {name} ]", ink) + 2
        room = self.inner - column - 2
        if width(keys) <= room:
            pen.right(self.inner - 1, keys, Ink.DIM)
        self.lines([pen.line()])
        if width(keys) > room:
            self.lines([row(self.inner, Cell(f" {keys}", Ink.DIM))])

    def end(self) -> list[Line]:
        """Close the frame and return its lines."""
        return [*self.drawn, rule(self.columns, "", "└┘")]


def option_lines(option: Option, is_chosen: bool, name_room: int, columns: int) -> list[Line]:
    """Return one option: mark, name, what it does, and its cost at the right edge."""
    cost_room = width(option.cost) + 1 if option.cost else 0
    start = 6 + name_room
    texts = wrap(option.why_not or option.text, columns - start - cost_room - 1) or [""]
    drawn = []
    for number, text in enumerate(texts):
        pen = Pen(columns)
        if number == 0:
            pen.put(1, "(•)" if is_chosen else "( )", Ink.BOLD if is_chosen else Ink.PLAIN)
            ink = Ink.DIM if option.why_not else Ink.BOLD if is_chosen else Ink.PLAIN
            pen.put(5, option.name, ink)
            pen.right(columns - 1, option.cost)
        pen.put(start, text, Ink.DIM if option.why_not else Ink.PLAIN)
        drawn.append(pen.line())
    return drawn


def entry_line(text: str, cursor: int, columns: int, prompt: str = "> ") -> Line:
    """Return a typed text with its cursor, scrolled so that the cursor is seen."""
    room = columns - len(prompt) - 3
    start = max(0, cursor - room + 1)
    shown, at = text[start : start + room], cursor - start
    under = shown[at : at + 1] or " "
    return row(
        columns,
        Cell(f" {prompt}", Ink.DIM),
        Cell(shown[:at], Ink.BOLD),
        Cell(under, Ink.CURSOR),
        Cell(shown[at + 1 :], Ink.BOLD),
    )
