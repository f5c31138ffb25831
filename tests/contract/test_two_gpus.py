"""Two GPUs as kvctl and nvidia-smi had them, recorded on two H200 by tests/gpu/two_gpus.py."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.nvml import cases

from kvctl.core.domain.gpus.cleanness import prove
from kvctl.core.domain.gpus.devices import GpuView, Holder, HolderKind

RECORDING = Path(__file__).parents[1] / "data" / "nvml" / "h200-two-gpus.json"
MOMENTS: list[dict[str, Any]] = json.loads(RECORDING.read_text(encoding="utf-8"))
MIB = 1 << 20
POLL_S = 3.0
SERVER = {"rank": "main"}


def moments(label: str) -> list[dict[str, Any]]:
    found = [moment for moment in MOMENTS if moment["label"] == label]
    assert found, label
    return found


def holders(moment: dict[str, Any]) -> list[tuple[int, str, str | None]]:
    """GPU, kind and rank of all that hold memory, as kvctl had them."""
    return [
        (device["index"], row["kind"], row["rank"])
        for device in moment["devices"]
        for row in device["processes"]
        if row["memory_bytes"]
    ]


@pytest.mark.parametrize("label", ["tp 2", "one by UUID", "dp 2", "orphans", "restarted elsewhere"])
def test_memory_and_pids_of_each_gpu_are_nvidia_smis(label: str) -> None:
    moment = moments(label)[-1]
    for device, (index, uuid, used, processes) in zip(
        moment["devices"], moment["smi"], strict=True
    ):
        assert (device["index"], device["uuid"]) == (index, uuid)
        assert abs(device["used_mib"] - used) <= 1
        shown = {
            str(row["pid"]): row["memory_bytes"] // MIB
            for row in device["processes"]
            if row["memory_bytes"]
        }
        assert shown == processes


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("tp 2", [(0, "rank", "TP0"), (1, "rank", "TP1")]),
        ("dp 2", [(0, "rank", "DP0"), (1, "rank", "DP1")]),
        ("one by UUID", [(0, "foreign", None), (1, "rank", "TP0")]),
        ("orphans", [(0, "leftover", "TP0"), (1, "leftover", "TP1")]),
        ("restarted elsewhere", [(0, "rank", "TP0")]),
    ],
)
def test_each_holder_is_on_its_gpu_under_its_kind_and_rank(
    label: str, expected: list[tuple[int, str, str | None]]
) -> None:
    assert holders(moments(label)[-1]) == expected


@pytest.mark.parametrize(
    "label", ["a scheduler killed", "the launcher killed", "the launcher killed in start-up"]
)
def test_a_killed_process_fails_the_server_at_once_and_both_gpus_are_proven_clean(
    label: str,
) -> None:
    rows = moments(label)
    assert all(row["servers"][0]["state"] == "failed" for row in rows)
    assert rows[0]["after_s"] < 1 and rows[-1]["after_s"] < 4
    assert len(holders(rows[0])) == 2 and not holders(rows[-1])
    assert all(device["clean"]["is_clean"] for device in rows[-1]["devices"])


def test_no_gpu_is_called_clean_that_nvidia_smi_says_is_held_for_longer_than_a_poll() -> None:
    for moment in MOMENTS:
        for device, (_, _, _, processes) in zip(moment["devices"], moment["smi"], strict=True):
            if processes and device["clean"]["is_clean"]:
                assert device["clean"]["age_s"] < POLL_S


def judged(moment: dict[str, Any]) -> dict[int, bool]:
    """Whether each GPU of a recorded moment is clean by the rule of today."""
    devices = tuple(
        replace(cases.device(row["index"], used=row["used_mib"] * MIB), uuid=row["uuid"])
        for row in moment["devices"]
    )
    rows = [(row, process) for row in moment["devices"] for process in row["processes"]]
    holders = tuple(
        Holder(
            **{"gpu_uuid": row["uuid"], "gpu_index": row["index"], "pid": process["pid"]},
            **{"start_ticks": process["pid"], "memory_bytes": process["memory_bytes"]},
            **{"kind": HolderKind(process["kind"]), "evidence": process["evidence"]},
            **{"title": process["title"], "user": "op", "parent_pid": 1, "owner": None},
            **{"server": SERVER.get(process["kind"]), "rank": process["rank"], "is_mine": True},
            is_driver_listed=process["driver_listed"],
        )
        for row, process in rows
    )
    view = GpuView(devices, holders, at=1.0)
    return {d.index: prove(view, d.uuid, 0.0, {}).is_clean for d in devices}


def test_a_server_that_only_opened_the_device_file_of_a_free_gpu_does_not_hold_it() -> None:
    assert judged(moments("restarted elsewhere")[-1]) == {0: False, 1: True}
    assert judged(moments("tp 2")[-1]) == {0: False, 1: False}
    assert judged(moments("orphans")[-1]) == {0: False, 1: False}


def test_a_server_of_which_the_driver_lists_nothing_yet_may_hold_each_gpu_it_opened() -> None:
    moment = json.loads(json.dumps(moments("restarted elsewhere")[-1]))
    for row in moment["devices"]:
        for held in row["processes"]:
            held |= {"driver_listed": False, "memory_bytes": None}
    assert judged(moment) == {0: False, 1: False}
