"""Nothing is lost: rounds of kills, stops, resets, full disks, torn writes, pauses and restarts.

    KVCTL_ROUNDS=500 KVCTL_SEED=1 pytest -m soak tests/soak/test_soak_chaos.py -k simulated

The rounds run in user, mount and network namespaces of their own, where the host allows it. The
tables go to tests/benchmarks/results/.
"""

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak

SEED = os.environ.get("KVCTL_SEED", "1")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
HEAD = """# Nothing lost: {title}

{good} of {rounds} rounds without a problem, {runs} runs carried to their end, exported and
verified; seed {seed}. Each round does one thing to a growing run ({place}), waits for five new
answers, and has the files read by json alone: what was on disk is still there, every line is whole
and its tokens are those of an undisturbed run, no more is counted as done than lies on disk; at the
end every id is there once, in the journal and in the export. Made by
`KVCTL_ROUNDS={rounds} KVCTL_SEED={seed} pytest -m soak tests/soak/test_soak_chaos.py`.
{note}
| what was done | rounds | answers again after, median | longest | problems |
| --- | ---: | ---: | ---: | ---: |
"""
Document = dict[str, Any]


def rounds_of(folder: Path, count: int, *words: str) -> list[Document]:
    """Carry out the rounds, in namespaces where that is allowed."""
    command = [sys.executable, "-m", "tests.soak.chaos", str(folder), "--rounds", str(count)]
    command += ["--seed", SEED, *words]
    apart = ["unshare", "-Urmn"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode == 0:
        command = apart + command
    with (folder / "rounds.jsonl").open("wb") as out, (folder / "rounds.err").open("wb") as err:
        subprocess.run(command, stdout=out, stderr=err, cwd=Path(__file__).parents[2], check=False)
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def table(made: list[Document], count: int, title: str, place: str) -> str:
    """The result page: one line a kind of fault, and every problem."""
    by_fault: dict[str, list[Document]] = defaultdict(list)
    for one in made:
        by_fault[one["fault"]].append(one)
    bad = [one for one in made if one["problems"]]
    left_out = (
        "" if "disk full" in by_fault else "\nNamespaces are not allowed here: no full disk.\n"
    )
    text = HEAD.format(
        title=title,
        good=sum(one["number"] > 0 for one in made) - len(bad),  # 0 is the undisturbed run
        rounds=count,
        runs=sum(one["is_complete"] for one in made),
        seed=SEED,
        place=place,
        note=left_out,
    )
    for fault, found in sorted(by_fault.items()):
        waits = [one["resumed_s"] for one in found]
        problems = sum(bool(one["problems"]) for one in found)
        text += f"| {fault} | {len(found)} | {statistics.median(waits):.1f} s "
        text += f"| {max(waits):.1f} s | {problems} |\n"
    return text + "".join(f"\nround {one['number']}: {one['problems']}\n" for one in bad)


def test_nothing_is_lost_on_the_simulated_host(tmp_path: Path) -> None:
    count = int(os.environ.get("KVCTL_ROUNDS", "500"))
    made = rounds_of(tmp_path, count)
    place = "kvctld at 4 times, a simulated server at 80 times the host's clock"
    (RESULTS / "chaos.md").write_text(table(made, count, "chaos on the simulated host", place))
    assert len(made) == count and not any(one["problems"] for one in made)


def test_nothing_is_lost_on_a_real_engine(installed_engine: None, tmp_path: Path) -> None:
    count = int(os.environ.get("KVCTL_ROUNDS", "25"))
    made = rounds_of(tmp_path, count, "--engine")
    place = "SGLang 0.5.23 on the CPU, temperature 0 in float32"
    (RESULTS / "chaos-engine.md").write_text(table(made, count, "chaos on a real engine", place))
    assert len(made) == count + 1 and not any(one["problems"] for one in made)
