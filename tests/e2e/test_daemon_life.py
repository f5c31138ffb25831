"""The real kvctld, started by the installed kvctl from a real terminal."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.terminal import KVCTL, Terminal

from kvctl.core.daemon import spawn
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.waiting import wait_for

pytestmark = pytest.mark.terminal

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def alone(environ: dict[str, str]) -> dict[str, str]:
    """An environment in which kvctld does not look for servers that others run here."""
    return {**environ, "KVCTL_FIND": "0", "LANG": "C.UTF-8", "TERM": "xterm-256color"}


@pytest.fixture
def ask(alone: dict[str, str], paths: DaemonPaths) -> Iterator[Ask]:
    """Run a reading verb and return its document; kvctld is ended with the test."""

    def run(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [KVCTL, "--state-dir", paths.state, *words, "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=alone,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    yield run
    info = spawn.running(paths)
    if info is not None:
        os.kill(info.pid, signal.SIGKILL)


def test_it_starts_with_the_first_verb_and_outlives_its_terminal(
    ask: Ask, alone: dict[str, str], paths: DaemonPaths, tmp_path: Path
) -> None:
    command: list[str | Path] = [KVCTL, "--state-dir", paths.state, "watch", "--plain"]
    with Terminal(command, environ=alone, cwd=tmp_path) as terminal:
        terminal.wait_for("verdict: ")
        pid = ask("daemon", "status")["pid"]
        terminal.hang_up()
        terminal.wait_exit()
    process = psutil.Process(pid)
    assert process.terminal() is None and os.getsid(pid) == pid
    assert ask("daemon", "status")["pid"] == pid


@pytest.mark.parametrize("asked_at_once", [False, True])
def test_the_same_kvctld_answers_after_its_folder_was_deleted(
    ask: Ask, paths: DaemonPaths, asked_at_once: bool
) -> None:
    ask("status")
    pid = ask("daemon", "status")["pid"]
    shutil.rmtree(paths.runtime)
    if not asked_at_once:
        assert wait_for(lambda: paths.socket.exists() or None, 10)
    assert ask("status")["host"]  # starts another one, were the first not there
    assert ask("daemon", "status")["pid"] == pid


def test_after_kill_9_the_next_verb_starts_another(ask: Ask, paths: DaemonPaths) -> None:
    ask("status")
    pid = ask("daemon", "status")["pid"]
    os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: True if not psutil.pid_exists(pid) else None, 10)
    assert ask("status")["host"]
    assert ask("daemon", "status")["pid"] != pid


def test_without_a_gpu_or_server_it_says_so_and_works(ask: Ask) -> None:
    document = ask("status")
    assert document["servers"] == [] and document["run"]["state"] == "none"
    assert document["verdict"]["sentence"]
    gpus = ask("gpus")
    assert gpus["devices"] or gpus["problem"]
