"""kill -9 of a real server's main process: what it leaves is listed, cleared, and a start follows.

There is no GPU here: leftovers are told by their launch. The many rounds run with `-m soak`.
"""

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.terminal import KVCTL
from tests.engine.operating import Place, in_session, kill_and_wait, place_in
from tests.engine.server import wait_for

PHASE_WITHIN_S = 180.0
Members = list[psutil.Process]


@dataclass(frozen=True)
class Phase:
    """A moment of a start: the log holds `words` and the session has so many processes."""

    name: str
    members: int
    words: str = ""

    def is_reached(self, log: str, members: Members) -> bool:
        return len(members) >= self.members and self.words in log


PHASES = (
    Phase("launched", 1),
    Phase("first child", 2),
    Phase("scheduler imports", 3),
    Phase("weights", 3, "Load weight begin"),
    Phase("pool", 3, "Load weight end"),
    Phase("bound", 3, "Uvicorn running"),
)


@pytest.fixture
def place(installed_engine: None, tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


def log_of(place: Place) -> str:
    logs = sorted(place.state.glob("logs/*.log"))
    return logs[-1].read_text(errors="replace") if logs else ""


def begin(place: Place) -> "subprocess.Popen[str]":
    """Begin a start from the command line and go on without waiting for it."""
    return subprocess.Popen(
        [KVCTL, "--state-dir", place.state, "server", "start", "cpu-tiny"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=place.environ,
        cwd=place.folder,
    )


def server_pids(place: Place) -> list[int]:
    return [s["pid"] for s in place.ask("status")["servers"] if s["pid"] is not None]


def main_of(place: Place, before: list[int]) -> int:
    """The main process of the server that is being started."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [pid for pid in server_pids(place) if pid not in before]
        return bool(found)

    wait_for(is_there, "a server being started", PHASE_WITHIN_S)
    place.sessions.add(found[0])
    return found[0]


def strays(place: Place) -> dict[int, Any]:
    return {row["pid"]: row for row in place.ask("gpus")["leftovers_off_gpu"]}


def clear_and_check(place: Place, main: int) -> int:
    """What lives of a dead launch is listed as left behind, and one action ends it."""
    # One that was just started below a dying parent can still end by itself: it may be gone.
    left = {process.pid for process in in_session(main)}
    listed = strays(place)
    still = {process.pid for process in in_session(main)} & left
    assert still <= listed.keys(), (still, listed)
    for pid in still:
        assert (listed[pid]["kind"], listed[pid]["server"]) == ("leftover", "main"), listed[pid]
    said = place.kvctl("--server", "main", "kill", "--leftovers", "--yes", "--wait", "2")
    assert said.status == 0, said
    assert in_session(main) == []
    assert not strays(place).keys() & left
    return len(still)


def kill_during_start(place: Place, phase: Phase, *, with_kvctld: bool) -> int:
    """kill -9 in a phase (of kvctld too, so that nobody cleans up); how many outlived it."""
    before = server_pids(place)
    starting = begin(place)
    try:
        main = main_of(place, before)
        began = time.monotonic()
        while not phase.is_reached(log_of(place), in_session(main)):
            assert starting.poll() is None, log_of(place)[-2000:]
            assert time.monotonic() - began < PHASE_WITHIN_S, phase
        if with_kvctld:
            place.kill_kvctld()
        kill_and_wait(main)
        # Counted now: the next kvctld clears them as soon as it takes the start up.
        outlived = len(in_session(main))
        told, _ = starting.communicate(timeout=90)
    finally:
        starting.kill()
        starting.communicate()
    assert starting.returncode != 0, told
    clear_and_check(place, main)
    return outlived


def start_works_at_once(place: Place) -> int:
    place.do("server", "start", "cpu-tiny")
    server = place.server()
    assert server["state"] in ("idle", "ready"), server
    assert str(place.port) in server["url"]
    return int(server["pid"])


def kill_while_serving(place: Place, main: int) -> int:
    kill_and_wait(main)
    wait_for(lambda: place.server()["state"] == "failed", "the failure", 20)
    return clear_and_check(place, main)


@pytest.mark.engine
def test_what_a_killed_launcher_leaves_is_listed_cleared_and_the_port_works_at_once(
    place: Place,
) -> None:
    assert kill_during_start(place, PHASES[2], with_kvctld=True) > 0
    main = start_works_at_once(place)
    kill_while_serving(place, main)


@pytest.mark.soak
@pytest.mark.parametrize("with_kvctld", [False, True], ids=["kvctld lives", "kvctld dies too"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
def test_every_phase_of_a_start_can_be_killed_and_a_restart_works_at_once(
    place: Place, phase: Phase, with_kvctld: bool
) -> None:
    left = kill_during_start(place, phase, with_kvctld=with_kvctld)
    main = start_works_at_once(place)
    serving = kill_while_serving(place, main)
    print(f"{phase.name}: {left} left, then serving: {serving} left", flush=True)
