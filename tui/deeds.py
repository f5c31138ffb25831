"""What each action of the registry does: opens a page or a dialog, or changes the view."""

import time
from collections.abc import Callable

from kvctl.core.domain.servers.server import ServerState
from kvctl.tui.conditions import has_live_server, needs_holder
from kvctl.tui.present import holders, server
from kvctl.tui.present.presets import in_order
from kvctl.tui.present.view import PANES
from kvctl.tui.preset_editing import edit_preset
from kvctl.tui.questions import Questions
from kvctl.tui.screens.pages import (
    CardDialog,
    ComparePage,
    HelpPage,
    LogPage,
    PalettePage,
    WhyPage,
)
from kvctl.tui.screens.restart import StagesDialog, is_in_progress

LEAVE_WITHIN_S = 2.0


class Deeds(Questions):
    """One method an action; the registry's name is the method's."""

    _interrupted_at = float("-inf")

    def of(self, name: str) -> Callable[[str], None]:
        """Return what an action does, given the key that was pressed."""
        deed: Callable[[str], None] = getattr(self, name)
        return deed

    # view

    def zoom(self, key: str) -> None:
        """Fill the screen with a pane, or come back."""
        number = int(key) if key.isdigit() else 1
        is_back = self.app.view.zoom == number
        self.app.look(zoom=None if is_back else number, cursor=0)

    def next_pane(self, key: str) -> None:
        """Zoom the next pane."""
        self._turn(1)

    def previous_pane(self, key: str) -> None:
        """Zoom the pane before."""
        self._turn(-1)

    def _turn(self, step: int) -> None:
        now = self.app.view.zoom
        at = PANES.index(now) + step if now else (0 if step > 0 else -1)
        self.app.look(zoom=PANES[at % len(PANES)], cursor=0)

    def down(self, key: str) -> None:
        """Move the cursor down."""
        self._move(1)

    def up(self, key: str) -> None:
        """Move the cursor up."""
        self._move(-1)

    def page_down(self, key: str) -> None:
        """Move ten rows down."""
        self._move(10)

    def page_up(self, key: str) -> None:
        """Move ten rows up."""
        self._move(-10)

    def top(self, key: str) -> None:
        """Go to the first row."""
        self._move(-(10**6))

    def bottom(self, key: str) -> None:
        """Go to the last row."""
        self._move(10**6)

    def _move(self, step: int) -> None:
        snapshot, view = self.app.snapshot, self.app.view
        counts = {
            2: len(holders.rows(snapshot.gpus)),
            3: len(snapshot.run.partitions) if snapshot.run else 0,
            4: len(server.setting_lines(snapshot.server, 80)) if snapshot.server else 0,
            5: len(snapshot.presets),
            6: len(snapshot.events),
        }
        last = max(0, counts.get(view.zoom or 0, 0) - 1)
        self.app.look(cursor=max(0, min(last, view.cursor + step)))

    def mark(self, key: str) -> None:
        """Mark the selected process for the kill, or take its mark away; then the next row."""
        row = holders.selected(self.app.snapshot.gpus, self.app.view)
        mark = holders.mark_of(row) if row is not None else None
        if mark is not None:
            self.app.look(marked=self.app.view.marked ^ {mark})
        self._move(1)

    def open(self, key: str) -> None:
        """Open what is selected: a preset's preflight, a holder's kill dialog, else the why."""
        if self.app.view.zoom == 5 and self.app.snapshot.presets:
            self.app.do("restart" if has_live_server(self.app.snapshot) else "stop", key)
        elif self.app.view.zoom == 2 and not needs_holder(self.app.snapshot, self.app.view):
            self.app.do("kill", key)
        else:
            self.why(key)

    def edit(self, key: str) -> None:
        """Edit the selected preset in the operator's editor, then say what is wrong with it."""
        presets = in_order(self.app.snapshot)
        edit_preset(self.app, presets[self.app.view.cursor % len(presets)].name)

    def back(self, key: str) -> None:
        """Leave the zoomed pane."""
        self.app.look(zoom=None, cursor=0, note=0)

    def next_note(self, key: str) -> None:
        """Show the next verdict."""
        self.app.look(note=(self.app.view.note + 1) % len(self.app.snapshot.verdicts))

    def previous_note(self, key: str) -> None:
        """Show the verdict before."""
        self.app.look(note=(self.app.view.note - 1) % len(self.app.snapshot.verdicts))

    def hold_display(self, key: str) -> None:
        """Let the display stand still, or go on."""
        self.app.look(is_held=not self.app.view.is_held)

    def lock(self, key: str) -> None:
        """Lock or unlock this panel."""
        self.app.look(is_locked=not self.app.view.is_locked)

    def events(self, key: str) -> None:
        """Zoom the events."""
        self.zoom("6")

    def flags(self, key: str) -> None:
        """Zoom the server's settings."""
        self.zoom("4")

    # pages

    def why(self, key: str) -> None:
        """Open the stages, the failure card, or the arithmetic."""
        snapshot = self.app.snapshot
        server = snapshot.server
        if is_in_progress(snapshot):
            title = (
                snapshot.busy_command
                or f"Start ── {server.preset or server.name if server else ''}"
            )
            self.app.push_screen(StagesDialog(title))
        elif server is not None and server.state is ServerState.FAILED and not self.app.view.note:
            self.app.push_screen(CardDialog())
        else:
            self.app.push_screen(WhyPage())

    def log(self, key: str) -> None:
        """Open the log of the server."""
        server = self.app.snapshot.server
        if server is not None and server.log_path is not None:
            self.app.push_screen(LogPage(server.log_path))

    def compare(self, key: str) -> None:
        """Open the comparison of launches."""
        self.app.push_screen(ComparePage())

    def palette(self, key: str) -> None:
        """Open the palette."""
        self.app.push_screen(PalettePage())

    def help(self, key: str) -> None:
        """Open the keys."""
        self.app.push_screen(HelpPage())

    # leaving

    def leave(self, key: str) -> None:
        """Close the panel; nothing else stops."""
        self.app.exit(0)

    def suspend(self, key: str) -> None:
        """Go to the shell."""
        self.app.action_suspend_process()

    def interrupt(self, key: str) -> None:
        """Say how to leave; leave at the second time within two seconds."""
        now = time.monotonic()
        if now - self._interrupted_at <= LEAVE_WITHIN_S:
            self.app.exit(0)
            return
        self._interrupted_at = now
        self.app.say("q leaves; nothing stops. ctrl+c again leaves too")
