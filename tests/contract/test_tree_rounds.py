"""Random server trees, killed in every way kvctl has: what ends is exactly what was meant.

One process, a whole launch, every leftover, one GPU; with mains killed before and pids reused.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def rounds(count: int, within_s: float) -> list[dict[str, Any]]:
    """Run real rounds in a pid namespace of their own, a shell as its process 1."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.getuid() != 0:
        words += ["--map-root-user", "--user"]
    inside = ["sh", "-c", '"$0" -m tests.nvml.tree_rounds "$1"; exit $?']
    command = [*words, *inside, sys.executable, str(count)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=within_s, cwd=ROOT
    )
    if done.stderr.startswith("unshare:"):
        pytest.skip("no pid namespace can be made here")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(rows: list[dict[str, Any]], count: int) -> None:
    assert len(rows) == count
    assert {row["action"] for row in rows} == {"one", "group", "leftovers", "gpu"}
    assert sum(row["signalled"] for row in rows) > count, "hardly anything was killed"
    assert sum(row["reused"] for row in rows) >= count // 20, "no pid was really reused"
    assert [row for row in rows if row["wrong"]] == [], "a process that was not meant has ended"
    assert [row for row in rows if row["left"]] == []


def test_what_ends_in_random_rounds_is_exactly_what_was_meant() -> None:
    check(rounds(40, 120), 40)


@pytest.mark.soak
def test_what_ends_in_a_thousand_random_rounds_is_exactly_what_was_meant() -> None:
    rows = rounds(1000, 900)
    for action in ("one", "group", "leftovers", "gpu"):
        own = [row for row in rows if row["action"] == action]
        counts = [sum(row[name] for row in own) for name in ("signalled", "reused", "wrong")]
        print(action, len(own), *counts, flush=True)
    check(rows, 1000)
