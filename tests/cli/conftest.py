"""The installed `kvctl` as another process, and a kvctld with a scripted controller behind it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.daemon.test_process import FakeLaunch

from kvctl.core.daemon import spawn
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.waiting import wait_for
from kvctl.core.daemon.wire import DaemonInfo

ROOT = Path(__file__).resolve().parents[2]
KVCTL = Path(sys.executable).with_name("kvctl")
DEADLINE_S = 30


@dataclass(frozen=True)
class Said:
    """What one call of kvctl printed, and its exit status."""

    status: int
    out: str
    err: str

    def one_error(self, status: int) -> str:
        """Check that it failed with this status in exactly one line, and return that line."""
        assert self.status == status, self
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("kvctl: "), self
        assert "Traceback" not in self.out + self.err
        return lines[0]


Kvctl = Callable[..., Said]


@pytest.fixture
def paths(tmp_path: Path) -> DaemonPaths:
    return DaemonPaths(tmp_path / "s", tmp_path / "s", tmp_path / "s" / "config")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "KVCTL_"))}
    return {**kept, "HOME": str(tmp_path), "PYTHONWARNINGS": "error"}


@pytest.fixture
def kvctl(paths: DaemonPaths, environ: dict[str, str], tmp_path: Path) -> Kvctl:
    """Run the installed kvctl on this test's own state folder."""

    def run(*words: str, **extra: str) -> Said:
        done = subprocess.run(
            [KVCTL, "--state-dir", paths.state, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**environ, **extra},
            cwd=tmp_path,
            timeout=DEADLINE_S,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def kvctld(paths: DaemonPaths) -> Iterator[DaemonInfo]:
    """A kvctld with the mission's steady picture, which answers every command."""
    launch = FakeLaunch(paths, environment={**os.environ, "PYTHONPATH": str(ROOT)})
    yield spawn.ensure_running(launch)
    info = spawn.running(paths)
    if info is not None:
        os.kill(info.pid, signal.SIGKILL)
        wait_for(lambda: None if spawn.running(paths) else True, DEADLINE_S)
