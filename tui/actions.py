"""The one registry of what the panel can do: keys, words, danger, and when it is possible.

Footer, help, palette and the key table of the README are made from it. A lower-case letter
opens, shows, or does what the same key undoes; upper case leads to processes and asks. Only `b`
starts something at once: after a failure nothing serves that it could disturb.
ctrl+s, ctrl+q (flow control), ctrl+a and ctrl+b (screen, tmux) are never bound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.controller.commands import (
    Command,
    RefreshNow,
    RetryFailed,
)
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.conditions import (
    always,
    auto_label,
    fewer,
    last_good_label,
    more,
    needs_change,
    needs_failure,
    needs_gpu_list,
    needs_holder,
    needs_log,
    needs_no_run,
    needs_notes,
    needs_preset,
    needs_run,
    needs_server,
    needs_stillness,
    pause_label,
    pause_or_resume,
    restart_label,
    stop_label,
    switch_auto,
    why_label,
)
from kvctl.tui.present.footer import Hint
from kvctl.tui.present.view import View
from kvctl.tui.present.words import is_changing


class Danger(StrEnum):
    """What stands between the key and its effect."""

    NONE = "–"
    UNDONE = "undone by the same key"
    ASKS = "asks"


Condition = Callable[[Snapshot, View], str]
"""Returns "" when the action is possible, else why not."""
Maker = Callable[[Snapshot], Command]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing the operator can do."""

    name: str
    """Stable id; the panel's method, for what is not a plain command."""
    keys: tuple[str, ...]
    """Textual key names or characters."""
    shown: str
    """The keys as written in footer and help."""
    title: str
    """The palette's words."""
    help: str
    """One sentence."""
    where: str = "all"
    danger: Danger = Danger.NONE
    condition: Condition = always
    make: Maker | None = None
    """Builds the command that the key submits at once."""
    labels: tuple[str, ...] = ()
    """Footer words, longest first; none keeps it out of the footer."""
    group: str = "view"
    rank: int = 50
    changes_host: bool = False
    """Refused while the panel is locked."""

    def why_not(self, snapshot: Snapshot, view: View) -> str:
        """Return why it is not possible now, "" if it is."""
        if self.changes_host and view.is_locked:
            return "this panel is read-only; L unlocks it"
        return self.condition(snapshot, view)

    def hint(self, snapshot: Snapshot) -> Hint:
        """Return its footer entry, in the words of the moment."""
        labels = _LABELS[self.name](snapshot) if self.name in _LABELS else self.labels
        wide = ": ?" if self.name == "help" else ""
        return Hint(self.shown, labels, self.group, self.rank, wide, self.name == "zoom")


_LABELS: dict[str, Callable[[Snapshot], tuple[str, ...]]] = {
    "pause": pause_label,
    "auto": auto_label,
    "restart": restart_label,
    "stop": stop_label,
    "last_good": last_good_label,
    "why": why_label,
}

