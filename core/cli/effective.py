"""`kvctl flags` beside a running server: what holds there, and from what it differs."""

from collections.abc import Iterator
from dataclasses import asdict

from kvctl.core.cli.render import one_line, table
from kvctl.core.cli.session import Session
from kvctl.core.domain.servers.server import EffectiveFlag, Server

HEAD = ("flag", "now", "given", "default", "differs from")
_DASH = "–"
_WIDEST = 36


def running_server(session: Session) -> Server | None:
    """Return the server whose flags are known; None without kvctld or without one."""
    from kvctl.core.daemon.client import DaemonClient
    from kvctl.core.daemon.spawn import running

    if running(session.paths) is None:
        return None  # no need to start kvctld only to read flags
    with DaemonClient(session.paths.socket) as client:
        snapshot = session.picture(client)
    known = [server for server in snapshot.servers if server.effective]
    if not known:
        return None
    name = session.server_name(snapshot)
    return next((server for server in known if server.name == name), None)


def show_effective(session: Session, server: Server) -> int:
    """Print the flags of a server, those that move the KV ceiling first."""
    if session.wants_json():
        session.document(
            {
                "server": server.name,
                "version": server.version,
                "defaults_known": server.are_defaults_known,
                "flags": [asdict(flag) for flag in server.effective],
            }
        )
        return 0
    for line in effective_lines(server):
        session.say(line)
    return 0


def effective_lines(server: Server) -> Iterator[str]:
    """Yield the flags as a table, the ones that move the KV ceiling apart."""
    yield one_line(f"server {server.name}  SGLang {server.version or _DASH}")
    if not server.are_defaults_known:
        yield "SGLang's defaults are not known here: its version could not be read"
    ceiling = [flag for flag in server.effective if flag.moves_ceiling]
    others = [flag for flag in server.effective if not flag.moves_ceiling]
    for title, flags in (("they move the KV ceiling", ceiling), ("others", others)):
        if flags:
            yield f"{title}:"
            yield from table(HEAD, [_row(flag) for flag in flags])
    yield "`kvctl flags --catalogue` lists every flag that the installed SGLang knows"


def _row(flag: EffectiveFlag) -> tuple[str, ...]:
    given = _DASH if flag.given is None else f"{flag.given} ({flag.given_by})"
    now = flag.value if flag.at_start is None else f"{flag.value} (start: {flag.at_start})"
    cells = (flag.name, now, given, flag.default or _DASH, ", ".join(flag.differs) or _DASH)
    return tuple(one_line(cell, _WIDEST) for cell in cells)
