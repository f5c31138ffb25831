"""The client of kvctld that CLI verbs use: plain calls, one line of error each.

On the standard library's HTTP client: httpx would double the time that `kvctl status` takes.
"""

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.daemon.wire import DaemonInfo, Goodbye, decode, decode_any, encode_command
from kvctl.core.domain.errors import DaemonUnreachable
from kvctl.core.domain.events import Event
from kvctl.core.domain.snapshot import Snapshot

CONNECT_S = 2.0
ANSWER_S = 10.0
SILENCE_S = 20.0
"""Longer than kvctld's heartbeat: a stream that is silent for so long is dead."""


class DaemonClient:
    """Talks to one kvctld over its Unix socket; every call is a connection of its own."""

    def __init__(self, path: Path) -> None:
        """Remember the socket; connects with each call."""
        self._path = path

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hold nothing open: calls close their own connections."""

    def daemon(self) -> DaemonInfo:
        """Return what kvctld says about itself. Raises DaemonUnreachable."""
        return decode(self._body("GET", "/v1/daemon", None, ANSWER_S), DaemonInfo)

    def snapshot(self) -> Snapshot:
        """Return the current picture. Raises DaemonUnreachable."""
        return decode(self._body("GET", "/v1/snapshot", None, ANSWER_S), Snapshot)

    def stream(self) -> Iterator[Snapshot]:
        """Yield the current picture and every later one until kvctld says goodbye.

        Raises:
            DaemonUnreachable: It does not answer, or went silent.
        """
        for content in self._lines("GET", "/v1/stream", None, SILENCE_S):
            if isinstance(content, Goodbye):
                return
            if isinstance(content, Snapshot):
                yield content
        raise DaemonUnreachable(f"kvctld at {self._path} broke off; `kvctl daemon status`")

    def submit(self, command: Command) -> Outcome:
        """Have a command carried out and wait for its end, however long.

        Raises:
            DaemonUnreachable: It does not answer, or went away meanwhile.
        """
        return decode(self._body("POST", "/v1/commands", encode_command(command), None), Outcome)

    def follow(self, command: Command) -> Iterator[Event | Outcome]:
        """Have a command carried out, yielding events as they happen and its outcome last.

        Raises:
            DaemonUnreachable: It does not answer, or went away meanwhile.
        """
        body = encode_command(command)
        for content in self._lines("POST", "/v1/commands?follow=1", body, None):
            if isinstance(content, Event | Outcome):
                yield content
            if isinstance(content, Outcome):
                return
        raise DaemonUnreachable(
            "kvctld went away while the command ran; `kvctl status` shows what was reached"
        )

    def _body(self, method: str, path: str, body: bytes | None, within_s: float | None) -> bytes:
        with self._answer(method, path, body, within_s) as answer:
            return answer.read()

    def _lines(
        self, method: str, path: str, body: bytes | None, silence_s: float | None
    ) -> Iterator[object]:
        with self._answer(method, path, body, silence_s) as answer:
            while line := answer.readline():
                if text := line.strip():
                    yield decode_any(text)

    @contextmanager
    def _answer(
        self, method: str, path: str, body: bytes | None, silence_s: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _UnixConnection(self._path, silence_s)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            if answer.status not in (200, 400):  # 400 carries the outcome of a refused command
                raise DaemonUnreachable(
                    f"kvctld at {self._path} answered {answer.status} for {path}; see its log"
                )
            yield answer
        except (OSError, http.client.HTTPException) as error:
            what = str(error) or type(error).__name__
            raise DaemonUnreachable(
                f"kvctld does not answer at {self._path} ({what}); `kvctl daemon start` starts it"
            ) from error
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, silence_s: float | None) -> None:
        super().__init__("kvctld")
        self._path = path
        self._silence_s = silence_s

    def connect(self) -> None:
        """Connect, then allow as much silence as the call may have."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_S)
        self.sock.connect(str(self._path))
        self.sock.settimeout(self._silence_s)
