"""The panel: one worker follows the feed, screens draw the latest snapshot, keys act at once."""

import asyncio
import getpass
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from textual.app import App
from textual.worker import get_current_worker

from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.actions import Action, named
from kvctl.tui.deeds import Deeds
from kvctl.tui.feed import Feed, FeedLost
from kvctl.tui.present.text import clip
from kvctl.tui.present.view import View
from kvctl.tui.screens.base import DialogScreen, PageScreen, Then
from kvctl.tui.screens.overview import Overview

T = TypeVar("T")
FRAME_S = 0.1
RETRY_S = 1.0
FLASH_S = 4.0
GRACE_S = 0.5
LONGEST_TOAST = 300
EMPTY = Snapshot(at=0.0, wall=0.0, host="…", version="")


class PanelApp(App[int], inherit_bindings=False):
    """Composition only: what is drawn is in `present`, what keys do in `actions` and `deeds`."""

    TITLE = "kvctl"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; }
    DialogScreen { background: transparent; }
    Toast { background: ansi_default; border: round ansi_default; max-width: 76; padding: 0 1; }
    """

    def __init__(
        self,
        feed: Feed,
        *,
        is_ascii: bool = False,
        grace_s: float = GRACE_S,
        operator: str | None = None,
        editor: str = "",
    ) -> None:
        """Show this feed; `grace_s` is how long y stays dead after a dialog opened."""
        # Known here, or NO_COLOR chooses a filter that draws black on black (Textual 8.2.8).
        super().__init__(ansi_color=True)
        self.feed = feed
        self.grace_s = grace_s
        self.editor = editor
        self.snapshot = EMPTY
        self.view = View(is_ascii=is_ascii, operator=operator or getpass.getuser())
        self.flash = ""
        self.deeds = Deeds(self)
        self._latest: Snapshot | None = None
        self._lost: str | None = None
        self._news = asyncio.Event()
        self._flash_count = 0

    def get_default_screen(self) -> Overview:
        """Begin with the overview."""
        return Overview()

    def on_mount(self) -> None:
        """Follow the feed and draw what it brings."""
        self.theme = "ansi-dark"
        self.run_worker(self._follow(), group="feed", exit_on_error=True)
        self.run_worker(self._paint(), group="paint", exit_on_error=True)

    async def _follow(self) -> None:
        """Keep the newest item of the feed; a feed that ends is asked again."""
        while True:
            try:
                async for item in self.feed.snapshots():
                    self._bring(item)
                self._bring(FeedLost("kvctld closed the connection"))
            except (KvctlError, OSError) as error:
                self._bring(FeedLost(clip(str(error), 40) or "kvctld does not answer"))
            await asyncio.sleep(RETRY_S)

    def _bring(self, item: Snapshot | FeedLost) -> None:
        if isinstance(item, FeedLost):
            self._lost = item.reason
        else:
            self._latest, self._lost = item, None
        self._news.set()

    async def _paint(self) -> None:
        """Draw the newest snapshot, at most ten times a second; older ones are never drawn."""
        while True:
            await self._news.wait()
            self._news.clear()
            self._take()
            await asyncio.sleep(FRAME_S)

    def _take(self) -> None:
        self.view = replace(self.view, lost=self._lost)
        if self._latest is not None and not self.view.is_held:
            self.snapshot = self._latest
        self.repaint()

    def repaint(self) -> None:
        """Draw every screen that can be seen again; unchanged rows cost nothing."""
        for screen in self.screen_stack:
            if isinstance(screen, PageScreen | DialogScreen) and screen.is_attached:
                screen.repaint()

    # what screens ask for

    def act(self, action: Action, key: str) -> None:
        """Do an action, or say why it is not possible now."""
        why = action.why_not(self.snapshot, self.view)
        if why:
            self.say(f"{action.shown or action.title}: {why}")
        elif action.make is not None:
            labels = action.hint(self.snapshot).labels
            self.submit(action.make(self.snapshot), labels[0] if labels else action.title)
        else:
            self.deeds.of(action.name)(key)

    def do(self, name: str, key: str = "") -> None:
        """Do what an action of this name does."""
        self.act(named(name), key)

    def look(self, **changes: object) -> None:
        """Change the view and draw it."""
        self.view = replace(self.view, **changes)  # type: ignore[arg-type]
        if changes.get("is_held") is False and self._latest is not None:
            self.snapshot = self._latest
        self.repaint()

    def say(self, text: str) -> None:
        """Show a short message for a few seconds."""
        self.flash = text
        self._flash_count += 1
        count = self._flash_count
        self.set_timer(FLASH_S, lambda: self._unsay(count))
        self.repaint()

    def _unsay(self, count: int) -> None:
        if count == self._flash_count:
            self.flash = ""
            self.repaint()

    def interrupt(self) -> None:
        """Answer ctrl+c."""
        self.deeds.interrupt("ctrl+c")

    def submit(self, command: Command, title: str, then: Then | None = None) -> None:
        """Carry out a command in the background; no key waits for it."""
        if then is None:
            self.say(f"{title} …")
        self.run_worker(self._carry_out(command, title, then), group="commands")

    async def _carry_out(self, command: Command, title: str, then: Then | None) -> None:
        try:
            outcome = await self.feed.submit(command)
        except (KvctlError, OSError) as error:
            status = error.exit_status if isinstance(error, KvctlError) else 3
            outcome = Outcome(status, str(error))
        if then is not None:
            then(outcome)
        else:
            self.toast(outcome, title)

    def toast(self, outcome: Outcome, title: str) -> None:
        """Show how a command ended, in words first."""
        word = "done" if outcome.is_done else "refused" if outcome.exit_status == 4 else "failed"
        severity = "information" if outcome.is_done else "error"
        self.flash = ""
        self.notify(
            clip(outcome.message, LONGEST_TOAST),
            title=f"{clip(title, 40)}: {word}",
            severity=severity,  # type: ignore[arg-type]
            timeout=5.0 if outcome.is_done else 12.0,
            markup=False,
        )
        self.repaint()

    def in_thread(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Do blocking work in a thread and bring its result back."""

        def carry() -> None:
            result = work()
            if not get_current_worker().is_cancelled:
                self.call_from_thread(then, result)

        self.run_worker(carry, thread=True, group="files")


def run_panel(
    feed: Feed,
    *,
    ascii: bool = False,
    no_mouse: bool = False,
    operator: str | None = None,
    editor: str = "",
) -> int:
    """Run the panel until it is left; return the exit status."""
    app = PanelApp(feed, is_ascii=ascii, operator=operator, editor=editor)
    result = app.run(mouse=not no_mouse)
    return app.return_code or result or 0
