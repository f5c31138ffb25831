"""Smaller dialogs: kill, a choice of ways, a typed value."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvctl.core.controller.commands import KillProcesses, Outcome
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.tui.field import Field
from kvctl.tui.present import kill
from kvctl.tui.present.box import Box, Option, entry_line
from kvctl.tui.present.kill import KillState
from kvctl.tui.present.layout import Size
from kvctl.tui.present.line import Ink, Line, plain
from kvctl.tui.screens.base import DialogScreen

TERM_WAIT_S = 15.0
_MOVES = {"down": 1, "j": 1, "up": -1, "k": -1}
_TURNS = {"tab": 1, "right": 1, "shift+tab": -1, "left": -1}


class KillDialog(DialogScreen):
    """Cancel is focused; nothing is sent to a process that is not identified."""

    def __init__(self, pid: int | None = None, marked: Iterable[kill.Key] = ()) -> None:
        """Put the cursor on a process, where one was selected; some can be marked already."""
        super().__init__()
        self.state = KillState(marked=set(marked))
        self._wanted = pid

    def on_mount(self) -> None:
        """Find the wanted process and let y sleep for a moment."""
        found = kill.candidates(self.panel.snapshot)
        wanted = [holder for holder in found if holder.pid == self._wanted] or found[:1]
        self.state.at = kill.key_of(wanted[0]) if wanted else None
        self.after_grace(self._wake)
        self.repaint()

    def _wake(self) -> None:
        self.state.is_awake = True

    def lines(self, size: Size) -> list[Line]:
        """Return the dialog."""
        return kill.dialog(self.panel.snapshot, self.state, size.columns, size.rows)

    def press(self, key: str, character: str | None) -> None:
        """Choose, mark, send or leave."""
        state = self.state
        state.said = ""
        if state.is_sent or key in ("escape", "n", "q") or (key == "enter" and not state.focus):
            if not state.is_sent or key in ("escape", "q", "enter"):
                self.dismiss(None)
            return
        if key in ("y", "enter"):
            self._send("KILL" if key == "enter" and state.focus == 2 else "TERM")
        elif key in _TURNS:
            state.focus = (state.focus + _TURNS[key]) % len(kill.BUTTONS)
        elif key in _MOVES:
            state.at = kill.moved(self.panel.snapshot, state, _MOVES[key])
        elif key == "m":
            scopes = list(kill.Scope)
            state.scope = scopes[(scopes.index(state.scope) + 1) % len(scopes)]
        elif key == "space":
            self._mark()
        self.repaint()

    def _mark(self) -> None:
        holder = kill.current(self.panel.snapshot, self.state)
        if holder is not None:
            self.state.marked ^= {kill.key_of(holder)}

    def _send(self, signal: str) -> None:
        chosen = kill.targets(self.panel.snapshot, self.state)
        problem = kill.why_not(chosen)
        if problem or not self.state.is_awake:
            self.state.said = problem or "one moment: y works half a second after opening"
            return
        targets = tuple(
            ProcessIdentity(h.pid, h.start_ticks) for h in chosen if h.start_ticks is not None
        )
        self.state.is_sent = True
        command = KillProcesses(
            targets,
            signal,
            TERM_WAIT_S,
            signal == "TERM",
            confirmed=True,
            group=self.state.scope is kill.Scope.LAUNCH,
        )
        self.panel.submit(command, "kill", self._ended)

    def _ended(self, outcome: Outcome) -> None:
        self.state.result = (outcome.message, *outcome.observed)
        self.panel.look(marked=frozenset())
        if self.is_attached:
            self.repaint()
        else:
            self.panel.toast(outcome, "kill")


@dataclass(frozen=True, slots=True)
class Question:
    """A choice of ways with a yes."""

    title: str
    intro: str
    options: Sequence[Option]
    verb: str
    yes: Callable[[str], None]
    """Called with the chosen option's name."""


