"""Editing a preset from the panel: the operator's editor gets the terminal, then every check."""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from kvctl.core.controller.commands import Outcome, OwnPreset, ValidatePreset
from kvctl.tui.present.line import Ink, Line, blank, plain
from kvctl.tui.present.text import wrap
from kvctl.tui.present.words import short_paths
from kvctl.tui.screens.pages import ScrollPage

if TYPE_CHECKING:
    from kvctl.tui.app import PanelApp

_USUAL = ("sensible-editor", "nano", "vim", "vi")
"""Tried in this order where neither $VISUAL nor $EDITOR is set."""


def edit_preset(app: "PanelApp", name: str) -> None:
    """Take a preset into the operator's folder, edit it there, and show what is wrong then."""

    def owned(outcome: Outcome) -> None:
        if not outcome.is_done:
            app.toast(outcome, f"edit {name}")
            return
        problem = _run_editor(app, str(outcome.data.get("path", "")))
        if problem:
            app.say(problem)
            return
        app.say(f"{outcome.message}; checking …")
        app.submit(ValidatePreset(name), f"check {name}", validated)

    def validated(outcome: Outcome) -> None:
        errors, warnings = (_texts(outcome, key) for key in ("errors", "warnings"))
        if errors or warnings:
            app.push_screen(ProblemsPage(name, errors, warnings))
        else:
            app.toast(outcome, f"edit {name}")

    app.submit(OwnPreset(name), f"edit {name}", owned)


def _texts(outcome: Outcome, key: str) -> tuple[str, ...]:
    value = outcome.data.get(key)
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def _run_editor(app: "PanelApp", path: str) -> str:
    """Lend the terminal to the editor; return why that did not work, "" if it did."""
    command = _command(app.editor)
    if not command:
        return f"no editor: set $EDITOR, or edit {path}"
    try:
        with app.suspend():
            status = subprocess.run([*command, path], check=False).returncode
    except SuspendNotSupported:
        return f"this terminal cannot be lent to an editor; edit {path}"
    except OSError as failed:
        return f"{command[0]} cannot be run ({failed.strerror}); set $EDITOR, or edit {path}"
    finally:
        app.refresh(repaint=True, layout=True)
    return f"{command[0]} ended with status {status}; nothing was checked" if status else ""


def _command(editor: str) -> list[str]:
    try:
        words = shlex.split(editor)
    except ValueError:
        words = [editor]
    return words or [name for name in _USUAL if shutil.which(name)][:1]


class ProblemsPage(ScrollPage):
    """What is wrong with a preset that was just edited, each with its line."""

    def __init__(self, name: str, errors: Sequence[str], warnings: Sequence[str]) -> None:
        """Show the problems of this preset."""
        super().__init__()
        self.preset_name = name
        self.errors = errors
        self.warnings = warnings

    def content(self, columns: int) -> tuple[str, list[Line]]:
        """Return title and problems, errors first."""
        drawn: list[Line] = []
        marked = [("✗", e, Ink.BAD) for e in self.errors] + [
            ("!", w, Ink.WARN) for w in self.warnings
        ]
        for mark, text, ink in marked:
            first, *rest = wrap(short_paths(text), columns - 4) or [""]
            drawn.append(plain(columns, f" {mark} {first}", ink))
            drawn += [plain(columns, f"   {line}") for line in rest]
        can = "it cannot be started" if self.errors else "it can be started"
        drawn += [blank(columns), plain(columns, f" {can}; e edits it again", Ink.DIM)]
        count = len(self.errors)
        word = f"{count} problem{'s' if count > 1 else ''}" if count else "valid, with warnings"
        return f"{self.preset_name} ── {word}", drawn

    def press(self, key: str, character: str | None) -> None:
        """Edit again, scroll or leave."""
        if key == "e":
            self.dismiss(None)
            self.app.call_later(edit_preset, self.app, self.preset_name)
            return
        super().press(key, character)
