"""kill -9 of kvctld at every stage of a restart, on a real engine: finished or told, one server.

    pytest -m soak tests/engine/test_soak_restart_kills.py

The moment is read from kvctld's own state file; the servers are counted in /proc. The table goes
to tests/benchmarks/results/restart-kills.md.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.e2e.terminal import KVCTL
from tests.engine.operating import Place, kill_and_wait, place_in

pytestmark = pytest.mark.soak

NAME, ROWS, COPIES, TOKENS, SLOTS = "kills", 40, 4, 400, 2
UNTOUCHED = ("hold run", "harvest")
STAGES = (
    *UNTOUCHED,
    "stop",
    "free GPUs",
    "prove clean",
    "process",
    "weights",
    "KV pool",
    "first token",
    "resume run",
)
CHOSEN = [name.strip() for name in os.environ.get("KVCTL_SOAK_STAGES", "").split(",") if name]
WITHIN_S = 300.0
LOOK_S = 0.0005
OVER = "none: it was over"
RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "restart-kills.md"
HEAD = """# kill -9 of kvctld at every stage of a restart, on a real engine

Another kvctld starts with the next verb. {answers} of {total} answers on disk at the end, missing
{missing}, twice {twice}; never more than one server. SGLang 0.5.23 on the CPU. Made by
`pytest -m soak tests/engine/test_soak_restart_kills.py`.

| killed at | stage on record | what the next kvctld did | most servers | serves again after |
| --- | --- | --- | ---: | ---: |
"""


@dataclass(frozen=True, slots=True)
class Round:
    wanted: str
    at: str
    """The stage that state.json named when the process was gone."""
    did: str
    most: int
    again_s: float

    def line(self) -> str:
        return f"| {self.wanted} | {self.at} | {self.did} | {self.most} | {self.again_s:.1f} s |\n"


@pytest.fixture
def place(installed_engine: None, tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


def test_no_death_of_kvctld_leaves_two_servers_or_none(place: Place) -> None:
    place.write_run(NAME, ROWS, TOKENS, COPIES)
    place.do("server", "start", "cpu-tiny")
    place.do("run", "start", f"{NAME}.toml")
    place.do("run", "throttle", str(SLOTS))
    rounds = []
    for stage in CHOSEN or STAGES:
        place.until(lambda run: run["in_flight"] == SLOTS, "requests")
        rounds.append(one_round(place, stage))
        print(rounds[-1].line(), end="", flush=True)
    place.do("run", "throttle", "auto")
    place.until(lambda run: run["state"] == "finished", "the end of the run", 900)
    write_table(place, rounds)
    place.check_output(NAME, TOKENS)


def one_round(place: Place, stage: str) -> Round:
    old, kvctld = place.server(), place.kvctld()["pid"]
    preset = "cpu-tiny" if old["preset"] == "cpu-tiny-2x" else "cpu-tiny-2x"
    restart = subprocess.Popen(
        [KVCTL, "--state-dir", place.state, "server", "restart", preset, "--yes"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=place.environ,
        cwd=place.folder,
    )
    at = kill_at(place, kvctld, stage)
    killed_at, most = time.monotonic(), 0
    restart.wait(60)
    while not is_settled(place):
        most = max(most, servers_of(place))
        assert time.monotonic() - killed_at < WITHIN_S, place.ask("status")
    most = max(most, servers_of(place))
    again_s = time.monotonic() - killed_at
    done = place.run()["done"]
    place.until(lambda run: run["done"] > done, "answers again")
    new = place.server()
    is_told = at in UNTOUCHED
    assert new["preset"] == (old["preset"] if is_told else preset), (at, new)
    assert (new["pid"] == old["pid"]) is is_told and (most, servers_of(place)) == (1, 1)
    return Round(
        stage, at, "told, the old server goes on" if is_told else "finished it", most, again_s
    )


def kill_at(place: Place, kvctld: int, stage: str) -> str:
    """kill -9 as soon as state.json names this stage; the stage it names afterwards.

    The first two take a millisecond: a later one may be on record by then, and is told.
    """
    deadline = time.monotonic() + WITHIN_S
    wanted = STAGES[STAGES.index(stage) :]
    while stage_of(place) not in wanted:
        assert time.monotonic() < deadline, f"never at {stage}"
        time.sleep(LOOK_S)
    kill_and_wait(kvctld)
    return stage_of(place) or OVER


def stage_of(place: Place) -> str | None:
    sequence = json.loads((place.state / "state.json").read_text()).get("sequence")
    stages = sequence["stages"] if sequence else ()
    return next((stage["name"] for stage in stages if stage["state"] == "doing"), None)


def is_settled(place: Place) -> bool:
    """Whether nothing is changed any more and the run sends."""
    status = place.ask("status")
    (server,) = status["servers"]
    return status["run"]["in_flight"] > 0 and server["state"] in ("decoding", "idle")


def servers_of(place: Place) -> int:
    """How many main processes with this place's port there are, by their command lines."""
    return sum(is_main(process, str(place.port)) for process in psutil.process_iter())


def is_main(process: psutil.Process, port: str) -> bool:
    try:
        words = process.cmdline()
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        parent = process.parent()
        is_child = parent is not None and port in parent.cmdline()
    except psutil.Error:
        return False
    return is_alive and "sglang.launch_server" in words and port in words and not is_child


def write_table(place: Place, rounds: list[Round]) -> None:
    wanted, answers = place.wanted(), place.answers(NAME)
    ids = {(a["partition"], a["id"]) for a in answers}
    head = HEAD.format(
        answers=len(ids),
        total=len(wanted),
        missing=len(wanted.keys() - ids),
        twice=len(answers) - len(ids),
    )
    if not CHOSEN:
        RESULT.write_text(head + "".join(one.line() for one in rounds))
