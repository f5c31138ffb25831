"""`kvctl gpus --json`: identity, owner, and the proof of each GPU with its time and basis."""

from dataclasses import replace

from tests.nvml.cases import device, process_facts

from kvctl.core.controller.servers.records import found_record, is_of_this_boot, known_server
from kvctl.core.controller.state import ServerRecord
from kvctl.core.documents.gpus import gpus_document
from kvctl.core.domain.gpus.cleanness import proven
from kvctl.core.domain.gpus.devices import (
    DeviceProcess,
    GpuReading,
    GpuView,
    ProcessIdentity,
    XidError,
    short_title,
)
from kvctl.core.domain.gpus.holders import HostFacts, classify
from kvctl.core.domain.gpus.membership import LaunchState, Me
from kvctl.core.domain.gpus.supervisors import find_owner
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.servers.processes.discover import FoundServer

BOX = "3f2a9c0d1e4b" + "0" * 52
ME = Me(1000, "op", 4)


def view() -> GpuView:
    held = replace(
        device(0, 9e9),
        processes=(DeviceProcess(50, 9_000_000_000),),
        xids=(XidError(79, "the GPU has fallen off the bus", 8.0),),
        xid_problem=None,
        virtualisation="vGPU",
    )
    rank = process_facts(
        50,
        "sglang::scheduler_TP0",
        session=40,
        group=41,
        cgroup=f"/system.slice/docker-{BOX}.scope",
    )
    facts = {50: rank}
    owner = find_owner(rank, facts)
    assert owner is not None
    reading = GpuReading(10.0, (held, device(1, 4e6)))
    return classify(reading, HostFacts(facts, owners={50: owner}), (), ME)


def test_a_process_is_told_with_all_that_identifies_it_and_its_owner() -> None:
    snapshot = Snapshot(at=12.0, wall=0.0, host="h", version="0", gpus=view())
    row = gpus_document(snapshot)["devices"][0]["processes"][0]
    assert (row["pid"], row["start_ticks"], row["group"], row["session"]) == (50, 50, 41, 40)
    assert row["container"] == "3f2a9c0d1e4b"
    assert row["owner_restarts"] is True
    assert row["owner_command"] == "docker stop 3f2a9c0d1e4b"
    assert "would start it again" in row["no_signal"]


def test_each_gpu_is_told_clean_or_not_with_time_basis_and_who_holds_it() -> None:
    first = proven(view(), GpuView(), {})
    later = proven(replace(first, at=11.0), first, {})
    snapshot = Snapshot(at=12.0, wall=0.0, host="h", version="0", gpus=later)
    held, clean = (d["clean"] for d in gpus_document(snapshot)["devices"])
    assert held["is_clean"] is False and "held by 50" in held["held_by"][0]
    assert held["clean_for_s"] is None
    assert (clean["is_clean"], clean["age_s"], clean["clean_for_s"]) == (True, 1.0, 2.0)
    assert "idle level assumed" in clean["basis"] and clean["used_bytes"] == 4_000_000


def test_errors_and_virtualisation_of_a_device_are_told() -> None:
    document = gpus_document(Snapshot(at=12.0, wall=0.0, host="h", version="0", gpus=view()))
    first, second = document["devices"]
    assert first["xids"] == [{"code": 79, "text": "the GPU has fallen off the bus", "age_s": 4.0}]
    assert (first["xid_problem"], first["virtualisation"]) == (None, "vGPU")
    assert (second["xids"], second["xid_problem"]) == ([], "not read")


def found(container: str | None) -> FoundServer:
    return FoundServer(
        ProcessIdentity(9, 9), 9, "http://127.0.0.1:1", None, (), None, "op", 1000, None, False,
        container,
    )  # fmt: skip


def test_the_container_of_a_found_server_ties_its_processes_unless_it_is_kvctlds_own() -> None:
    record = found_record(found("3f2a9c0d1e4b"), "port-1", own_container=None)
    known = known_server(record, LaunchState.RUNNING)
    assert known is not None and (known.container, known.is_found) == ("3f2a9c0d1e4b", True)
    own = found_record(found("3f2a9c0d1e4b"), "port-1", own_container="3f2a9c0d1e4b")
    assert own.container is None


def test_a_launch_from_before_the_host_booted_claims_no_process() -> None:
    record = ServerRecord("main", "http://127.0.0.1:1", True, launched_wall=1000.0)
    assert is_of_this_boot(record, 900.0) and is_of_this_boot(record, 1050.0)
    assert not is_of_this_boot(record, 2000.0)


def test_a_long_title_is_quoted_with_a_mark_where_it_was_cut() -> None:
    title = "/srv/venv/bin/python3 -m sglang.launch_server --model-path /srv/models/kimi"
    assert len(short_title(title)) == 60 and short_title(title).endswith("…")
    assert short_title("sglang::scheduler_TP4") == "sglang::scheduler_TP4"
