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
_SAID_BY_OUTCOME = ("failed", "refused")
"""Events that the outcome repeats word for word."""


def carry_out(session: Session, client: "DaemonClient", command: Command) -> int:
    """Submit a command, print its events and outcome, return its exit status.

    Ctrl-C only ends the watching: kvctld carries the command to its end.
    """
    last = ""
    try:
        for news in client.follow(command):
            if isinstance(news, Outcome):
                return tell_outcome(session, news, told=last)
            if news.kind not in _SAID_BY_OUTCOME:
                session.say(event_line(news))
                last = news.text
    except KeyboardInterrupt:
        session.warn("no longer watching; kvctld carries the command on, `kvctl watch` follows it")
    return INTERRUPTED


def tell_outcome(session: Session, outcome: Outcome, told: str = "") -> int:
    """Print what was observed and the message: done to stdout, not done to stderr.

    A message that the last event has just `told` is not repeated.
    """
    for line in outcome.observed:
        session.say(f"  {one_line(line)}")
    message = one_line(outcome.message)
    if not outcome.is_done:
        session.warn(message)
    elif outcome.message != told:
        session.say(message)
    return outcome.exit_status


def event_line(event: Event) -> str:
    """Return an event as one line: local time, kind, what was observed."""
    return f"{clock_time(event.wall)}  {one_line(event.kind):<10} {one_line(event.text)}"
