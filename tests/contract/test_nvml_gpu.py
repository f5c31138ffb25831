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
CLI_RECORDING = TESTS / "data" / "nvml" / "h200-orphan-40gb-cli.json"


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


def check_figures(moment: dict[str, Any], watts: float = 15) -> None:
    """Every figure beside nvidia-smi's of the same seconds; what moves, within its refresh."""
    for mine, theirs in zip(moment["kvctl"]["devices"], moment["smi"], strict=True):
        uuid, name, bus, used, total, reserved, busy, temp, power, limit, sm, mem, ecc = theirs
        assert (mine["uuid"], mine["name"], mine["bus_id"]) == (uuid, name, bus)
        assert int(used) - (mine["memory_used_bytes"] >> 20) in (0, 1)
        assert int(reserved) - (mine["memory_reserved_bytes"] >> 20) in (0, 1)
        assert mine["memory_total_bytes"] >> 20 == int(total)
        assert abs(mine["utilisation_ratio"] * 100 - int(busy)) <= 10
        assert abs(mine["temperature_c"] - int(temp)) <= 3
        assert abs(mine["power_w"] - float(power)) <= max(watts, 0.1 * float(power))
        assert mine["power_limit_w"] == float(limit)
        assert abs(mine["sm_clock_mhz"] - int(sm)) <= 0.1 * int(sm)
        assert mine["memory_clock_mhz"] == int(mem)
        assert mine["ecc_uncorrected"] == int(ecc)
        assert all(truth["age_s"] < 5 for truth in mine["figures"].values())


def check_cli(seen: dict[str, Any]) -> None:
    """The installed kvctl found, killed and proved the same, and uses no GPU memory itself."""
    for moment in (seen["idle"], *seen["busy"]):
        check_figures(moment)
    check_figures(seen["after"], watts=25)  # a second apart, while the power falls to idle
    assert any(int(moment["smi"][0][6]) > 50 for moment in seen["busy"]), "the GPU was not busy"
    pid, held = seen["holder"]
    assert held == "held" and [pid] == [app[0] for app in seen["apps"]]
    assert [(row["pid"], row["kind"]) for row in seen["living"]] == [(int(pid), "other_sglang")]
    (orphan,) = seen["orphan"]
    assert (orphan["pid"], orphan["kind"]) == (int(pid), "leftover")
    assert orphan["memory_bytes"] >= 40e9
    assert seen["kill"]["status"] == 0
    assert "TERM ignored, gone" in seen["kill"]["text"]
    assert "1 of 1 GPUs clean" in seen["kill"]["text"]
    assert seen["apps_after"] == []
    (after,) = seen["after"]["kvctl"]["devices"]
    assert after["clean"]["is_clean"]
    assert not any(row["driver_listed"] for row in after["processes"])
    assert str(seen["kvctld"]) not in [app[0] for app in seen["apps"]]


def test_the_recorded_orphan_on_an_h200_was_cleared_by_the_command_line() -> None:
    check_cli(json.loads(CLI_RECORDING.read_text()))


@pytest.mark.gpu
def test_an_orphan_on_this_gpu_is_cleared_by_the_command_line(tmp_path: Path) -> None:
    script = [sys.executable, str(TESTS / "nvml" / "real_gpu_cli.py")]
    kvctl = str(Path(sys.executable).with_name("kvctl"))
    done = subprocess.run(
        [*script, kvctl, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    check_cli(json.loads(done.stdout))


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
