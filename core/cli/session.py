"""What every verb works with: its words, the operator's environment, kvctld, the terminal."""

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kvctl.core.daemon.paths import DaemonPaths, find_paths
from kvctl.core.domain.errors import CommandRefused, UsageError
from kvctl.core.domain.snapshot import Snapshot

if TYPE_CHECKING:  # httpx is only loaded by verbs that talk to kvctld
    from kvctl.core.cli.panel import OpenPanel
    from kvctl.core.daemon.client import DaemonClient
    from kvctl.core.daemon.spawn import DaemonLaunch

FIRST_PICTURE_S = 5.0


@dataclass
class Session:
    """One call of `kvctl`."""

    words: argparse.Namespace
    environ: Mapping[str, str]
    open_panel: "OpenPanel | None" = None
    """Opens the panel; given by the composition root, since core does not know the panel."""
    stdin: TextIO = sys.stdin
    stdout: TextIO = sys.stdout
    stderr: TextIO = sys.stderr
    given_launch: "DaemonLaunch | None" = None
    """Another kvctld than the operator's own (a demo's)."""

    @cached_property
    def state_dir(self) -> Path | None:
        """The folder given with --state-dir or $KVCTL_STATE_DIR."""
        given: Path | None = getattr(self.words, "state_dir", None)
        fallback = self.environ.get("KVCTL_STATE_DIR")
        folder = given or (Path(fallback) if fallback else None)
        return None if folder is None else folder.absolute()

    @cached_property
    def paths(self) -> DaemonPaths:
        """Where kvctld is."""
        return find_paths(
            self.environ, state_dir=self.state_dir, host=socket.gethostname(), uid=os.getuid()
        )

    @property
    def launch(self) -> "DaemonLaunch":
        """How kvctld is started where it does not run."""
        if self.given_launch is not None:
            return self.given_launch
        from kvctl.core.daemon.spawn import DaemonLaunch

        return DaemonLaunch(self.paths, self.state_dir)

    @contextmanager
    def kvctld(self) -> "Iterator[DaemonClient]":
        """Connect to kvctld, starting it with the first verb that needs it."""
        from kvctl.core.daemon.client import DaemonClient
        from kvctl.core.daemon.spawn import ensure_running

        ensure_running(self.launch)
        with DaemonClient(self.paths.socket) as client:
            yield client

    def picture(self, client: "DaemonClient") -> Snapshot:
        """Return the current snapshot; just after a start, the first one that was sampled."""
        from kvctl.core.daemon.waiting import wait_for

        def sampled() -> Snapshot | None:
            snapshot = client.snapshot()
            gpus = snapshot.gpus
            is_read = gpus.at is not None or gpus.problem is not None
            return snapshot if snapshot.verdicts and is_read else None

        return wait_for(sampled, FIRST_PICTURE_S) or client.snapshot()

    def say(self, line: str = "") -> None:
        """Print a line of the answer."""
        print(line, file=self.stdout, flush=True)

    def warn(self, line: str) -> None:
        """Print a line for the operator beside the answer."""
        print(f"kvctl: {line}", file=self.stderr, flush=True)

    def document(self, document: object, *, is_one_line: bool = False) -> None:
        """Print one JSON document, ASCII only so that any terminal and locale carries it."""
        self.say(json.dumps(document, indent=None if is_one_line else 2, allow_nan=False))

    def wants_json(self) -> bool:
        """Return whether --json was given."""
        return bool(getattr(self.words, "json", False))

    def confirm(self, question: str) -> None:
        """Ask before something is ended; --yes answers beforehand.

        Raises:
            CommandRefused: The answer is no, or there is no terminal to ask on.
        """
        if self.words.yes:
            return
        if not (self.stdin.isatty() and self.stderr.isatty()):
            raise CommandRefused(f"{question}: without a terminal this needs --yes")
        print(f"{question}? [y/N] ", end="", file=self.stderr, flush=True)
        if self.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandRefused("not confirmed; nothing was done")

    def server_name(self, snapshot: Snapshot) -> str | None:
        """Return the server that is meant, None where there is none.

        Raises:
            UsageError: There are several and none was named, or the name is not one of them.
        """
        wanted = getattr(self.words, "server", None)
        managed = [server.name for server in snapshot.servers if server.is_managed]
        if wanted is None and len(managed) == 1:
            return managed[0]  # others are only watched: what acts means the one kvctl launched
        return _chosen("server", wanted, [server.name for server in snapshot.servers])

    def check_run_name(self, snapshot: Snapshot) -> None:
        """Refuse a --run that names another run than the present one.

        Raises:
            UsageError: The name is not that of the run.
        """
        names = [snapshot.run.name] if snapshot.run else []
        _chosen("run", getattr(self.words, "run", None), names)


def _chosen(what: str, wanted: str | None, names: list[str]) -> str | None:
    known = ", ".join(names) or "none"
    if wanted is not None and wanted not in names:
        raise UsageError(f"there is no {what} {wanted!r}; there are: {known}")
    if wanted is None and len(names) > 1:
        raise UsageError(f"there are several {what}s; choose one with --{what}: {known}")
    return wanted or (names[0] if names else None)


Verb = Callable[[Session], int]
"""Carries out one verb and returns the exit status."""
