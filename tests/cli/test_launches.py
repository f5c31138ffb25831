"""`kvctl launches`: the ledger as the mission's table, and one launch in full, without kvctld."""

import json
from dataclasses import replace

import pytest
from tests.cli.conftest import Kvctl
from tests.fakes.plans import LAUNCH, MEASURED, point

from kvctl.core.controller.history import History
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.domain.capacity.prediction import Interval
from kvctl.core.servers.ledger import Ledger

FULL = replace(
    MEASURED,
    id="server-2",
    server="main",
    preset="hicache-bf16",
    argv=("python", "-m", "sglang.launch_server", "--api-key", "***"),
    env=(("NCCL_MIN_NCHANNELS", "8"),),
    url="http://127.0.0.1:30000",
    log_path="/logs/server-2.log",
    pid=43310,
    pool_tokens=159_277,
    free_gpu_memory_gb=5.47,
    max_running=2048,
    flags=(
        ("tp-size", 8),
        ("mem-fraction-static", 0.88),
        ("kv-cache-dtype", "bf16"),
        ("enable-hierarchical-cache", True),
        ("hicache-size", 48),
    ),
    stages=(("weights", 370.5), ("graphs", 110.0)),
    gpus=(("0", 97_000_000_000), ("1", 96_000_000_000)),
    predicted=Interval(155e3, 159_900, 164e3),
    predicted_by="baseline (server-1)",
    ended_wall=5000.0,
    exit_code=-15,
    cause="stopped",
    points=(
        replace(
            point("B2", 34.5, 606, 600, 1260),
            launch="server-2",
            completed=84,
            completed_per_s=0.0667,
        ),
        replace(point("B2", 48, 989, 980, 40), steady=False, began_wall=9.0),
    ),
)


@pytest.fixture
def ledger(paths: DaemonPaths) -> Ledger:
    made = Ledger(paths.state / "launches.jsonl")
    made.begin(LAUNCH)
    made.begin(FULL)
    return made


def test_the_missions_table_is_made_by_the_tool(kvctl: Kvctl, ledger: Ledger) -> None:
    lines = kvctl("launches").out.splitlines()
    row = next(line for line in lines if "34" in line and "B2" in line)
    words = [" ".join(cell.split()) for cell in row.split("  ") if cell.strip()]
    assert words == [
        "hicache-bf16", "bf16", "0.88", "48 GB a rank", "159K", "B2", "34 / 8", "0.93", "606",
        "600", "84, 0.067/s", "21 m 00 s", "steady",
    ]  # fmt: skip
    assert not any("989" in line for line in lines)  # a burst is not quoted beside a steady window


def test_predicted_stands_beside_measured(kvctl: Kvctl, ledger: Ledger) -> None:
    row = next(line for line in kvctl("launches").out.splitlines() if "server-2" in line)
    assert "159,900 ±2.8%, off +0.39%" in row
    assert "159,277" in row
    assert "5.47" in row
    assert "stopped, exit -15" in row


def test_a_launch_named_by_its_id_is_told_in_full(kvctl: Kvctl, ledger: Ledger) -> None:
    out = kvctl("launches", "server-2").out
    for told in (
        "--api-key '***'",
        "NCCL_MIN_NCHANNELS=8",
        "weights 370.5 s, graphs 110.0 s",
        "by baseline (server-1)",
        "159,277 tokens, max running 2,048",
        "5.47 GB a GPU after graphs",
        "GPU 0 90.3 GiB, GPU 1 89.4 GiB",
        "/logs/server-2.log",
        "989",
    ):
        assert told in out, told


def test_a_preset_names_its_launches(kvctl: Kvctl, ledger: Ledger) -> None:
    out = kvctl("launches", "baseline").out
    assert "server-1" in out
    assert "server-2" not in out


def test_the_document_has_everything_and_what_is_unknown_is_null(
    kvctl: Kvctl, ledger: Ledger
) -> None:
    first, second = json.loads(kvctl("launches", "--json").out)["launches"]
    assert first["predicted_tokens"] is None
    assert first["prediction_error"] is None
    assert second["predicted_tokens"]["expected"] == 159_900
    assert second["flags"]["mem-fraction-static"] == 0.88
    assert second["stages_s"] == {"weights": 370.5, "graphs": 110.0}
    assert len(second["operating_points"]) == 2
    assert [p["window_s"] for p in second["quoted_points"]] == [1260]


def test_an_unknown_name_is_one_line_and_exit_2(kvctl: Kvctl, ledger: Ledger) -> None:
    assert "no launch and no preset 'nobody'" in kvctl("launches", "nobody").one_error(2)


def test_without_a_launch_it_says_how_to_make_one(kvctl: Kvctl) -> None:
    said = kvctl("launches")
    assert said.status == 0
    assert "kvctl server start" in said.out
    assert json.loads(kvctl("launches", "--json").out) == {"launches": []}


def test_a_damaged_ledger_costs_no_launch(kvctl: Kvctl, ledger: Ledger) -> None:
    with ledger.path.open("ab") as file:
        file.write(b'\xff{"event": "point", "id": "server-2", "point"')
    assert len(json.loads(kvctl("launches", "--json").out)["launches"]) == 2


def test_a_launch_in_full_has_what_the_history_keeps_of_it(
    kvctl: Kvctl, ledger: Ledger, paths: DaemonPaths
) -> None:
    history = History(paths.state)
    for second in range(4000):
        pool = None if second < 2000 else 0.9
        history.record(second + 100.0, {"main/pool": pool, "other/pool": 0.1, "effective": 600.0})
    history.record(6000.0, {"main/pool": 0.5})  # after its end
    history.flush()
    lines = kvctl("launches", "server-2").out.splitlines()
    rows = lines[lines.index("what the history keeps of it (two days), means") + 1 :]
    assert 6 <= len(rows) <= 12
    assert rows[0].endswith("pool –  effective 600 tok/s")
    assert rows[-1].endswith("pool 0.90  effective 600 tok/s")
