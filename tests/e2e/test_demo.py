"""`kvctl demo`, the installed one: it runs, it says that it is simulated, it leaves nothing."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from tests.e2e.terminal import KVCTL, Terminal

from kvctl.core.daemon.waiting import wait_for

pytestmark = pytest.mark.terminal


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home and a place for temporary folders of this test's own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "KVCTL_", "SSH_"))}
    # Short, since the demo's socket lies below it.
    return {**kept, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "LANG": "C.UTF-8"}


def leftovers(folder: Path) -> list[str]:
    """Return the command lines of processes that belong to a demo below `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("KVCTL_SIM_DIR", "").startswith(str(folder)):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def assert_nothing_left(folder: Path) -> None:
    assert wait_for(lambda: None if leftovers(folder) else True, 10), leftovers(folder)
    assert not list(folder.glob("kvctl-demo-*"))
    assert not list(folder.rglob("*errors.log"))


def test_headless_it_runs_to_the_end_and_prints_operating_points(
    environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [KVCTL, "demo", "--headless", "--speed", "300", "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert list(document)[-1] == "operating_points"
    run = document["run"]
    assert run["state"] == "finished"
    assert run["done"] == run["total"] == sum(p["done"] for p in run["partitions"])
    assert [p["name"] for p in run["partitions"]] == [f"B{n}" for n in range(1, 8)]
    keys = {"partition", "running", "queued", "token_usage", "window_s", "steady"}
    keys |= {"generation_tokens_per_s", "effective_tokens_per_s"}
    assert all(keys <= set(point) for point in document["operating_points"])
    assert document["operating_points"]
    assert_nothing_left(tmp_path)


def test_the_panel_says_simulated_and_q_takes_everything_away(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with Terminal([KVCTL, "demo"], environ=environment) as terminal:
        terminal.wait_for("SIMULATED")
        terminal.wait_for("B2")
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert "Traceback" not in terminal.text
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_lost_terminal_takes_the_simulated_host_away(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    with Terminal([KVCTL, "demo"], environ=environment) as terminal:
        terminal.wait_for("SIMULATED")
        os.kill(terminal.pid, number)
        terminal.wait_exit()
    assert_nothing_left(tmp_path)
