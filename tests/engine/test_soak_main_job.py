"""Rounds of kill -9, of kvctld and of the server in turn, while a run goes on on a real engine.

    KVCTL_SOAK_ROUNDS=10 KVCTL_SOAK_SEED=1 pytest -m soak tests/engine/test_soak_main_job.py

Every round is a run over the same prompts. Its answers are counted by json alone and compared
with those of a first run that nothing was done to; the table goes to tests/benchmarks/results/.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.engine.operating import Key, Place, in_session, kill_and_wait, place_in
from tests.engine.server import wait_for

pytestmark = pytest.mark.soak

ROWS, TOKENS = 40, 120
ROUNDS = int(os.environ.get("KVCTL_SOAK_ROUNDS", "10"))
SEED = int(os.environ.get("KVCTL_SOAK_SEED", "1"))
RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "main-job-soak.md"
HEAD = """# kill -9 in the middle of the main job, on a real engine

{done} of {rounds} rounds passed. Each round: {rows} prompts of B2 and B3, {tokens} tokens each,
slots AUTO, SGLang on the CPU; at a random moment (seed {seed}) one process gets SIGKILL; the next
verb goes on. Counted by json alone; "same" are answers equal, token by token, to those of a run
that nothing was done to. Made by
`KVCTL_SOAK_ROUNDS={rounds} pytest -m soak tests/engine/test_soak_main_job.py`.

| round | killed | after | in flight | answers again after | missing | twice | same | verify |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |
"""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did and found."""

    number: int
    victim: str
    after: int
    """Answers that kvctl had counted at the moment of the kill."""
    in_flight: int
    resumed_s: float
    """From the kill to the first answer after it."""
    missing: int
    twice: int
    same: int
    total: int
    is_exact: bool
    """What `kvctl run verify` says."""

    @property
    def passed(self) -> bool:
        return self.is_exact and (self.missing, self.twice, self.same) == (0, 0, self.total)

    def line(self) -> str:
        verdict = "exact" if self.is_exact else "NOT EXACT"
        return (
            f"| {self.number} | {self.victim} | {self.after} of {self.total} | {self.in_flight} "
            f"| {self.resumed_s:.1f} s | {self.missing} | {self.twice} "
            f"| {self.same} of {self.total} | {verdict} |\n"
        )


@pytest.fixture
def place(installed_engine: None, tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        made.do("server", "start", "cpu-tiny")
        yield made


def test_no_kill_loses_or_doubles_an_answer(place: Place) -> None:
    begin(place, "untouched")
    finish(place)
    place.check_output("untouched", TOKENS)
    whole = outputs(place, "untouched")
    draw, rounds = random.Random(SEED), []
    for number in range(1, ROUNDS + 1):
        victim = ("kvctld", "server")[(number - 1) % 2]
        rounds.append(one_round(place, number, victim, draw.random(), whole))
        write_table(rounds)
    assert len(rounds) == ROUNDS and all(r.passed for r in rounds), RESULT.read_text()


def one_round(
    place: Place, number: int, victim: str, moment: float, whole: dict[Key, list[int]]
) -> Round:
    name = f"round-{number}"
    begin(place, name)
    wanted = int(moment * (len(whole) - 12))
    seen = place.until(lambda run: run["in_flight"] > 0 and run["done"] >= wanted, "the moment")
    killed_at = time.monotonic()
    kill(place, victim)
    place.until(lambda run: run["done"] > seen["done"] and run["state"] != "loading", "an answer")
    resumed_s = time.monotonic() - killed_at
    finish(place)
    answers = place.answers(name)
    counts = Counter((a["partition"], a["id"]) for a in answers)
    return Round(
        number,
        victim,
        seen["done"],
        seen["in_flight"],
        resumed_s,
        missing=len(whole.keys() - counts.keys()),
        twice=sum(counts.values()) - len(counts),
        same=sum(whole.get(key) == ids for key, ids in outputs(place, name).items()),
        total=len(whole),
        is_exact=place.kvctl("run", "verify", f"{name}.toml").status == 0,
    )


def begin(place: Place, name: str) -> None:
    place.write_run(name, ROWS, TOKENS)
    place.do("run", "start", f"{name}.toml")


def finish(place: Place) -> None:
    place.until(lambda run: run["state"] == "finished", "the end of the run", 300)


def kill(place: Place, victim: str) -> None:
    """SIGKILL, and what an operator does next."""
    if victim == "kvctld":
        place.kill_kvctld()
        return
    pid = place.server()["pid"]
    kill_and_wait(pid)
    wait_for(lambda: not in_session(pid), "the end of the server's children", 60)
    place.do("server", "start", "cpu-tiny")


def outputs(place: Place, name: str) -> dict[Key, list[int]]:
    return {(a["partition"], a["id"]): a["output_ids"] for a in place.answers(name)}


def write_table(rounds: list[Round]) -> None:
    passed = sum(r.passed for r in rounds)
    head = HEAD.format(done=passed, rounds=ROUNDS, rows=2 * ROWS, tokens=TOKENS, seed=SEED)
    RESULT.write_text(head + "".join(r.line() for r in rounds))
