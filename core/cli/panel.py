"""`kvctl` without a verb: the panel, attached to kvctld."""

import getpass
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvctl.core.cli.session import Session
from kvctl.core.cli.signals import signals_as_interrupts
from kvctl.core.daemon.feed import Feed
from kvctl.core.daemon.socket_feed import SocketFeed
from kvctl.core.daemon.spawn import ensure_running
from kvctl.core.domain.errors import UsageError


@dataclass(frozen=True, slots=True)
class PanelOptions:
    """What the command line and the login say about the panel."""

    operator: str
    """Who sits here, as other panels are told."""
    has_mouse: bool = True
    """False: the mouse stays with the terminal, so text can be selected."""
    is_ascii: bool = False
    """Draw with ASCII only: the locale does not promise more."""
    editor: str = ""
    """The command that edits a file: $VISUAL or $EDITOR; "" where neither is set."""


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
    operator = _operator(session)
    feed = SocketFeed(launch.paths.socket, operator, revive=lambda: ensure_running(launch))
    options = PanelOptions(
        operator=operator,
        has_mouse=not session.words.no_mouse,
        is_ascii=session.words.ascii or is_ascii_locale(session.environ),
        editor=session.environ.get("VISUAL") or session.environ.get("EDITOR") or "",
    )
    with signals_as_interrupts():
        return session.open_panel(feed, options)


def is_ascii_locale(environ: Mapping[str, str]) -> bool:
    """Return whether the locale was set to one without UTF-8; unset promises nothing either way.

    Python itself turns LANG=C into LC_CTYPE=C.UTF-8 (PEP 538), which then says nothing.
    """
    coerced = ("C.UTF-8", "C.utf8", "UTF-8")
    names = ["LC_ALL", "LC_CTYPE", "LANG"]
    if environ.get("LC_CTYPE") in coerced and environ.get("LANG") in ("C", "POSIX"):
        names.remove("LC_CTYPE")
    values = [environ[name] for name in names if environ.get(name)]
    return bool(values) and "utf8" not in values[0].lower().replace("-", "")


def _operator(session: Session) -> str:
    """Return the user, and the host or terminal they came from: many share one user name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "someone"
    origin = session.environ.get("SSH_CONNECTION", "").split()
    try:
        place = origin[0] if origin else os.ttyname(session.stdin.fileno()).removeprefix("/dev/")
    except OSError:
        place = "here"
    return f"{name}@{place}"
