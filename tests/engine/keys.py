"""The keys of an operator at the panel: dialogs gone through as a person would."""

import contextlib
import re
import time
from functools import partial

from tests.e2e.terminal import Terminal

CHOSEN = r"│ > (\S+) .+ │ .* │"
UNTOUCHED = "nothing has been touched yet"
TITLE = rf"── (?:\S+ → )?(\S+) ── {UNTOUCHED}"
ASLEEP = "one moment: y works|the checks have not answered yet"
TAKEN = f"(?s:^(?!.*{UNTOUCHED}))"
GRACE_S = 0.6


def choose(panel: Terminal, preset: str) -> None:
    """Move to a preset in the open dialog and wait for its checks and for y to wake."""
    select(panel, preset)
    panel.wait_for(r"✓ flags: \d+ flags known to 0\.5\.23")


def select(panel: Terminal, preset: str) -> None:
    """Move to a preset in the open dialog."""
    panel.wait_until(lambda: bool(chosen(panel)), "the dialog's list")
    while (shown := chosen(panel)) != preset:
        panel.send("j")
        panel.wait_until(partial(_is_moved, panel, shown), "the next preset")
    panel.wait_for(rf"── (.* → )?{preset} ── {UNTOUCHED}")


def _is_moved(panel: Terminal, before: str) -> bool:
    return chosen(panel) not in ("", before)


def chosen(panel: Terminal) -> str:
    """The preset under the dialog's cursor; "" while the dialog is half drawn."""
    found, title = re.search(CHOSEN, panel.text), re.search(TITLE, panel.text)
    is_whole = found and title and title[1].startswith(found[1].removesuffix("…"))
    return title[1] if title and is_whole else ""


def say_yes(panel: Terminal) -> float:
    """Press y once the dialog has stood for its first half second, and again while it sleeps.

    Returns:
        Monotonic seconds of the press that was taken.
    """
    panel.wait_for(UNTOUCHED)
    for _ in range(60):
        panel.wait_until(
            partial(_is_past, time.monotonic() + GRACE_S), "the end of its first moment"
        )
        pressed_at = time.monotonic()
        panel.send("y")
        panel.wait_for(f"{ASLEEP}|{TAKEN}")
        if not re.search(ASLEEP, panel.text) or _is_taken_after_all(panel):
            return pressed_at
    raise AssertionError(panel.text)


def _is_taken_after_all(panel: Terminal) -> bool:
    """Whether what it says of sleeping is from the press before."""
    with contextlib.suppress(AssertionError):
        panel.wait_for(TAKEN, GRACE_S)
    return bool(re.search(TAKEN, panel.text))


def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


def leave_dialog(panel: Terminal, shown: str) -> None:
    """Press Esc and wait until what the dialog showed is gone."""
    # What follows an escape too soon would be taken for alt and a key.
    panel.send("\x1b")
    panel.wait_gone(shown)


def wait_running(panel: Terminal, run: str) -> None:
    """Wait until the header says that a run sends, with requests in flight."""
    panel.wait_for(f"{run} · RUNNING")
    panel.wait_until(lambda: bool(in_flight(panel)), "requests in flight")


def in_flight(panel: Terminal) -> int | None:
    """The header's number of requests in flight; None where it shows none."""
    found = re.search(r"in flight +(\d+)", panel.lines[0])
    return int(found[1]) if found else None
