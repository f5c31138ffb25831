"""Servers that another program starts and keeps: launched, stopped and refused through it.

`systemctl` and `docker` here are scripts on PATH, and behind them stands a real process tree: a
keeper that starts its server again whenever it ends.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.terminal import KVCTL
from tests.fakes.sim_server import free_port, until

pytestmark = pytest.mark.terminal

SPEED = 50.0
CONTROL = """#!/bin/sh
# As `systemctl start|stop UNIT ARGS` and as `docker run -d --name NAME IMAGE ARGS`, `docker stop`.
here={here}
echo "$(basename "$0") $1" >> $here/asked
case "$1" in
start) shift 2 ;;
run) shift 5 ;;
stop)
    kill -KILL $(cat $here/keeper.pid)
    kill -TERM $(cat $here/server.pid)
    while kill -0 $(cat $here/server.pid) 2>/dev/null; do sleep 0.05; done
    exit 0 ;;
esac
setsid env -i PATH="$PATH" {variables} $here/keeper "$@" < /dev/null >> $here/unit.log 2>&1 &
echo handed over
"""
KEEPER = """#!/bin/sh
echo $$ > {here}/keeper.pid
while true; do
    {python} -m kvctl.core.sim.server "$@" &
    echo $! > {here}/server.pid
    wait $!
done
"""
COMMANDS = {
    "systemctl": (["systemctl", "start", "sglang", "{sglang_args}"],
                  ["systemctl", "stop", "sglang"]),
    "docker": (["docker", "run", "-d", "--name", "sglang", "image", "{sglang_args}"],
               ["docker", "stop", "sglang"]),
    "untamed": (["systemctl", "start", "sglang", "{sglang_args}"],
                ["sh", "-c", "kill $(cat {here}/server.pid)"]),
}  # fmt: skip


@dataclass(slots=True)
class Unit:
    """A host with a supervisor, and kvctl on it."""

    here: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def follow(self) -> list[str]:
        return ["tail", "-n", "0", "-F", f"{self.here}/unit.log"]

    def write(self) -> None:
        for folder in ("bin", "state/config/presets"):
            (self.here / folder).mkdir(parents=True)
        clock = f"{SPEED},{time.monotonic()},{time.time()}"
        variables = f"KVCTL_SIM_CLOCK='{clock}' KVCTL_SIM_DIR='{self.here}/host'"
        control = CONTROL.format(here=self.here, variables=variables)
        keeper = KEEPER.format(here=self.here, python=sys.executable)
        scripts = {"bin/systemctl": control, "bin/docker": control, "keeper": keeper}
        for name, text in scripts.items():
            (self.here / name).write_text(text)
            (self.here / name).chmod(0o755)
        for name, (command, stop) in COMMANDS.items():
            words = json.dumps(stop).replace("{here}", str(self.here))
            log = self.follow if name == "docker" else self.follow[-1]
            (self.here / f"state/config/presets/{name}.toml").write_text(
                f"[launch]\ncommand = {json.dumps(command)}\nstop = {words}\n"
                f"log = {json.dumps(log)}\n"
                f'model-path = "org/model"\nport = {self.port}\n'
                '[flags]\ndevice = "cpu"\ntp-size = 8\nmem-fraction-static = 0.85\n'
            )

    def kvctl(self, *words: str) -> "subprocess.CompletedProcess[str]":
        path = f"{self.here}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            [KVCTL, "--state-dir", self.here / "state", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path, "KVCTL_FIND": "0"},
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr, done
        return done

    def server(self) -> dict[str, Any]:
        (found,) = json.loads(self.kvctl("status", "--json").stdout)["servers"]
        return dict(found)

    def followers(self) -> list[int]:
        """What prints the server's log."""
        return [p.pid for p in psutil.process_iter() if _command(p) == self.follow]

    def pid(self, name: str) -> int:
        return int((self.here / f"{name}.pid").read_text())

    def asked(self) -> list[str]:
        return (self.here / "asked").read_text().splitlines()

    def end(self) -> None:
        self.kvctl("daemon", "stop")
        for name in ("keeper", "server"):
            if (self.here / f"{name}.pid").exists() and lives(self.pid(name)):
                os.kill(self.pid(name), signal.SIGKILL)


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    made = Unit(tmp_path, free_port())
    made.write()
    yield made
    made.end()


@pytest.mark.parametrize("program", ["systemctl", "docker"])
def test_a_server_is_started_restarted_and_stopped_through_its_supervisor(
    unit: Unit, program: str
) -> None:
    started = unit.kvctl("server", "start", program)
    assert started.returncode == 0, started
    assert unit.server()["pid"] == unit.pid("server")
    restarted = unit.kvctl("server", "restart", program, "--yes")
    assert restarted.returncode == 0, restarted
    first, keeper = unit.server()["pid"], unit.pid("keeper")
    assert first == unit.pid("server")
    assert unit.server()["pool_tokens"] and len(unit.followers()) == (program == "docker")
    stopped = unit.kvctl("server", "stop", "--yes")
    assert stopped.returncode == 0, stopped
    assert not lives(first) and not lives(keeper) and unit.followers() == []
    verb = "start" if program == "systemctl" else "run"
    assert unit.asked() == [f"{program} {verb}", f"{program} stop"] * 2


def test_a_supervisor_that_starts_it_again_is_told_and_nothing_is_called_stopped(
    unit: Unit,
) -> None:
    assert unit.kvctl("server", "start", "untamed").returncode == 0
    first = unit.pid("server")
    stopped = unit.kvctl("server", "stop", "--yes")
    assert stopped.returncode == 1, stopped
    until("the next server", lambda: unit.pid("server") != first)
    assert f"pid {unit.pid('server')} serves {unit.url} again" in stopped.stderr
    assert "its supervisor starts it anew" in stopped.stderr


def test_a_server_that_others_keep_is_refused_with_its_keeper_named(unit: Unit) -> None:
    arguments = ["--port", str(unit.port), "--model-path", "org/model", "--tp-size", "8"]
    subprocess.run([unit.here / "bin/systemctl", "start", "sglang", *arguments], check=True)
    until("an answer", lambda: unit.kvctl("server", "adopt", unit.url).returncode == 0, 60)
    refused = unit.kvctl("server", "stop", "--yes")
    assert refused.returncode == 4, refused
    assert f"started by {unit.pid('keeper')}" in refused.stderr
    assert lives(unit.pid("server")) and unit.asked() == ["systemctl start"]
