"""A place for a soak: a kvctld and a server as processes of their own, which are killed at will.

What differs between the simulated host and the real engine is in `simulated.py` and `real.py`.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvctl.core.controller.commands import (
    Command,
    Outcome,
    ResumeRun,
    StartRun,
    StartServer,
)
from kvctl.core.daemon.client import DaemonClient
from kvctl.core.daemon.paths import find_paths
from kvctl.core.domain.errors import DaemonUnreachable
from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.domain.servers.server import Server

PRESET = "chaos"
PATIENCE_S = 60.0
LOOK_S = 0.02


def until(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition holds; fail with what was waited for."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not seen within {within_s:.0f} s: {what}"
        time.sleep(LOOK_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class SoakPlace:
    """One operator's folder with a server's port and a kvctld of its own."""

    folder: Path
    output: Path
    """Where runs write; may be a small file system of its own."""
    port: int = field(default_factory=free_port)
    kvctld: "subprocess.Popen[bytes] | None" = None
    daemon_words: tuple[str, ...] = ()
    """Further words of `daemon run`."""
    variables: dict[str, str] = field(default_factory=dict)
    """What kvctld and the server's preset take from the environment."""

    def write_preset(self, text: str) -> None:
        """Write the preset of the server."""
        presets = self.state / "config" / "presets"
        presets.mkdir(parents=True, exist_ok=True)
        (presets / f"{PRESET}.toml").write_text(text)

    def write_run(self, name: str, slots: int) -> tuple[Path, dict[str, Path]]:
        """Write a run; return its file, and the input file of each partition."""
        raise NotImplementedError

    def why_not_right(self, record: Mapping[str, Any]) -> str:
        """Say what is wrong with an answer's tokens; "" if nothing is."""
        raise NotImplementedError

    # -- kvctld -----------------------------------------------------------------------------

    @property
    def state(self) -> Path:
        """kvctld's state folder."""
        return self.folder / "state"

    @property
    def client(self) -> DaemonClient:
        """A client of kvctld."""
        paths = find_paths({}, state_dir=self.state, host=socket.gethostname(), uid=os.getuid())
        return DaemonClient(paths.socket)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of kvctld and of the verbs."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "KVCTL_"))}
        return {**kept, "KVCTL_FIND": "0", **self.variables}

    def verb(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Carry out one verb of kvctl as a process."""
        return subprocess.run(
            [*self._kvctl, *words],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @property
    def _kvctl(self) -> list[str]:
        return [sys.executable, "-P", "-m", "kvctl", "--state-dir", str(self.state)]

    def start_kvctld(self) -> None:
        """Start kvctld and wait until it answers."""
        words = ["daemon", "run", "--stay", *self.daemon_words]
        with (self.folder / "kvctld.out").open("ab") as log:
            self.kvctld = subprocess.Popen(
                [*self._kvctl, *words],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._answers, "kvctld answers")

    def _answers(self) -> bool:
        assert self.kvctld is not None and self.kvctld.poll() is None, "kvctld ended by itself"
        try:
            self.client.daemon()
        except DaemonUnreachable:
            return False
        return True

    def kill_kvctld(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self.kvctld is not None
        self.kvctld.kill()
        self.kvctld.wait()

    def submit(self, command: Command) -> Outcome:
        """Have a command carried out; it must succeed."""
        outcome = self.client.submit(command)
        assert outcome.is_done, f"{command}: {outcome}"
        return outcome

    # -- the run ----------------------------------------------------------------------------

    def run(self) -> Run:
        """The run as kvctld shows it."""
        run = self.client.snapshot().run
        assert run is not None
        return run

    def go_on(self, path: Path, more: int) -> Run:
        """Bring everything up again as an operator would, until `more` answers were added."""
        if self.kvctld is None or self.kvctld.poll() is not None:
            self.start_kvctld()
        self._settle_run(path)
        # Resume first: it also continues an engine that is frozen, which does not serve before.
        if self.run().state is RunState.PAUSED:
            self.submit(ResumeRun())
        self._settle_server()
        before = self.run().done
        until(lambda: self._goes_on(before + more), f"{more} more answers: {self.run()}")
        return self.run()

    def _goes_on(self, wanted: int) -> bool:
        """Whether that many answers are there; a server that is seen to be dead is started."""
        run = self.run()
        if run.state is RunState.FINISHED or run.done >= wanted:
            return True
        self._settle_server()
        return False

    def _settle_run(self, path: Path) -> None:
        until(lambda: self._run_state() is not RunState.LOADING, "the run is taken up")
        if self._run_state() in (None, RunState.FAILED):
            self.submit(StartRun(str(path)))

    def _run_state(self) -> RunState | None:
        run = self.client.snapshot().run
        return None if run is None else run.state

    # -- the server -------------------------------------------------------------------------

    def server(self) -> Server | None:
        """The server as kvctld shows it."""
        return next(iter(self.client.snapshot().servers), None)

    def server_pid(self) -> int:
        """The server's main process."""
        server = self.server()
        assert server is not None and server.pid is not None
        return server.pid

    def _settle_server(self) -> None:
        until(self._serves_or_is_started, "the server serves")

    def _serves_or_is_started(self) -> bool:
        """Whether it serves; once it is seen to be dead, it is started."""
        if self._serves():
            return True
        server = self.server()
        if server is None or server.state.value in ("stopped", "failed"):
            self.submit(StartServer(PRESET))
        return False

    def _serves(self) -> bool:
        server = self.server()
        if server is None or server.pid is None:
            return False
        # A death is seen with the next look only: until then the old word stands.
        return lives(server.pid) and (server.state.is_ready or server.state.value == "stalled")

    def close(self) -> None:
        """End kvctld."""
        if self.kvctld is not None and self.kvctld.poll() is None:
            self.kill_kvctld()


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
