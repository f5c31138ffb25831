"""Random rounds of everything that can go wrong, against a run on a simulated host.

    python -m tests.soak.chaos FOLDER --rounds 40 --seed 1 > rounds.jsonl

One JSON line a round. Each round does one thing of `faults.FAULTS` to a growing run, waits until
new answers are on disk, and has the files looked at by json alone; a run that is complete is
exported and verified, and the next one begins. Best inside `unshare -Urmn`: a small file system
that can really be full, and connections that can really be reset, need namespaces.
"""

import argparse
import json
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.faults import FAULTS, NEEDS_NAMESPACE
from tests.soak.journal_check import Key, check_export, inputs_of, look
from tests.soak.place import PRESET, SoakPlace, until
from tests.soak.real import EnginePlace
from tests.soak.simulated import SimPlace

from kvctl.core.controller.commands import CloseRun, StartRun, StartServer
from kvctl.core.domain.runs.run import RunState

DISK_MB = 64
MORE = 5
"""Answers that must come after a fault before the round is over."""


@dataclass(slots=True)
class Round:
    """What one round did and found."""

    number: int
    run: str
    fault: str
    before: int = 0
    """Answers on disk before it."""
    after: int = 0
    took_s: float = 0.0
    resumed_s: float = 0.0
    """From the end of the fault to `MORE` new answers."""
    twice: int = 0
    """Rows with a second answer in the journal; none may be in the export."""
    is_complete: bool = False
    """The run came to its end: it was exported and verified."""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Chaos:
    """The rounds of one place."""

    place: SoakPlace
    draw: random.Random
    names: tuple[str, ...]
    path: Path = Path()
    wanted: set[Key] = field(default_factory=set)
    runs: int = 0

    def rounds(self, count: int) -> Iterator[Round]:
        """Carry out that many rounds; a run in the middle at the end is brought to its end."""
        self.place.start_kvctld()
        self.place.submit(StartServer(PRESET))
        if isinstance(self.place, EnginePlace):
            yield self._undisturbed(self.place)
        self._begin()
        for number in range(1, count + 1):
            done = self._round(number)
            if done.problems or number == count or self.place.run().state is RunState.FINISHED:
                self._complete(done)
                if number < count:
                    self._begin()
            yield done

    def _undisturbed(self, place: EnginePlace) -> Round:
        """A first run that nothing is done to: what the model answers."""
        self._begin()
        made = Round(0, self.path.stem, "nothing")
        output = self.output
        until(lambda: place.run().state is RunState.FINISHED, "the end", 300)
        place.learn(output)
        self._complete(made)
        return made

    def _begin(self) -> None:
        self.runs += 1
        name = f"run{self.runs}"
        self.path, inputs = self.place.write_run(name, self.draw.choice((8, 16, 32)))
        self.wanted = inputs_of(inputs)
        self.place.submit(StartRun(str(self.path)))
        until(lambda: self.place.run().done >= MORE, "the first answers")

    @property
    def output(self) -> Path:
        return self.place.output / self.path.stem

    def _round(self, number: int) -> Round:
        name = self.draw.choice(self.names)
        made = Round(number, self.path.stem, name)
        time.sleep(self.draw.uniform(0, 0.4))
        claimed, before = self.place.run().done, look(self.output)
        made.before, began = len(before.answers), time.monotonic()
        if claimed > made.before:
            made.problems.append(f"{claimed} counted as done, {made.before} on disk")
        try:
            FAULTS[name](self.place, self.output, self.draw)
            self._check_lost(made, before.answers.keys())
            fallen = time.monotonic()
            self.place.go_on(self.path, MORE)
            made.resumed_s = time.monotonic() - fallen
        except Exception as error:
            made.problems.append(f"{type(error).__name__}: {error}"[:1500])
            traceback.print_exc()
        made.took_s = time.monotonic() - began
        self._look(made)
        return made

    def _check_lost(self, made: Round, before: "set[Key] | Any") -> None:
        """What was on disk is still there, whatever fell; a cut on purpose takes some away."""
        if "torn" in made.fault:
            return
        lost = set(before) - look(self.output).answers.keys()
        if lost:
            made.problems.append(f"{len(lost)} answers were on disk and are gone")

    def _look(self, made: Round) -> None:
        found = look(self.output, self.place.why_not_right)
        made.after, made.twice = len(found.answers), found.twice
        made.problems += found.problems
        if strange := found.answers.keys() - self.wanted:
            made.problems.append(f"answers to no row: {sorted(strange)[:3]}")

    def _complete(self, made: Round) -> None:
        """Bring the run to its end, export and verify it; every row must be there once."""
        try:
            self.place.go_on(self.path, 0)
            until(lambda: self.place.run().state is RunState.FINISHED, "the end", 120)
            made.is_complete = True
            self._look(made)
            missing = self.wanted - look(self.output).answers.keys()
            made.problems += [f"{len(missing)} rows have no answer"] if missing else []
            verdict = self.place.verb("run", "verify", str(self.path), "--json")
            made.problems += [] if verdict.returncode == 0 else [f"verify: {verdict}"]
            export = self.place.verb("run", "export", str(self.path))
            made.problems += check_export(export.stdout.splitlines(), self.wanted)
            self.place.submit(CloseRun())
        except Exception as error:
            made.problems.append(f"at the end: {type(error).__name__}: {error}"[:1500])
            traceback.print_exc()
        if not made.problems:
            subprocess.run(["rm", "-rf", str(self.output)], check=True)


def mounted(output: Path) -> bool:
    """Mount a small file system for the runs' output; False where that is not allowed."""
    output.mkdir()
    subprocess.run(["ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(output)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", action="store_true", help="the real CPU engine")
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args(words)
    output = given.folder / "out"
    left_out = () if mounted(output) else NEEDS_NAMESPACE
    names = tuple(n for n in given.only or FAULTS if n not in left_out)
    place = (EnginePlace if given.engine else SimPlace)(given.folder, output)
    place.prepare()
    try:
        for made in Chaos(place, random.Random(given.seed), names).rounds(given.rounds):
            print(json.dumps(asdict(made)), flush=True)
    finally:
        place.close()


if __name__ == "__main__":
    main(sys.argv[1:])
