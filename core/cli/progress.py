"""Carries out a command through kvctld and shows its events as they happen."""

from typing import TYPE_CHECKING

from kvctl.core.cli.render import one_line
from kvctl.core.cli.session import Session
from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.domain.events import Event
from kvctl.core.domain.units import clock_time

if TYPE_CHECKING:
    from kvctl.core.daemon.client import DaemonClient

INTERRUPTED = 130


def carry_out(session: Session, client: "DaemonClient", command: Command) -> int:
    """Submit a command, print its events and outcome, return its exit status.

    Ctrl-C only ends the watching: kvctld carries the command to its end.
    """
    last: Event | None = None
    try:
        for news in client.follow(command):
            if isinstance(news, Outcome):
                return _tell_end(session, news, last)
            if last is not None:
                session.say(event_line(last))
            last = news
    except KeyboardInterrupt:
        session.warn("no longer watching; kvctld carries the command on, `kvctl watch` follows it")
    return INTERRUPTED


def _tell_end(session: Session, outcome: Outcome, last: Event | None) -> int:
    """Print the last event, unless the outcome says the same, and the outcome."""
    if last is not None and last.text != outcome.message:
        session.say(event_line(last))
    return tell_outcome(session, outcome)


def tell_outcome(session: Session, outcome: Outcome) -> int:
    """Print what was observed and the message: done to stdout, not done to stderr."""
    for line in outcome.observed:
        session.say(f"  {one_line(line)}")
    message = one_line(outcome.message)
    if outcome.is_done:
        session.say(message)
    else:
        session.warn(message)
    return outcome.exit_status


def event_line(event: Event) -> str:
    """Return an event as one line: local time, kind, what was observed."""
    return f"{clock_time(event.wall)}  {one_line(event.kind):<10} {one_line(event.text)}"
