"""kvctld as another process: one per state folder, deaf to SIGHUP, gone without a trace."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kvctl.core.controller.commands import Outcome, RefreshNow, StartServer
from kvctl.core.daemon import spawn
from kvctl.core.daemon.client import DaemonClient
from kvctl.core.daemon.lock import DaemonLock, is_locked
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.spawn import DaemonLaunch, ensure_running
from kvctl.core.daemon.waiting import wait_for
from kvctl.core.daemon.wire import DaemonInfo
from kvctl.core.domain.errors import DaemonUnreachable
from kvctl.core.domain.events import Event

ROOT = Path(__file__).resolve().parents[2]


class FakeLaunch(DaemonLaunch):
    """Starts the fake kvctld instead of the installed one."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.fakes.kvctld", str(self.paths.state)]


@pytest.fixture
def launch(paths: DaemonPaths) -> Iterator[FakeLaunch]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    yield FakeLaunch(paths, environment=environment)
    if (info := spawn.running(paths)) is not None:
        end(info.pid)


@pytest.fixture
def kvctld(launch: FakeLaunch) -> DaemonInfo:
    return ensure_running(launch)


def end(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    process = psutil.Process(pid)
    os.kill(pid, number)
    assert wait_for(lambda: None if is_alive(process) else True, 10)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_first_client_starts_it_and_the_second_finds_it(launch: FakeLaunch) -> None:
    first = ensure_running(launch)
    assert ensure_running(launch).pid == first.pid


def test_two_clients_at_once_get_the_same_kvctld(launch: FakeLaunch) -> None:
    starters = [
        subprocess.Popen(launch.command(), env=launch.environment, stderr=subprocess.DEVNULL)
        for _ in range(3)
    ]
    statuses = sorted(starter.wait(30) for starter in starters)
    assert statuses == [0, 4, 4]
    assert ensure_running(launch).pid


def test_it_has_its_own_session_no_terminal_and_no_waiting_parent(kvctld: DaemonInfo) -> None:
    process = psutil.Process(kvctld.pid)
    assert os.getsid(kvctld.pid) == kvctld.pid
    assert process.terminal() is None
    assert process.ppid() != os.getpid()


def test_its_standard_streams_are_its_log(kvctld: DaemonInfo, paths: DaemonPaths) -> None:
    streams = [os.readlink(f"/proc/{kvctld.pid}/fd/{number}") for number in range(3)]
    assert streams == ["/dev/null", str(paths.log), str(paths.log)]
    assert f"kvctld pid {kvctld.pid} answers" in paths.log.read_text()


def test_a_hangup_does_not_end_it(kvctld: DaemonInfo, paths: DaemonPaths) -> None:
    os.kill(kvctld.pid, signal.SIGHUP)
    assert wait_for(lambda: "SIGHUP ignored" in paths.log.read_text() or None, 10)
    running = spawn.running(paths)
    assert running is not None and running.pid == kvctld.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_signal_ends_it_without_leftovers(
    kvctld: DaemonInfo, paths: DaemonPaths, number: signal.Signals
) -> None:
    end(kvctld.pid, number)
    assert not paths.socket.exists()
    assert not is_locked(paths.lock)
    assert f"kvctld leaves: stopped by {number.name}" in paths.log.read_text()


def test_after_kill_9_the_next_client_starts_another(
    kvctld: DaemonInfo, launch: FakeLaunch
) -> None:
    end(kvctld.pid, signal.SIGKILL)
    after = ensure_running(launch)
    assert after.pid != kvctld.pid


def test_stop_waits_until_it_has_left(kvctld: DaemonInfo, paths: DaemonPaths) -> None:
    assert spawn.stop(paths) == kvctld.pid
    assert not is_locked(paths.lock)
    assert spawn.stop(paths) is None


def test_a_start_that_fails_ends_with_the_last_line_of_its_log(paths: DaemonPaths) -> None:
    class Broken(DaemonLaunch):
        def command(self) -> list[str]:
            return [sys.executable, "-c", "import sys; sys.exit('kvctl: config.toml: not TOML')"]

    with pytest.raises(DaemonUnreachable, match=r"did not start: config.toml: not TOML"):
        ensure_running(Broken(paths))


def test_a_kvctld_that_holds_its_lock_and_is_silent_is_named(
    paths: DaemonPaths, launch: FakeLaunch, lock: DaemonLock
) -> None:
    with pytest.raises(DaemonUnreachable, match=rf"pid {os.getpid()}\) holds its lock"):
        ensure_running(launch, within_s=2.0)


def test_the_client_carries_commands_and_their_events(
    kvctld: DaemonInfo, paths: DaemonPaths
) -> None:
    with DaemonClient(paths.socket) as client:
        assert client.submit(RefreshNow()) == Outcome(0, "done", ("what was seen",))
        news = list(client.follow(StartServer("refused")))
    assert isinstance(news[0], Event) and news[0].text == "StartServer"
    assert isinstance(news[-1], Outcome) and news[-1].exit_status == 4


def test_the_client_streams_until_goodbye(kvctld: DaemonInfo, paths: DaemonPaths) -> None:
    with DaemonClient(paths.socket) as client:
        stream = client.stream()
        assert next(stream).host
        os.kill(kvctld.pid, signal.SIGTERM)
        assert list(stream) == []


def test_a_kvctld_that_dies_breaks_the_stream_with_an_error(
    kvctld: DaemonInfo, paths: DaemonPaths
) -> None:
    with DaemonClient(paths.socket) as client:
        stream = client.stream()
        next(stream)
        end(kvctld.pid, signal.SIGKILL)
        with pytest.raises(DaemonUnreachable):
            list(stream)


def test_nobody_there_is_one_line_that_says_what_to_do(paths: DaemonPaths) -> None:
    with DaemonClient(paths.socket) as client, pytest.raises(DaemonUnreachable) as caught:
        client.snapshot()
    assert "kvctl daemon start" in str(caught.value) and "\n" not in str(caught.value)


def test_a_launch_without_a_state_folder_leaves_it_to_the_environment(paths: DaemonPaths) -> None:
    launch = DaemonLaunch(paths)
    assert "--state-dir" not in launch.command()
    given = replace(launch, state_dir=paths.state).command()
    assert given[given.index("--state-dir") + 1] == str(paths.state)