ACTIONS: tuple[Action, ...] = (
    Action("pause", ("p",), "p", "pause or resume the run",
           "Stop sending, or send again; what is in flight ends normally.", "run",
           Danger.UNDONE, needs_run, pause_or_resume, ("pause",), "run", 10, True),
    Action("slots_more", ("plus",), "+", "more slots",
           "Add 4 slots (1 below 16, 8 above 128); becomes MANUAL.", "run",
           Danger.UNDONE, needs_run, more, changes_host=True),
    Action("slots_fewer", ("minus",), "-", "fewer slots",
           "Take 4 slots away (1 below 16, 8 above 128); nothing is aborted.", "run",
           Danger.UNDONE, needs_run, fewer, changes_host=True),
    Action("slots", ("equals_sign",), "=", "set the number of slots",
           "Type the number of slots; becomes MANUAL and says what AUTO would set.", "run",
           Danger.UNDONE, needs_run, changes_host=True),
    Action("auto", ("a",), "a", "AUTO or MANUAL slots",
           "Switch between AUTO and MANUAL; MANUAL keeps the number of the moment.", "run",
           Danger.UNDONE, needs_run, switch_auto, ("AUTO",), "run", 12, True),
    Action("start_run", ("s",), "s", "start a run",
           "Choose or type a run file, see what it says, start or resume it.", "run",
           Danger.ASKS, needs_no_run, None, ("start a run", "run"), "run", 13, True),
    Action("pause_further", ("P",), "P", "pause further: drain, freeze, harvest",
           "Choose what happens to the answers in flight, with the cost of each.", "run",
           Danger.ASKS, needs_run, changes_host=True),
    Action("restart", ("R",), "R", "restart the server with a preset",
           "See what changes, every check, and what happens to the run; then y.", "server",
           Danger.ASKS, needs_server, None, ("restart",), "server", 14, True),
    Action("stop", ("S",), "S", "stop the server, or start one",
           "Stop the server and prove its GPUs clean, or start a preset when none runs.",
           "server", Danger.ASKS, needs_stillness, None, ("stop",), "server", 22, True),
    Action("kill", ("K", "f9", "ctrl+k"), "K", "kill processes that hold GPU memory",
           "See identity, owner and evidence; end them and prove the GPUs clean.", "GPUs",
           Danger.ASKS, needs_holder, None, ("kill",), "server", 15, True),
    Action("last_good", ("b",), "b", "back to the last preset that worked",
           "After a failure: start the last preset that served; its checks come first.", "server",
           Danger.NONE, needs_failure, None, ("back",), "server", 24, True),
    Action("log", ("l",), "l", "the server's log",
           "Follow the log file, / filters, E jumps to the first error.", "all",
           Danger.NONE, needs_log, None, ("log",), "view", 16),
    Action("cancel", ("X",), "X", "cancel the start or restart",
           "Stop the start in progress; offers the last good preset.", "stages",
           Danger.ASKS, needs_change, None, ("cancel start", "cancel"), "server", 11, True),
    Action("compare", ("c",), "c", "compare launches",
           "The measured operating points of the presets, steady ones marked.", "all",
           Danger.NONE, always, None, ("compare",), "view", 23),
    Action("why", ("w",), "w", "why this verdict",
           "The arithmetic and the sources behind the verdict, or the stages.", "all",
           Danger.NONE, always, None, ("why",), "view", 21),
    Action("zoom", ("1", "2", "3", "4", "5", "6"), "1-6", "zoom a pane",
           "Fill the screen with a pane; the same digit or Esc comes back.", "overview",
           Danger.NONE, always, None, ("zoom",), "zoom", 17),
    Action("palette", ("colon", "ctrl+p"), ":", "every command by name",
           "Type a few letters of a command, Enter runs it.", "all",
           Danger.NONE),
    Action("help", ("question_mark", "h", "f1"), "?", "keys that work here",
           "Every key, what it does, and why it does not work now.", "all",
           Danger.NONE, always, None, ("all keys", "keys"), "help", 2),
    Action("leave", ("q",), "q", "leave; server and run go on",
           "Close the panel. Server, run and policy go on.", "all",
           Danger.NONE, always, None, ("leave, all go on", "leave", ""), "leave", 1),
    Action("events", ("v",), "v", "events", "What happened, newest first.", "all"),
    Action("flags", ("d",), "d", "the server's settings",
           "Every setting with its origin: preset, environment, or chosen by the server.", "all"),
    Action("edit", ("e",), "e", "edit a preset",
           "Open the selected preset in $EDITOR; one that came with kvctl is copied first.",
           "presets", Danger.NONE, needs_preset, None, ("edit",), "view", 19, True),
    Action("adopt", ("A",), "A", "adopt a running server",
           "Watch a server by its URL or pid; nothing is done to it.", "all",
           Danger.ASKS, changes_host=True),
    Action("retry_failed", (), "", "retry failed rows", "Queue the failed rows again.", "run",
           Danger.NONE, needs_run, lambda snapshot: RetryFailed(), changes_host=True),
    Action("next_note", ("n",), "n", "next note", "Show the next verdict.", "overview",
           Danger.NONE, needs_notes),
    Action("previous_note", ("N",), "N", "previous note", "Show the verdict before.",
           "overview", Danger.NONE, needs_notes),
    Action("next_pane", ("tab",), "Tab", "next pane", "Zoom the next pane.", "overview"),
    Action("previous_pane", ("shift+tab",), "shift+Tab", "previous pane",
           "Zoom the pane before.", "overview"),
    Action("down", ("j", "down"), "j ↓", "down", "Move the cursor down.", "lists"),
    Action("up", ("k", "up"), "k ↑", "up", "Move the cursor up; k never kills.", "lists"),
    Action("top", ("g", "home"), "g Home", "first row", "Go to the first row.", "lists"),
    Action("bottom", ("G", "end"), "G End", "last row", "Go to the last row.", "lists"),
    Action("page_down", ("pagedown",), "PgDn", "page down", "Ten rows down.", "lists"),
    Action("page_up", ("pageup",), "PgUp", "page up", "Ten rows up.", "lists"),
    Action("mark", ("space",), "space", "mark a process",
           "Mark the selected process of the GPU pane; K then ends all marked ones.", "GPUs",
           Danger.UNDONE, needs_gpu_list),
    Action("open", ("enter",), "Enter", "open what is selected",
           "Open the verdict's why, or the selected row.", "all"),
    Action("back", ("escape",), "Esc", "back", "One level back; never quits.", "all"),
    Action("hold_display", ("z",), "z", "hold the display",
           "Let the screen stand still while data go on.", "all", Danger.UNDONE),
    Action("refresh", ("f5", "ctrl+r"), "F5 ctrl+r", "read every source now",
           "Read every source now.", "all", Danger.NONE, always, lambda snapshot: RefreshNow()),
    Action("lock", ("L",), "L", "lock or unlock this panel",
           "Read-only: no key changes the host.", "all", Danger.UNDONE),
    Action("suspend", ("ctrl+z",), "ctrl+z", "to the shell", "fg comes back.", "all"),
    Action("interrupt", ("ctrl+c",), "ctrl+c", "says how to leave",
           "Says that q leaves and nothing stops; twice in 2 s leaves. Signals nobody.", "all"),
)  # fmt: skip

