"""Real processes started as servers are: own session, own log, exit status, nothing left behind."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvctl.core.clock import RealClock, within
from kvctl.core.domain.presets.launch_plan import LaunchPlan, render
from kvctl.core.domain.presets.preset import merge
from kvctl.core.domain.presets.text import parse_preset
from kvctl.core.servers.flags.catalogue import Installed, InterpreterProblem, locate
from kvctl.core.servers.processes.launch import Launcher, LaunchFailed, new_log_path, start_ticks


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    started = Launcher(RealClock(), {"PATH": os.environ["PATH"], "KEPT": "1"})
    yield started
    for identity in started.living():
        os.kill(identity.pid, signal.SIGKILL)
    while started.living():
        pass
    started.close()


def plan_of(script: str, more: str = "") -> LaunchPlan:
    text = f"[launch]\ncommand = [{sys.executable!r}, '-c', '''{script}''']\n{more}"
    return render(merge([parse_preset("p", "p.toml", text)]), {})


async def ended(launcher: Launcher, plan: LaunchPlan, log: Path) -> int | None:
    launched = launcher.spawn(plan, log)
    return await within(RealClock(), 20, launcher.wait(launched.identity))


async def test_a_server_has_its_own_session_no_terminal_and_its_log(
    launcher: Launcher, tmp_path: Path
) -> None:
    script = (
        "import os, sys; print(os.getsid(0) == os.getpid(), os.isatty(0), sys.stdin.read())"
        '; print("to stderr", file=sys.stderr)'
    )
    log = tmp_path / "state" / "server.log"
    assert await ended(launcher, plan_of(script), log) == 0
    assert sorted(log.read_text().splitlines()) == ["True False ", "to stderr"]
    assert log.stat().st_mode & 0o777 == 0o600


async def test_a_log_command_writes_behind_the_launchs_own_output(
    launcher: Launcher, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    more = f"log = [{sys.executable!r}, '-c', 'import os; print(os.getsid(0) == os.getpid())']\n"
    plan = plan_of('print("launched")', more)
    assert await ended(launcher, plan, log) == 0
    follower = launcher.follow(plan, log)
    assert await within(RealClock(), 20, launcher.wait(follower)) == 0
    assert log.read_text() == "launched\nTrue\n"


def test_a_log_command_that_is_missing_is_told(launcher: Launcher, tmp_path: Path) -> None:
    plan = plan_of("pass", "log = ['/none/journalctl']\n")
    with pytest.raises(LaunchFailed, match=r"/none/journalctl does not exist; correct .* log of"):
        launcher.follow(plan, tmp_path / "log")


async def test_the_environment_is_kvctls_plus_the_presets(
    launcher: Launcher, tmp_path: Path
) -> None:
    names = '"A", "KEPT", "SGLANG_PYSPY_DUMP_BEFORE_CRASH"'
    script = f'import os; print(*(f"{{n}}={{os.environ.get(n)}}" for n in ({names})))'
    log = tmp_path / "log"
    assert await ended(launcher, plan_of(script, "[env]\nA = 'x'\n"), log) == 0
    assert log.read_text() == "A=x KEPT=1 SGLANG_PYSPY_DUMP_BEFORE_CRASH=0\n"


async def test_no_open_file_of_kvctld_reaches_the_server(
    launcher: Launcher, tmp_path: Path
) -> None:
    file = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(file, True)
    try:
        script = 'import os; print(sorted(map(int, os.listdir("/proc/self/fd")))[:4])'
        log = tmp_path / "log"
        assert await ended(launcher, plan_of(script), log) == 0
        assert log.read_text() == "[0, 1, 2, 3]\n"
    finally:
        os.close(file)


@pytest.mark.parametrize(
    ("script", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
async def test_the_exit_status_of_a_child_is_known_and_it_is_no_zombie(
    launcher: Launcher, tmp_path: Path, script: str, status: int
) -> None:
    launched = launcher.spawn(plan_of(script), tmp_path / "log")
    assert await within(RealClock(), 20, launcher.wait(launched.identity)) == status
    assert launcher.exit_of(launched.identity) == status
    assert start_ticks(launched.pid) != launched.start_ticks
    assert launcher.reap() == ((launched.identity, status),)


async def test_a_living_child_has_no_exit_status(launcher: Launcher, tmp_path: Path) -> None:
    launched = launcher.spawn(plan_of("import time; time.sleep(600)"), tmp_path / "log")
    assert launcher.exit_of(launched.identity) is None
    assert launched.start_ticks == start_ticks(launched.pid)
    assert os.getsid(launched.pid) == launched.session
    os.kill(launched.pid, signal.SIGTERM)
    assert await within(RealClock(), 20, launcher.wait(launched.identity)) == -signal.SIGTERM


async def test_a_process_that_is_no_child_has_none(launcher: Launcher, tmp_path: Path) -> None:
    launched = launcher.spawn(plan_of("pass"), tmp_path / "log")
    stranger = Launcher(RealClock(), {})
    assert stranger.exit_of(launched.identity) is None
    assert await stranger.wait(launched.identity) is None


@pytest.mark.parametrize(
    ("python", "told"),
    [
        (
            "/nowhere/python",
            r"/nowhere/python does not exist; correct \[launch\] python of preset p",
        ),
        ("{tmp}/plain", "may not be executed"),
        ("{tmp}/odd", "cannot be started: Exec format error"),
    ],
)
def test_a_program_that_cannot_start_is_one_clear_line(
    launcher: Launcher, tmp_path: Path, python: str, told: str
) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "odd").write_bytes(b"\x00\x01")
    (tmp_path / "odd").chmod(0o755)
    text = f'[launch]\npython = "{python.format(tmp=tmp_path)}"\n'
    plan = render(merge([parse_preset("p", "p.toml", text)]), {})
    log = tmp_path / "log"
    with pytest.raises(LaunchFailed, match=told) as failed:
        launcher.spawn(plan, log)
    assert failed.value.exit_status == 1
    assert not log.exists()


def test_a_log_that_cannot_be_written_is_told(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchFailed, match="cannot be written"):
        launcher.spawn(plan_of("pass"), tmp_path / "file" / "server.log")


def test_a_server_to_watch_is_not_started(launcher: Launcher, tmp_path: Path) -> None:
    plan = render(merge([parse_preset("p", "p", '[launch]\nurl = "http://x:1"\n')]), {})
    with pytest.raises(LaunchFailed, match="only watches"):
        launcher.spawn(plan, tmp_path / "log")


def test_no_launch_has_the_log_or_the_mark_of_another_of_the_same_second(tmp_path: Path) -> None:
    """Also of another kvctld, with a folder of its own: the mark says whose processes are ended."""
    folders = (tmp_path / "one", tmp_path / "other")
    made = [new_log_path(folder, 1_790_000_000.0) for folder in folders for _ in range(50)]
    assert len({path.stem for path in made}) == 100
    assert all(path.name.startswith("server-20") for path in made)


def test_an_interpreter_is_asked_without_importing_the_package(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    metadata = tmp_path / "sglang-0.5.99.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
    found = locate(sys.executable, {"PYTHONPATH": str(tmp_path)})
    assert found == Installed(package, "0.5.99")


def test_an_interpreter_without_sglang_has_none() -> None:
    assert locate(sys.executable, {}) is None


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/true", "/etc/passwd"])
def test_what_is_no_interpreter_is_told_in_one_line(python: str) -> None:
    with pytest.raises(InterpreterProblem) as problem:
        locate(python, {})
    assert python in str(problem.value)
    assert "\n" not in str(problem.value)
