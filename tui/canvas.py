"""The one widget: draws lines of cells literally and repaints only those that changed."""

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from kvctl.tui.ink import STYLES
from kvctl.tui.present.line import Line


class Canvas(Widget):
    """Shows lines; text is never read as markup."""

    DEFAULT_CSS = """
    Canvas { width: 1fr; height: 1fr; background: ansi_default; }
    """
    can_focus = False
    ALLOW_SELECT = False

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self._lines: tuple[Line, ...] = ()
        self.repainted_rows = 0
        """Rows drawn again so far: a quiet host must not move it."""

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the lines, repainting the rows that differ."""
        old, new = self._lines, tuple(lines)
        self._lines = new
        for row in range(max(len(old), len(new))):
            if row >= len(old) or row >= len(new) or old[row] != new[row]:
                self.repainted_rows += 1
                self.refresh(Region(0, row, self.size.width, 1))

    @property
    def text(self) -> str:
        """The characters on the canvas, row by row."""
        return "\n".join(line.text for line in self._lines)

    def render_line(self, y: int) -> Strip:
        """Draw one row."""
        base = self.rich_style
        if y >= len(self._lines):
            return Strip.blank(self.size.width, base)
        segments = [Segment(c.text, base + STYLES[c.ink]) for c in self._lines[y].cells]
        return Strip(segments).adjust_cell_length(self.size.width, base)
