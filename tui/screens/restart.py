"""The restart (or start) dialog: choose, see every check, y; then the stages live."""

from collections.abc import Callable

from kvctl.core.controller.commands import (
    CheckPreset,
    Command,
    Outcome,
    RestartServer,
    StartServer,
)
from kvctl.core.domain.servers.server import ServerState
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.actions import action_for
from kvctl.tui.present import restart
from kvctl.tui.present.check import read_check
from kvctl.tui.present.layout import Size
from kvctl.tui.present.line import Line
from kvctl.tui.present.presets import in_order
from kvctl.tui.present.restart import RestartState
from kvctl.tui.present.words import is_changing
from kvctl.tui.screens.base import DialogScreen


class RestartDialog(DialogScreen):
    """Touches nothing before y, and y waits for every check."""

    def __init__(self, snapshot: Snapshot, *, is_start: bool, preset: str | None = None) -> None:
        """Choose the named preset, else the one the verdict names, else the running one."""
        super().__init__()
        self.state = RestartState(is_start, _first_choice(snapshot, preset))

    def on_mount(self) -> None:
        """Ask for the checks of the chosen preset and let y sleep for a moment."""
        self.after_grace(self._wake)
        self._check()
        self.repaint()

    def _wake(self) -> None:
        self.state.is_awake = True
        self.repaint()

    def _check(self) -> None:
        preset = restart.preset_at(self.panel.snapshot, self.state)
        self.state.check = None
        if preset is None:
            return
        name = preset.name

        def answered(outcome: Outcome) -> None:
            self._answered(name, outcome)

        server = self.panel.snapshot.server
        command = CheckPreset(name, server.name if server and not self.state.is_start else None)
        self.panel.submit(command, f"check {name}", answered)

    def _answered(self, name: str, outcome: Outcome) -> None:
        """Take the answer if it is about the preset that is chosen now."""
        preset = restart.preset_at(self.panel.snapshot, self.state)
        if preset is not None and preset.name == name:
            self.state.check = read_check(name, outcome)
            self.repaint()

    def lines(self, size: Size) -> list[Line]:
        """Return the dialog."""
        return restart.preflight(self.panel.snapshot, self.state, size.columns, size.rows)

    def press(self, key: str, character: str | None) -> None:
        """Choose, go ahead, or leave."""
        state = self.state
        state.said = ""
        if key in ("escape", "n", "q") or (key == "enter" and state.focus == 0):
            self.dismiss(None)
            return
        if key in ("y", "enter"):
            self._go()
            return
        if key in ("down", "j", "up", "k"):
            self._choose(1 if key in ("down", "j") else -1)
        elif key == "m":
            state.way = (state.way + 1) % len(restart.WAYS)
        elif key == "f":
            state.cuts_foreign = not state.cuts_foreign
        elif key in ("tab", "shift+tab", "left", "right"):
            state.focus = 1 - state.focus
        self.repaint()

    def _choose(self, step: int) -> None:
        count = len(self.panel.snapshot.presets)
        if count:
            self.state.chosen = (self.state.chosen + step) % count
            self._check()

    def _go(self) -> None:
        snapshot = self.panel.snapshot
        self.state.said = restart.why_not_yet(snapshot, self.state)
        if self.state.said:
            self.repaint()
            return
        preset = restart.preset_at(snapshot, self.state)
        if preset is None:
            return
        server = snapshot.server
        before = server.preset or server.name if server and not self.state.is_start else None
        title = f"Restart ── {before} → {preset.name}" if before else f"Start ── {preset.name}"
        dialog = StagesDialog(title, self.panel.toast)
        self.panel.submit(self._command(snapshot, preset.name), title, dialog.ended)
        self.app.switch_screen(dialog)

    def _command(self, snapshot: Snapshot, preset: str) -> Command:
        server = snapshot.server
        if self.state.is_start:
            return StartServer(preset)
        way = restart.WAYS[self.state.way]
        name = server.name if server else None
        return RestartServer(preset, name, way, self.state.cuts_foreign)


class StagesDialog(DialogScreen):
    """The stages of a start, stop or restart, live; leaving it stops nothing."""

    def __init__(self, title: str, toast: Callable[[Outcome, str], None] | None = None) -> None:
        """Show the stages under this title; `toast` says the outcome once this was left."""
        super().__init__()
        self.title_text = title
        self.outcome: Outcome | None = None
        self._toast = toast

    def ended(self, outcome: Outcome) -> None:
        """Take the outcome: the dialog says it while it is open, else a toast does."""
        self.outcome = outcome
        if self.is_attached:
            self.repaint()
        elif self._toast is not None:
            self._toast(outcome, self.title_text)

    def lines(self, size: Size) -> list[Line]:
        """Return the stages, and how it ended once it has."""
        snapshot, title = self.panel.snapshot, self.title_text
        return restart.running(snapshot, size.columns, size.rows, title, self._said())

    def _said(self) -> str:
        if self.outcome is None:
            return ""
        word = "done" if self.outcome.is_done else "stopped"
        return f"{word}: {self.outcome.message}"

    def press(self, key: str, character: str | None) -> None:
        """Leave it going on, read the log, or cancel the start."""
        deeds = {"l": "log", "X": "cancel"}
        if restart.has_failed(self.panel.snapshot, self._said()):
            deeds |= {"b": "last_good", "w": "why"}
        if key in deeds:
            self.dismiss(None)
            self.app.call_later(self.panel.do, deeds[key])
        elif key in ("escape", "q", "w", "enter"):
            self.dismiss(None)
        elif self._said() and (action := action_for(key, character)) is not None:
            # It is over, so the verdict behind the dialog already offers what to do next.
            self.dismiss(None)
            self.app.call_later(self.panel.act, action, key)


def _first_choice(snapshot: Snapshot, preset: str | None) -> int:
    """Return which preset is chosen when the dialog opens."""
    presets = in_order(snapshot)
    names = [found.name for found in presets]
    if preset in names:
        return names.index(preset)
    lever = snapshot.verdicts[0].lever if snapshot.verdicts else ""
    for number, found in enumerate(presets):
        if lever.startswith("R ") and found.name in lever.split() and not found.refused:
            return number
    running = [n for n, found in enumerate(presets) if found.is_running]
    allowed = [n for n, p in enumerate(presets) if not (p.refused or p.problem or p.needs)]
    return (running or allowed or [0])[0]


def is_in_progress(snapshot: Snapshot) -> bool:
    """Return whether the stages are what there is to see."""
    server = snapshot.server
    return is_changing(server) and server is not None and server.state is not ServerState.FAILED
