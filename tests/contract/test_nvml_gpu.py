"""A real GPU: its figures beside nvidia-smi's, and 40 GB of an orphan found, killed, proven clean.

The check runs against a recording from one H200 everywhere, and live with `-m gpu`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
RECORDING = TESTS / "data" / "nvml" / "h200-orphan-40gb.json"


def check(seen: dict[str, Any]) -> None:
    """Compare with nvidia-smi, which rounds MiB up."""
    for moment in ("idle", "orphan"):
        for mine, theirs in zip(seen[moment]["kvctl"], seen[moment]["smi"], strict=True):
            uuid, name, used, total, reserved, temp, limit = theirs
            assert (mine["uuid"], mine["name"]) == (uuid, name)
            assert int(used) - mine["used"] in (0, 1)
            assert int(reserved) - mine["reserved"] in (0, 1)
            assert mine["total"] == int(total)
            assert abs(mine["temp"] - int(temp)) <= 1
            assert mine["limit"] == float(limit)
    pid, held = seen["holder"]
    assert held == "held" and [pid] == [app[0] for app in seen["orphan"]["apps"]]
    assert "other sglang" in seen["living"][0]
    assert "leftover" in seen["orphan"]["held"][0]
    assert "parent gone" in seen["orphan"]["held"][0]
    assert not seen["orphan"]["me_listed"], "kvctl itself uses GPU memory"
    assert seen["is_clean"] and "TERM ignored, gone" in seen["ended"][0]


def test_the_recorded_orphan_on_an_h200_was_found_killed_and_proven_clean() -> None:
    check(json.loads(RECORDING.read_text()))


@pytest.mark.gpu
def test_an_orphan_on_this_gpu_is_found_killed_and_proven_clean() -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "nvml" / "real_gpu.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout))
