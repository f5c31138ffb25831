"""What every screen and dialog shares: one canvas, keys as data, the panel behind it."""

from collections.abc import Callable
from typing import Protocol, cast

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen, Screen

from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.actions import Action
from kvctl.tui.canvas import Canvas
from kvctl.tui.present.box import WIDEST
from kvctl.tui.present.layout import Size
from kvctl.tui.present.line import Line, in_ascii
from kvctl.tui.present.view import View

Then = Callable[[Outcome], None]


class Panel(Protocol):
    """What screens ask of the app."""

    snapshot: Snapshot
    view: View
    flash: str
    grace_s: float

    def submit(self, command: Command, title: str, then: Then | None = None) -> None:
        """Carry out a command in the background; its outcome goes to `then`, else to a toast."""

    def act(self, action: Action, key: str) -> None:
        """Do an action, or say why it is not possible now."""

    def look(self, **changes: object) -> None:
        """Change the view."""

    def say(self, text: str) -> None:
        """Show a short message in the line above the footer."""

    def interrupt(self) -> None:
        """Answer ctrl+c."""

    def toast(self, outcome: Outcome, title: str) -> None:
        """Show how a command ended."""

    def do(self, name: str, key: str = "") -> None:
        """Do what an action of this name does."""


class Drawn:
    """Keys and painting, for screens and dialogs alike."""

    @property
    def panel(self) -> Panel:
        """The app behind this screen."""
        return cast(Panel, self.app)  # type: ignore[attr-defined]

    def press(self, key: str, character: str | None) -> None:
        """Answer a key."""

    def paste(self, text: str) -> None:
        """Take pasted text."""

    def on_key(self, event: events.Key) -> None:
        """Pass a key on as data; ctrl+c is answered the same everywhere."""
        event.stop()
        event.prevent_default()
        if event.key == "ctrl+c":
            self.panel.interrupt()
        else:
            self.press(event.key, event.character)

    def on_paste(self, event: events.Paste) -> None:
        """Pass pasted text on."""
        event.stop()
        self.paste(event.text)


class PageScreen(Drawn, Screen[None], inherit_bindings=False):
    """A screen that draws itself wholly."""

    AUTO_FOCUS = None

    def compose(self) -> ComposeResult:
        """Hold one canvas."""
        yield Canvas()

    def lines(self, size: Size) -> list[Line]:
        """Return the lines of the screen."""
        raise NotImplementedError

    def repaint(self) -> None:
        """Draw the lines for the size of now."""
        size = Size(self.size.width, self.size.height)
        canvas = self.query(Canvas)
        if size.columns > 0 and size.rows > 0 and canvas:
            lines = self.lines(size)
            canvas.first().show(in_ascii(lines) if self.panel.view.is_ascii else lines)

    def on_mount(self) -> None:
        """Draw at once."""
        self.repaint()

    def on_resize(self, event: events.Resize) -> None:
        """Draw again for the new size."""
        self.repaint()

    def on_screen_resume(self) -> None:
        """Draw again when a page above was left."""
        self.repaint()


class DialogScreen(Drawn, ModalScreen[None], inherit_bindings=False):
    """A dialog over the overview, at most 100 columns wide."""

    AUTO_FOCUS = None
    DEFAULT_CSS = """
    DialogScreen { align: center middle; background: transparent; }
    DialogScreen Canvas { width: auto; height: auto; }
    """

    def compose(self) -> ComposeResult:
        """Hold one canvas, sized to the lines."""
        yield Canvas()

    def lines(self, size: Size) -> list[Line]:
        """Return the lines of the dialog for a screen of that size."""
        raise NotImplementedError

    def repaint(self) -> None:
        """Draw the lines and give the canvas their size."""
        size = Size(min(WIDEST, self.app.size.width), self.app.size.height)
        canvas = self.query(Canvas)
        if size.columns < 4 or size.rows < 3 or not canvas:
            return
        lines = self.lines(size)[: size.rows]
        shown = in_ascii(lines) if self.panel.view.is_ascii else lines
        drawn = canvas.first()
        margin = 1 if self.app.size.width >= size.columns + 2 else 0
        drawn.styles.padding = (0, margin)
        drawn.styles.width = size.columns + 2 * margin
        drawn.styles.height = len(shown)
        drawn.show(shown)

    def on_mount(self) -> None:
        """Draw at once."""
        self.repaint()

    def after_grace(self, wake: Callable[[], None]) -> None:
        """Let a yes sleep for a moment, so that no key typed ahead can be one."""
        if self.panel.grace_s > 0:
            self.set_timer(self.panel.grace_s, wake)
        else:
            wake()

    def on_resize(self, event: events.Resize) -> None:
        """Draw again for the new size."""
        self.repaint()
