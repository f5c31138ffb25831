"""`kvctl watch`: the picture as a stream, until Ctrl-C; with --since, first what was."""

from collections.abc import Iterable, Iterator
from itertools import islice

from kvctl.core.cli.progress import event_line
from kvctl.core.cli.render import facts, past_line, watch_line
from kvctl.core.cli.session import Session
from kvctl.core.controller.history import OF_SERVER, Point, history_since, shown_values
from kvctl.core.daemon.news import events_since
from kvctl.core.documents.status import status_document
from kvctl.core.domain.events import Event
from kvctl.core.domain.snapshot import Snapshot


def watch(session: Session) -> int:
    """Print a line for each picture; with --json a document a line, with --plain a fact a line."""
    with session.kvctld() as client:
        if session.words.since is not None:
            _print_past(session, session.picture(client))
        snapshots = thinned(client.stream(), session.words.interval)
        try:
            _print(session, islice(snapshots, session.words.count))
        except KeyboardInterrupt:
            return 0
    return 0


def _print_past(session: Session, snapshot: Snapshot) -> None:
    """Print the kept history, a line a step; a figure that was unknown is a dash, never 0.

    Of one server, --server or the first, and of the run; with --json every server's.
    """
    names = [server.name for server in snapshot.servers]
    wanted: str | None = getattr(session.words, "server", None)
    shown = wanted or (names[0] if names else None)
    for step_s, point in history_since(session.paths.state, session.words.since(snapshot.wall)):
        own = shown_values(point.values, shown)
        if session.wants_json():
            row = {"wall": point.wall, "step_s": step_s, "past": own, "servers": _servers(point)}
            session.document(row, is_one_line=True)
        elif own:
            session.say(past_line(point.wall, own))


def _servers(point: Point) -> dict[str, dict[str, float | None]]:
    """Return the figures of each server of a moment, by its name."""
    found: dict[str, dict[str, float | None]] = {}
    for name, value in point.values.items():
        server, is_of_server, figure = name.rpartition(OF_SERVER)
        if is_of_server:
            found.setdefault(server, {})[figure] = value
    return found


def thinned(snapshots: Iterable[Snapshot], gap_s: float) -> Iterator[Snapshot]:
    """Yield snapshots that are at least `gap_s` apart (kvctld's clock), the first at once."""
    last: float | None = None
    for snapshot in snapshots:
        if last is None or snapshot.at - last >= gap_s:
            last = snapshot.at
            yield snapshot


def _print(session: Session, snapshots: Iterable[Snapshot]) -> None:
    before: Snapshot | None = None
    for snapshot in snapshots:
        if session.wants_json():
            session.document(status_document(snapshot), is_one_line=True)
        elif session.words.plain:
            _print_changes(session, before, snapshot)
        else:
            _print_news(session, before, snapshot)
        before = snapshot


def _print_changes(session: Session, before: Snapshot | None, snapshot: Snapshot) -> None:
    known = facts(before) if before else {}
    for name, value in facts(snapshot).items():
        if known.get(name) != value:
            session.say(f"{name}: {value}")
    for event in _new_events(before, snapshot):
        session.say(f"event: {event_line(event)}")


def _print_news(session: Session, before: Snapshot | None, snapshot: Snapshot) -> None:
    for event in _new_events(before, snapshot):
        session.say(event_line(event))
    session.say(watch_line(snapshot))


def _new_events(before: Snapshot | None, snapshot: Snapshot) -> tuple[Event, ...]:
    return events_since(before, snapshot) if before else ()
