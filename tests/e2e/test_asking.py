"""Verbs that ask before they end something, and what Ctrl-C means while a command runs."""

import os
import signal

import pytest
from tests.e2e.conftest import OpenPanel
from tests.tui.mission import STEADY

from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.wire import DaemonInfo

pytestmark = pytest.mark.terminal


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 4), ("", 4)])
def test_stop_asks_and_only_yes_does_it(panel: OpenPanel, answer: str, status: int) -> None:
    terminal = panel("server", "stop")
    assert STEADY.server is not None
    terminal.wait_for(r"\[y/N\]")
    assert STEADY.server.name in terminal.text
    terminal.send(answer + "\r")
    assert terminal.wait_exit() == status
    assert ("what was seen" in terminal.text) is (status == 0)


def test_kill_names_every_process_with_its_user_before_it_asks(panel: OpenPanel) -> None:
    holder = STEADY.gpus.holders[0]
    terminal = panel("kill", "--gpu", str(holder.gpu_index))
    terminal.wait_for(r"\[y/N\]")
    for word in (str(holder.pid), holder.kind.value, f"user {holder.user}"):
        assert word in terminal.text.replace("\n", "")
    terminal.send("\r")
    assert terminal.wait_exit() == 4


def test_ctrl_c_leaves_the_command_running_and_says_so(
    panel: OpenPanel, kvctld: DaemonInfo, paths: DaemonPaths
) -> None:
    terminal = panel("server", "start", "forever")
    terminal.wait_for("StartServer")
    terminal.send("\x03")
    assert terminal.wait_exit() == 130
    assert "kvctld carries the command on" in terminal.text
    assert "Traceback" not in terminal.text
    os.kill(kvctld.pid, signal.SIGTERM)


def test_watch_ends_with_ctrl_c_as_it_should(panel: OpenPanel) -> None:
    terminal = panel("watch")
    terminal.wait_for("decoding")
    terminal.send("\x03")
    assert terminal.wait_exit() == 0
