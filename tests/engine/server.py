"""Starts and stops real test servers; owns their processes, logs and leftovers.

Nothing of kvctl is used here: these servers are what kvctl is measured against.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from tests.engine.launch import Flag, engine_command, engine_env

READY_LINE = "The server is fired up and ready to roll!"
READY_WITHIN_S = 240.0
GONE_WITHIN_S = 5.0
POLL_S = 0.1


class EngineFailed(AssertionError):
    """A test server did not do what a test server must."""


def wait_for(condition: Callable[[], bool], what: str, within_s: float) -> None:
    """Return as soon as the condition holds.

    Raises:
        EngineFailed: It did not hold in time.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise EngineFailed(f"not seen within {within_s:.0f} s: {what}")
        time.sleep(POLL_S)


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class EngineServer:
    """One server process tree in its own session."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path
    """Everything the server printed, stdout and stderr together."""
    scratch: Path
    """The server's TMPDIR, removed with it."""
    snapshots: set[Path] = field(default_factory=set)
    """Shared-memory files that SGLang never removes itself."""

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the main process, which leads its own process group."""
        return self.process.pid

    def log_text(self, offset: int = 0) -> str:
        """The log from a byte offset on."""
        return self.log_path.read_bytes()[offset:].decode(errors="replace")

    def log_size(self) -> int:
        """The log's length now, in bytes; an offset for `log_text`."""
        return self.log_path.stat().st_size

    def members(self) -> list[psutil.Process]:
        """The living processes of this server's process group."""
        return [p for p in psutil.process_iter() if _lives_in_group(p, self.pid)]

    def is_ready(self) -> bool:
        """Whether the server answers; "fired up" alone is also printed when the port was taken.

        Raises:
            EngineFailed: The process has ended.
        """
        if self.process.poll() is not None:
            last_line = self.log_text().rstrip().rpartition("\n")[2]
            code = self.process.returncode
            raise EngineFailed(f"the test server exited with {code}: {last_line} ({self.log_path})")
        return READY_LINE in self.log_text() and _answers(self.url)

    def wait_ready(self) -> None:
        """Return when the server can serve."""
        wait_for(self.is_ready, f"a ready server; see {self.log_path}", READY_WITHIN_S)
        self.snapshots = _mapped_snapshots(self.members())

    def stop(self) -> None:
        """End the whole tree and remove what it left; fine if it has already ended.

        SIGKILL to the main process takes its children along and spares seven seconds of draining;
        children of a server that was still starting are not tied to it, hence the second kill.
        """
        self.process.kill()
        self.process.wait()
        try:
            wait_for(lambda: not self.members(), "the end of the children", GONE_WITHIN_S)
        except EngineFailed:
            os.killpg(self.pid, signal.SIGKILL)
        for path in self.snapshots:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)


@dataclass(slots=True)
class PlainEngine:
    """A server without metrics that a test may stop, if it starts it again."""

    folder: Path
    server: EngineServer
    starts: int = 1

    def start_again(self) -> None:
        """Bring a new server up on the port of the one that was stopped."""
        self.starts += 1
        port, log = self.server.port, self.folder / f"plain-{self.starts}.log"
        self.server = start_server(log, "--port", str(port), enable_metrics=False)
        self.server.port = port
        self.server.wait_ready()


def start_server(log_path: Path, *extra: str, **flags: Flag) -> EngineServer:
    """Start a server on a free port without waiting for it.

    `flags` replace the defaults of launch.py; `extra` words go last, as typed.
    """
    port = free_port()
    # Short, because the server's sockets lie there and a socket's path has a small limit.
    scratch = Path(tempfile.mkdtemp(prefix="kvctl-engine-"))
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*engine_command(port, **flags), *extra],
            env=engine_env() | {"TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return EngineServer(process, port, log_path, scratch)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _lives_in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ProcessLookupError):
        return False


def _mapped_snapshots(processes: list[psutil.Process]) -> set[Path]:
    found = set()
    for process in processes:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            _, _, path = line.partition("/dev/shm/sglang_loads_")
            if path:
                found.add(Path(f"/dev/shm/sglang_loads_{path}"))
    return found
