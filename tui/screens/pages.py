"""Pages that fill the screen: why, help, palette, launches, the failure card and the log."""

from pathlib import Path

from textual.timer import Timer

from kvctl.tui.actions import action_for
from kvctl.tui.field import Field
from kvctl.tui.logfile import LogFile
from kvctl.tui.present import failure, log, pages
from kvctl.tui.present.box import WIDEST, entry_line
from kvctl.tui.present.layout import Size
from kvctl.tui.present.line import Line, plain
from kvctl.tui.screens.base import DialogScreen, PageScreen

POLL_S = 0.5
_LEAVE = ("escape", "q")
_STEPS = {"j": 1, "down": 1, "k": -1, "up": -1, "pagedown": 10, "pageup": -10, "space": 10}


class ScrollPage(PageScreen):
    """A page of lines that can be scrolled and left."""

    name_key = ""
    """The key that opened it and closes it too."""

    def __init__(self) -> None:
        """Begin at the top."""
        super().__init__()
        self.first = 0

    def content(self, columns: int) -> tuple[str, list[Line]]:
        """Return title and lines of the inner width."""
        raise NotImplementedError

    def lines(self, size: Size) -> list[Line]:
        """Return the framed page."""
        title, lines = self.content(size.columns - 2)
        self.first = max(0, min(self.first, len(lines) - (size.rows - 3)))
        page = pages.Page(title, lines, "j k PgUp PgDn move  g G ends  Esc back", self.first)
        return pages.framed(page, size.columns, size.rows)

    def press(self, key: str, character: str | None) -> None:
        """Scroll or leave."""
        if key in _LEAVE or key == self.name_key:
            self.dismiss(None)
            return
        ends = {"g": 0, "home": 0, "G": 10**6, "end": 10**6}
        self.first = max(0, ends.get(key, self.first + _STEPS.get(key, 0)))
        self.repaint()


class WhyPage(ScrollPage):
    """The arithmetic and the sources behind the verdict."""

    name_key = "w"

    def content(self, columns: int) -> tuple[str, list[Line]]:
        """Return the verdict with its numbers."""
        return "Why", pages.why_lines(self.panel.snapshot, self.panel.view, columns)


class ComparePage(ScrollPage):
    """The measured operating points."""

    name_key = "c"

    def content(self, columns: int) -> tuple[str, list[Line]]:
        """Return the table of launches."""
        return "Launches compared", pages.compare_lines(self.panel.snapshot, columns)


class HelpPage(PageScreen):
    """Every key, searchable by typing."""

    def __init__(self) -> None:
        """Begin with every key."""
        super().__init__()
        self.field = Field()
        self.first = 0

    def lines(self, size: Size) -> list[Line]:
        """Return the keys that match."""
        inner = size.columns - 2
        snapshot, view = self.panel.snapshot, self.panel.view
        lines = pages.help_lines(snapshot, view, inner, self.field.text)
        self.first = max(0, min(self.first, len(lines) - (size.rows - 4)))
        entry = entry_line(self.field.text, self.field.cursor, inner, "search: ")
        page = pages.Page(
            "Keys", lines, "type to search  ↑↓ PgUp PgDn  Esc back", self.first, entry
        )
        return pages.framed(page, size.columns, size.rows)

    def press(self, key: str, character: str | None) -> None:
        """Search, scroll or leave."""
        if key == "escape" or (key in ("q", "question_mark", "f1") and not self.field.text):
            self.dismiss(None)
            return
        steps = {"down": 1, "up": -1, "pagedown": 10, "pageup": -10}
        if key in steps:
            self.first = max(0, self.first + steps[key])
        elif self.field.press(key, character):
            self.first = 0
        self.repaint()


class PalettePage(PageScreen):
    """Every command by name; Enter runs the chosen one."""

    def __init__(self) -> None:
        """Begin with every command."""
        super().__init__()
        self.field = Field()
        self.chosen = 0

    def lines(self, size: Size) -> list[Line]:
        """Return the commands that match."""
        cursor = (self.field.cursor, self.chosen)
        page = pages.palette_page(
            self.panel.snapshot, self.panel.view, size.columns, self.field.text, cursor
        )
        return pages.framed(page, size.columns, size.rows)

    def press(self, key: str, character: str | None) -> None:
        """Type, choose, run or leave."""
        found = pages.matching(self.field.text)
        if key == "escape":
            self.dismiss(None)
        elif key == "enter":
            self._run(found[self.chosen].name if found else "")
        elif key in ("down", "up", "tab", "shift+tab"):
            step = 1 if key in ("down", "tab") else -1
            self.chosen = (self.chosen + step) % max(1, len(found))
            self.repaint()
        elif self.field.press(key, character):
            self.chosen = 0
            self.repaint()

    def _run(self, name: str) -> None:
        panel = self.panel
        self.dismiss(None)
        if name:
            self.app.call_later(panel.do, name)