DIALOG_KEYS: tuple[tuple[str, str, str], ...] = (
    ("y", "yes", "goes ahead; dead until every check has answered and for half a second"),
    ("n Esc", "no", "leaves the dialog, nothing is touched"),
    ("Enter", "the focused button", "which is Cancel when the dialog opens"),
    ("Tab ← →", "next button", "moves between the buttons"),
    ("↑ ↓ j k", "choose", "preset, process or way of waiting"),
    ("m", "how the run waits", "harvest, drain or abandon"),
    ("m", "how much is ended", "this process, its launch, its GPU, every leftover (kill)"),
    ("space", "mark", "a process for the kill"),
    ("f / E", "log", "follow on or off, filter, first error"),
    ("r", "again", "failure: the dialog for the same preset"),
)
"""Keys inside dialogs: shown, name, help."""

_BY_KEY = {key: action for action in ACTIONS for key in action.keys}
_BY_NAME = {action.name: action for action in ACTIONS}
_WHILE_STARTING = ("why", "log", "cancel", "pause", "zoom", "help", "leave")
_SLOT_KEYS = Hint("+ -", ("slots",), "run", 11)
_HABITS = {"r": "R restarts, after asking", "x": "X cancels a start, K kills, both ask"}


def action_for(key: str, character: str | None = None) -> Action | None:
    """Return the action of a key, None where it has none."""
    return _BY_KEY.get(key) or (_BY_KEY.get(character) if character else None)


def named(name: str) -> Action:
    """Return an action by its name."""
    return _BY_NAME[name]


def habit_of(key: str) -> str | None:
    """Return what to say to a key that other tools use and this one does not."""
    return _HABITS.get(key)


def hints(snapshot: Snapshot, view: View) -> list[Hint]:
    """Return the footer: only what works now, while a server starts only what fits that."""
    if is_changing(snapshot.server):
        names = [name for name in _WHILE_STARTING if not named(name).why_not(snapshot, view)]
        return [named(name).hint(snapshot) for name in names]
    found: list[Hint] = []
    for action in ACTIONS:
        if not (action.labels or action.name in _LABELS) or action.why_not(snapshot, view):
            continue
        hint = action.hint(snapshot)
        if not hint.labels:
            continue
        found.append(hint)
        if action.name == "pause":
            found.append(_SLOT_KEYS)
    return found
