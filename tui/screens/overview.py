"""The overview, or one of its panes on the whole screen."""

from kvctl.tui.actions import action_for, habit_of, hints
from kvctl.tui.present import layout
from kvctl.tui.present.line import Line
from kvctl.tui.screens.base import PageScreen


class Overview(PageScreen):
    """Every pane at once; keys go through the registry."""

    def lines(self, size: layout.Size) -> list[Line]:
        """Return the composite for the size."""
        snapshot, view = self.panel.snapshot, self.panel.view
        return layout.overview(snapshot, view, size, hints(snapshot, view), self.panel.flash)

    def press(self, key: str, character: str | None) -> None:
        """Do what the registry says of the key."""
        action = action_for(key, character)
        if action is not None:
            self.panel.act(action, key)
            return
        habit = habit_of(character or key)
        if habit is not None:
            self.panel.say(habit)