_CARD_DEEDS = {"b": "last_good", "r": "stop", "l": "log"}
"""Key of the failure card -> action."""


class CardDialog(DialogScreen):
    """The failure card: cause, what to do, evidence, state now."""

    def lines(self, size: Size) -> list[Line]:
        """Return the card."""
        good = failure.way_back(self.panel.snapshot)
        back = (("b", f"back to {good}, the last preset that worked"),) if good else ()
        keys = (*back, ("r", "the same again"), ("l", "log"),
                ("y", "copy this card"), ("Esc", "back; the verdict stays"))  # fmt: skip
        return failure.card(self.panel.snapshot, min(WIDEST, size.columns), keys)

    def press(self, key: str, character: str | None) -> None:
        """Leave, or do what the card offers."""
        panel = self.panel
        if key in (*_LEAVE, "w", "enter", "n"):
            self.dismiss(None)
        elif key in _CARD_DEEDS:
            self.dismiss(None)
            self.app.call_later(panel.do, _CARD_DEEDS[key], key)
        elif key == "y":
            text = "\n".join(line.text for line in self.lines(Size(WIDEST, 40)))
            self.app.copy_to_clipboard(text)
            panel.say("card copied (OSC 52)")
        else:
            action = action_for(key, character)
            if action is not None and action.name == "restart":
                self.dismiss(None)
                self.app.call_later(panel.do, "stop", key)


class LogPage(PageScreen):
    """The end of the server's log file, followed; the file is read in a thread."""

    def __init__(self, path: str) -> None:
        """Follow this file from its last lines on."""
        super().__init__()
        self.file = LogFile(path)
        self.field = Field()
        self.is_typing = False
        self.is_following = True
        self.first = 0
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        """Read now and then again and again."""
        self.repaint()
        self._read()
        self._timer = self.set_interval(POLL_S, self._read)

    def _read(self) -> None:
        self.run_worker(self._read_in_thread, thread=True, exclusive=True, group="log")

    def _read_in_thread(self) -> None:
        if self.file.read_new():
            self.app.call_from_thread(self.repaint)

    def shown(self) -> list[str]:
        """Return the lines after filter and folding."""
        return log.folded(log.kept(list(self.file.lines), self.field.text))

    def lines(self, size: Size) -> list[Line]:
        """Return the page: filter line while typing, then the log."""
        inner = size.columns - 2
        shown = self.shown()
        has_entry = self.is_typing or bool(self.field.text)
        room = size.rows - 3 - has_entry
        if self.is_following:
            self.first = max(0, len(shown) - room)
        self.first = max(0, min(self.first, len(shown) - room))
        body = log.drawn(shown[self.first : self.first + room], inner)
        if self.file.problem:
            body = [plain(inner, f" log –: {self.file.problem}")]
        at = self.field.cursor if self.is_typing else len(self.field.text)
        entry = entry_line(self.field.text, at, inner, "/ ") if has_entry else None
        page = pages.Page(self._title(len(shown)), body, _LOG_KEYS, 0, entry)
        return pages.framed(page, size.columns, size.rows)

    def _title(self, count: int) -> str:
        state = "following" if self.is_following else "standing still, f follows"
        return f"Log {Path(self.file.path).name} ── {count} lines ── {state}"

    def press(self, key: str, character: str | None) -> None:
        """Type a filter, scroll, or leave."""
        if self.is_typing:
            self._type(key, character)
        elif key == "escape" and self.field.text:
            self.field.replace("")
        elif key in (*_LEAVE, "l"):
            self.dismiss(None)
            return
        elif key in ("slash", "/"):
            self.is_typing = True
        else:
            self._move(key)
        self.repaint()

    def _type(self, key: str, character: str | None) -> None:
        if key in ("enter", "escape"):
            self.is_typing = False
            if key == "escape":
                self.field.replace("")
        else:
            self.field.press(key, character)

    def _move(self, key: str) -> None:
        if key in ("f", "G", "end"):
            self.is_following = key != "f" or not self.is_following
        elif key == "E":
            found = log.first_error(self.shown())
            self.is_following = found is None
            self.first = found or 0
        elif key in ("g", "home"):
            self.is_following, self.first = False, 0
        elif key in _STEPS:
            step = _STEPS[key]
            self.is_following = self.is_following and step > 0
            self.first = max(0, self.first + step)

    def paste(self, text: str) -> None:
        """Take a pasted filter."""
        if self.is_typing:
            self.field.insert(text)
            self.repaint()


_LOG_KEYS = "f follow  / filter (!not)  E first error  j k g G move  Esc back"