class ChoiceDialog(DialogScreen):
    """Ways with the cost of each; Cancel is focused."""

    def __init__(self, question: Question, chosen: int = 0) -> None:
        """Ask this question."""
        super().__init__()
        self.question = question
        self.chosen = chosen
        self.focus_at = 0
        self.is_awake = False
        self.said = ""

    def on_mount(self) -> None:
        """Let y sleep for a moment."""
        self.after_grace(self._wake)
        self.repaint()

    def _wake(self) -> None:
        self.is_awake = True

    def lines(self, size: Size) -> list[Line]:
        """Return the dialog."""
        box = Box(size.columns)
        box.section(self.question.title)
        box.text(self.question.intro)
        if self.question.options:
            box.gap()
            box.options(self.question.options, self.chosen)
        box.gap()
        if self.said:
            box.text(self.said, Ink.WARN)
        keys = "↑↓ choose  y yes  Esc leave" if self.question.options else "y yes  Esc leave"
        box.buttons(("Cancel", self.question.verb), self.focus_at, keys)
        return box.end()

    def press(self, key: str, character: str | None) -> None:
        """Choose, agree or leave."""
        self.said = ""
        if key in ("escape", "n", "q") or (key == "enter" and self.focus_at == 0):
            self.dismiss(None)
            return
        if key in ("y", "enter"):
            if self._agree():
                return
        elif key in _TURNS:
            self.focus_at = 1 - self.focus_at
        elif (key in _MOVES or key == "m") and self.question.options:
            self.chosen = (self.chosen + _MOVES.get(key, 1)) % len(self.question.options)
        self.repaint()

    def _agree(self) -> bool:
        options = self.question.options
        option = options[self.chosen] if options else None
        if option is not None and option.why_not:
            self.said = option.why_not
        elif not self.is_awake:
            self.said = "one moment: y works half a second after opening"
        else:
            self.dismiss(None)
            self.question.yes(option.name if option else "")
            return True
        return False


@dataclass(frozen=True, slots=True)
class Request:
    """A value to type, perhaps with suggestions."""

    title: str
    intro: str
    verb: str
    judge: Callable[[str], str]
    """Returns why a text is not acceptable, "" if it is."""
    take: Callable[[str], None]
    note: Callable[[str], str] = lambda text: ""
    """Returns what the text would mean, shown below it."""


class EntryDialog(DialogScreen):
    """A typed line; Enter takes it, Esc leaves."""

    def __init__(self, request: Request, text: str = "") -> None:
        """Ask for this value, beginning with a text."""
        super().__init__()
        self.request = request
        self.field = Field()
        self.field.replace(text)
        self.suggestions: list[Option] = []
        self.chosen = -1
        self.said = ""

    def suggest(self, options: Sequence[Option]) -> None:
        """Offer texts to choose with the arrows."""
        self.suggestions = list(options)
        if self.is_attached:
            self.repaint()

    def lines(self, size: Size) -> list[Line]:
        """Return the dialog."""
        box = Box(size.columns)
        box.section(self.request.title)
        box.text(self.request.intro)
        box.lines([entry_line(self.field.text, self.field.cursor, box.inner)])
        note = self.request.note(self.field.text)
        if note:
            box.text(note, Ink.DIM, 2)
        room = max(1, size.rows - len(box.drawn) - 5)
        chosen = 0 if self._only() else self.chosen
        for number, option in enumerate(self.suggestions[:room]):
            text = f" {'>' if number == chosen else ' '} {option.name}  {option.text}"
            ink = Ink.CURSOR if number == chosen else Ink.PLAIN
            box.lines([plain(box.inner, text, ink)])
        if self.said:
            box.text(self.said, Ink.WARN, 2)
        arrows = "↑↓ choose  " if self.suggestions else ""
        box.lines([plain(box.inner, f" {arrows}Enter {self.request.verb}  Esc leave", Ink.DIM)])
        return box.end()

    def _only(self) -> str:
        """Return the one suggestion that Enter takes while nothing is typed; "" where several."""
        is_plain = not self.field.text and len(self.suggestions) == 1
        return self.suggestions[0].name if is_plain else ""

    def press(self, key: str, character: str | None) -> None:
        """Type, choose, take or leave."""
        self.said = ""
        if key == "escape":
            self.dismiss(None)
            return
        if key == "enter":
            text = self.field.text or self._only()
            self.said = self.request.judge(text)
            if not self.said:
                self.dismiss(None)
                self.request.take(text)
                return
        elif key in ("down", "up", "tab") and self.suggestions:
            step = -1 if key == "up" else 1
            self.chosen = (self.chosen + step) % len(self.suggestions)
            self.field.replace(self.suggestions[self.chosen].name)
        else:
            self.field.press(key, character)
        self.repaint()

    def paste(self, text: str) -> None:
        """Take pasted text."""
        self.field.insert(text)
        self.repaint()
