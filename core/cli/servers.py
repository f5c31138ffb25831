"""`kvctl server`: launch, stop, restart, watch."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kvctl.core.cli.progress import carry_out
from kvctl.core.cli.session import Session
from kvctl.core.controller.commands import (
    AdoptServer,
    CancelStart,
    CapServer,
    ForgetServer,
    RestartServer,
    StartServer,
    StopServer,
    WaitHow,
)
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.logs.text import clean_line
from kvctl.core.domain.servers.server import Server
from kvctl.core.domain.snapshot import Snapshot

_CHUNK = 1 << 16
_POLL_S = 0.2


def start(session: Session) -> int:
    """Launch a preset and wait until it serves."""
    with session.kvctld() as client:
        wanted = getattr(session.words, "server", None)
        return carry_out(session, client, StartServer(session.words.preset, wanted))


def stop(session: Session) -> int:
    """Stop a server and prove its GPUs clean."""
    words = session.words
    with session.kvctld() as client:
        snapshot = session.picture(client)
        name = session.server_name(snapshot)
        session.confirm(f"stop {_effect(snapshot, name)}")
        cut = words.cut_foreign or not words.yes
        return carry_out(session, client, StopServer(name, WaitHow(words.how), cut))


def restart(session: Session) -> int:
    """Stop, prove clean, start again, resume the run."""
    words = session.words
    with session.kvctld() as client:
        snapshot = session.picture(client)
        name = session.server_name(snapshot)
        preset = f" with {words.preset}" if words.preset else ""
        session.confirm(f"restart {_effect(snapshot, name)}{preset}")
        cut = words.cut_foreign or not words.yes
        return carry_out(
            session, client, RestartServer(words.preset, name, WaitHow(words.how), cut)
        )


def cancel(session: Session) -> int:
    """Stop the start or restart in progress."""
    with session.kvctld() as client:
        name = session.server_name(session.picture(client))
        return carry_out(session, client, CancelStart(name))


def adopt(session: Session) -> int:
    """Watch a server that already runs."""
    with session.kvctld() as client:
        wanted = getattr(session.words, "server", None)
        return carry_out(session, client, AdoptServer(session.words.target, wanted))


def forget(session: Session) -> int:
    """Stop watching a server; nothing is done to it."""
    with session.kvctld() as client:
        name = session.server_name(session.picture(client))
        return carry_out(session, client, ForgetServer(name))


def cap(session: Session) -> int:
    """Cap what a server runs at once, or put its own cap back (off)."""
    with session.kvctld() as client:
        name = session.server_name(session.picture(client))
        return carry_out(session, client, CapServer(session.words.running, name))


def logs(session: Session) -> int:
    """Print the end of a server's log, and with -f what comes after."""
    path = _log_of(session)
    try:
        for line in _last_lines(path, session.words.lines):
            session.say(clean_line(line))
        if session.words.follow:
            for line in _following(path):
                session.say(clean_line(line))
    except OSError as error:
        raise KvctlError(f"the log {path} cannot be read: {error.strerror}") from error
    except KeyboardInterrupt:
        return 0
    return 0


def _effect(snapshot: Snapshot, name: str | None) -> str:
    """Return the server and what else its end would cut, for the question."""
    server = _find(snapshot, name)
    if server is None:
        return "the server"
    foreign = server.foreign_requests.value
    run = f", the run {snapshot.run.name} holds meanwhile" if snapshot.run else ""
    others = f", {foreign:.0f} requests of others are cut" if foreign else ""
    return clean_line(f"{server.name} at {server.url} ({server.state.value}){run}{others}")


def _find(snapshot: Snapshot, name: str | None) -> Server | None:
    return next((server for server in snapshot.servers if server.name == name), None)


def _log_of(session: Session) -> Path:
    with session.kvctld() as client:
        snapshot = session.picture(client)
    server = _find(snapshot, session.server_name(snapshot))
    if server is None:
        raise KvctlError("there is no server; `kvctl server start PRESET` launches one")
    if server.log_path is None:
        raise KvctlError(f"the log of {server.name} is not known: kvctl did not launch it")
    return Path(server.log_path)


def _last_lines(path: Path, count: int) -> list[str]:
    """Read backwards until there are enough lines, however large the log is."""
    with path.open("rb") as file:
        place = file.seek(0, os.SEEK_END)
        tail = b""
        while place > 0 and tail.count(b"\n") <= count:
            step = min(_CHUNK, place)
            place = file.seek(place - step)
            tail = file.read(step) + tail
    lines = tail.decode("utf-8", "replace").split("\n")
    complete = lines[:-1] if lines and not lines[-1] else lines
    return complete[-count:] if count else []


def _following(path: Path) -> Iterator[str]:
    """Yield whole lines as they are appended, also after the file was replaced."""
    pause = threading.Event()
    file, rest = path.open("rb"), b""
    file.seek(0, os.SEEK_END)
    try:
        while True:
            *lines, rest = (rest + file.read(_CHUNK)).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
            if not lines:
                if _is_replaced(file, path):
                    file.close()
                    file, rest = path.open("rb"), b""
                pause.wait(_POLL_S)
    finally:
        file.close()


def _is_replaced(file: BinaryIO, path: Path) -> bool:
    try:
        return not os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
