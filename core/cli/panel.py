"""`kvctl` without a verb: the panel, attached to kvctld."""

import getpass
from collections.abc import Callable
from dataclasses import dataclass

from kvctl.core.cli.session import Session
from kvctl.core.daemon.feed import Feed
from kvctl.core.daemon.socket_feed import SocketFeed
from kvctl.core.daemon.spawn import ensure_running
from kvctl.core.domain.errors import UsageError


@dataclass(frozen=True, slots=True)
class PanelOptions:
    """What the command line says about the panel."""

    has_mouse: bool = True
    """False: the mouse stays with the terminal, so text can be selected."""


OpenPanel = Callable[[Feed, PanelOptions], int]
"""Shows the panel until the operator leaves; returns the exit status."""


def open_panel(session: Session) -> int:
    """Open the panel over kvctld, starting kvctld where it does not run."""
    check_terminal(session)
    ensure_running(session.launch)
    return show_panel(session)


def check_terminal(session: Session) -> None:
    """Refuse in one line where the panel could not be drawn.

    Raises:
        UsageError: Not a terminal, or one without cursor movement.
    """
    instead = "`kvctl status` and `kvctl watch --plain` print the same facts"
    if not (session.stdin.isatty() and session.stdout.isatty()):
        raise UsageError(f"the panel needs a terminal; {instead}")
    if session.environ.get("TERM", "dumb") in ("dumb", ""):
        raise UsageError(f"this terminal (TERM=dumb) cannot show the panel; {instead}")


def show_panel(session: Session) -> int:
    """Attach the panel to the kvctld that runs, under the operator's name."""
    if session.open_panel is None:
        raise UsageError("this installation has no panel; `kvctl status` prints the same facts")
    launch = session.launch
    feed = SocketFeed(
        launch.paths.socket, _operator(session), revive=lambda: ensure_running(launch)
    )
    options = PanelOptions(has_mouse=not session.words.no_mouse)
    return session.open_panel(feed, options)


def _operator(session: Session) -> str:
    """Return who sits here, with the host they came from where SSH tells it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "someone"
    origin = session.environ.get("SSH_CONNECTION", "").split()
    return f"{name}@{origin[0]}" if origin else name
