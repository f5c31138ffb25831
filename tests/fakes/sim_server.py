"""A simulated server as a real process, for the tests that speak to it over HTTP."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

READY = "The server is fired up and ready to roll!"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: str, condition: "object", limit_s: float = 20.0) -> None:
    """Wait for a condition, looking often; fail with what was waited for."""
    assert callable(condition)
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


@dataclass
class SimServer:
    process: "subprocess.Popen[bytes]"
    url: str
    port: int
    log_path: Path
    host_dir: Path
    http: httpx.Client

    def log(self) -> str:
        return self.log_path.read_text("utf-8").replace("\r", "\n")

    def lines(self, word: str) -> list[str]:
        return [line for line in self.log().splitlines() if word in line]

    def wait_ready(self) -> None:
        until("server ready", lambda: READY in self.log() or self.process.poll() is not None)
        assert READY in self.log(), self.log()[-2000:]

    def ids(self, marker: str = "[B3]", number: int = 0) -> list[int]:
        return list(f"{marker} prompt {number} of this test".encode())


@contextlib.contextmanager
def sim_server(
    tmp_path: Path,
    *flags: str,
    speed: float = 100.0,
    port: int | None = None,
    env: dict[str, str] | None = None,
    ready: bool = True,
) -> Iterator[SimServer]:
    port = port or free_port()
    host_dir = tmp_path / "host"
    log_path = tmp_path / f"server-{port}.log"
    origin = f"{speed},{time.monotonic()},{time.time()}"
    command = [sys.executable, "-m", "kvctl.core.sim.server", "--port", str(port)]
    command += ["--model-path", "/models/Kimi-K2.5", *flags]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "KVCTL_SIM_CLOCK": origin,
                "KVCTL_SIM_DIR": str(host_dir),
                **(env or {}),
            },
        )
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as http:
        server = SimServer(process, url, port, log_path, host_dir, http)
        try:
            if ready:
                server.wait_ready()
            yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
