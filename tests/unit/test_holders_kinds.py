from collections.abc import Iterable
from dataclasses import replace

import pytest
from tests.nvml.cases import device, process_facts

from kvctl.core.domain.gpus.devices import (
    DeviceProcess,
    GpuReading,
    GpuView,
    Holder,
    HolderKind,
    ProcessFacts,
    ProcessIdentity,
)
from kvctl.core.domain.gpus.holders import HostFacts, classify
from kvctl.core.domain.gpus.kinship import is_engine, is_engine_main, rank_of
from kvctl.core.domain.gpus.membership import KnownServer, LaunchState, Me, judge
from kvctl.core.domain.gpus.supervisors import Owner

ME = Me(1000, "op", 4)
SERVER = KnownServer("main", 100, 100, 100)
MAIN = process_facts(100, "/opt/sglang/bin/python -m sglang.launch_server --tp 8")
RANK = process_facts(104, "sglang::scheduler_TP4", parent_pid=100, session=100)
TMUX = process_facts(20, "tmux new -s work python -m sglang.launch_server")


def kind_of(
    one: ProcessFacts, others: Iterable[ProcessFacts] = (), *known: KnownServer
) -> HolderKind:
    facts = {p.identity.pid: p for p in (*others, one)}
    return judge(one, facts, known, ME).kind


def why(one: ProcessFacts, others: Iterable[ProcessFacts] = (), *known: KnownServer) -> str:
    facts = {p.identity.pid: p for p in (*others, one)}
    return judge(one, facts, known, ME).evidence


def view_of(
    pid: int, host: HostFacts, me: Me = ME, known: tuple[KnownServer, ...] = (), minor: int = 0
) -> GpuView:
    held = replace(device(minor), processes=(DeviceProcess(pid, 1 << 30),))
    return classify(GpuReading(1.0, (held,)), host, known, me)


def one_holder(view: GpuView) -> Holder:
    (holder,) = view.holders
    return holder


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("sglang::scheduler_TP4", "TP4"),
        ("sglang::scheduler_DP0_TP4", "DP0 TP4"),
        ("sglang::scheduler_DP1_PP0_TP3_EP3", "DP1 PP0 TP3 EP3"),
        ("sglang::scheduler", "TP0"),
        ("sglang::detokenizer", None),
        ("python train.py", None),
    ],
)
def test_the_rank_is_read_from_the_title(title: str, rank: str | None) -> None:
    assert rank_of(title) == rank


@pytest.mark.parametrize(
    "title",
    [
        "python3.12 -m sglang.launch_server --model-path x",
        "/opt/venv/bin/python /opt/venv/bin/sglang serve --model-path x",
        "sglang::http_server/tokenizer_manager",
    ],
)
def test_a_front_process_is_recognised(title: str) -> None:
    assert is_engine_main(title)


@pytest.mark.parametrize(
    "title",
    [
        "tmux new -s x python -m sglang.launch_server",
        "bash -c python -m sglang.launch_server",
        "vim sglang.launch_server.py",
        "tail -f sglang::scheduler.log",
        "grep sglang serve",
    ],
)
def test_a_program_that_only_mentions_sglang_is_not_taken_for_it(title: str) -> None:
    assert not is_engine(title)


def test_a_scheduler_below_its_living_server_is_a_rank() -> None:
    assert kind_of(RANK, [MAIN], SERVER) is HolderKind.RANK


def test_a_scheduler_whose_server_is_gone_is_a_leftover() -> None:
    orphan = replace(RANK, parent_pid=1)
    assert kind_of(orphan, [], SERVER) is HolderKind.LEFTOVER
    assert why(orphan, [], SERVER).startswith("ours, parent gone (now 1)")


def test_a_server_that_is_a_zombie_counts_as_gone() -> None:
    assert kind_of(RANK, [replace(MAIN, state="Z")], SERVER) is HolderKind.LEFTOVER


def test_another_process_with_the_servers_pid_does_not_keep_its_ranks_alive() -> None:
    stranger = process_facts(100, "bash", start=900)
    orphan = replace(RANK, parent_pid=1)
    tree = replace(SERVER, tree=(orphan.identity,))
    assert kind_of(orphan, [stranger], tree) is HolderKind.LEFTOVER


def test_a_record_that_says_ended_makes_what_remains_a_leftover() -> None:
    ended = replace(SERVER, state=LaunchState.ENDED)
    assert kind_of(RANK, [MAIN], ended) is HolderKind.LEFTOVER


def test_a_scheduler_reparented_under_a_living_server_is_a_leftover() -> None:
    orphan = replace(RANK, parent_pid=1)
    assert kind_of(orphan, [MAIN], SERVER) is HolderKind.LEFTOVER


def test_an_untitled_child_of_a_starting_server_is_launching() -> None:
    child = replace(RANK, title="python -c from multiprocessing.spawn import spawn_main")
    starting = replace(SERVER, state=LaunchState.STARTING)
    assert kind_of(child, [MAIN], starting) is HolderKind.LAUNCHING


def test_an_untitled_orphan_in_the_session_of_a_launch_is_a_leftover() -> None:
    child = replace(RANK, title="python -c from multiprocessing.spawn import x", parent_pid=1)
    assert kind_of(child, [], SERVER) is HolderKind.LEFTOVER


def test_an_untitled_orphan_of_no_launch_is_not_called_ours() -> None:
    child = process_facts(300, "python -c from multiprocessing.spawn import spawn_main")
    assert kind_of(child) is HolderKind.FOREIGN
    assert "not certain" in why(child)


def test_a_launch_mark_finds_an_untitled_orphan_in_a_session_of_its_own() -> None:
    child = process_facts(
        300, "python -c from multiprocessing.spawn import x", launch_mark="launch-7"
    )
    marked = replace(SERVER, mark="launch-7")
    assert kind_of(child, [], marked) is HolderKind.LEFTOVER


def test_a_container_that_is_recorded_makes_its_processes_ours() -> None:
    inside = process_facts(
        300, "sglang::scheduler_TP0", uid=0, user="root", cgroup="/docker/3f2a9c0d1e4bff"
    )
    client = process_facts(100, "docker run sglang")
    recorded = replace(SERVER, container="3f2a9c0d1e4b")
    assert kind_of(replace(inside, parent_pid=299), [client], recorded) is HolderKind.RANK
    assert kind_of(inside, [], recorded) is HolderKind.LEFTOVER
    assert kind_of(inside, [client], SERVER) is HolderKind.FOREIGN


def test_a_session_shared_with_a_shell_makes_nothing_ours() -> None:
    adopted = KnownServer("main", 100, 100, 50)
    neighbour = process_facts(120, "python train.py", session=50, parent_pid=50)
    assert kind_of(neighbour, [MAIN], adopted) is HolderKind.FOREIGN


def test_a_session_number_taken_over_by_another_leader_makes_nothing_ours() -> None:
    leader = process_facts(100, "bash", start=900)
    child = process_facts(950, "python train.py", session=100, parent_pid=100)
    assert kind_of(child, [leader], SERVER) is HolderKind.FOREIGN


def test_a_process_older_than_the_launch_is_not_in_its_session() -> None:
    old = process_facts(90, "python train.py", session=100, parent_pid=1)
    assert kind_of(old, [], SERVER) is HolderKind.FOREIGN


def test_an_unmanaged_server_started_with_nohup_is_not_a_leftover() -> None:
    assert kind_of(MAIN) is HolderKind.OTHER_SGLANG
    assert kind_of(RANK, [MAIN]) is HolderKind.OTHER_SGLANG


def test_a_scheduler_of_an_offline_engine_in_a_living_script_is_not_a_leftover() -> None:
    script = process_facts(100, "python generate.py")
    assert kind_of(RANK, [script]) is HolderKind.OTHER_SGLANG
    assert "100 python lives" in why(RANK, [script])


@pytest.mark.parametrize("reaper", ["/usr/lib/systemd/systemd --user", "tini -- run", "-bash"])
def test_a_scheduler_adopted_by_a_reaper_is_a_leftover(reaper: str) -> None:
    assert kind_of(RANK, [process_facts(100, reaper, session=100)]) is HolderKind.LEFTOVER


def test_a_scheduler_whose_parent_sits_in_another_session_was_adopted() -> None:
    subreaper = process_facts(80, "my-subreaper")
    orphan = replace(RANK, parent_pid=80)
    assert kind_of(orphan, [subreaper]) is HolderKind.LEFTOVER


def test_python_as_process_one_of_a_container_is_a_living_parent() -> None:
    main = process_facts(1, "python -m sglang.launch_server", parent_pid=0)
    rank = replace(RANK, parent_pid=1, session=1)
    assert kind_of(rank, [main]) is HolderKind.OTHER_SGLANG


def test_a_scheduler_below_an_orphaned_data_parallel_controller_is_a_leftover() -> None:
    middle = process_facts(102, "sglang::data_parallel_controller", session=100)
    rank = replace(RANK, parent_pid=102, title="sglang::scheduler_DP1_TP0")
    assert kind_of(rank, [middle]) is HolderKind.LEFTOVER
    assert "of 102 sglang::data_parallel_controller above it" in why(rank, [middle])
    assert kind_of(rank, [MAIN, replace(middle, parent_pid=100)]) is HolderKind.OTHER_SGLANG


def test_a_zombie_is_exiting_and_names_the_parent_that_must_collect_it() -> None:
    zombie = replace(RANK, state="Z")
    assert kind_of(zombie, [MAIN], SERVER) is HolderKind.EXITING
    assert "its parent 100" in why(zombie, [MAIN], SERVER)


def test_a_rank_that_waits_for_a_disk_stays_a_rank() -> None:
    assert kind_of(replace(RANK, state="D"), [MAIN], SERVER) is HolderKind.RANK


def test_a_process_with_a_pending_kill_is_exiting() -> None:
    dying = replace(RANK, state="D", is_kill_pending=True)
    assert kind_of(dying, [MAIN], SERVER) is HolderKind.EXITING


def test_the_newest_record_claims_a_process_that_two_records_could() -> None:
    old = KnownServer("old", 50, 50, 50, tree=(RANK.identity,))
    facts = {p.identity.pid: p for p in (MAIN, RANK)}
    assert judge(RANK, facts, [old, SERVER], ME).server == "main"


def test_parents_that_form_a_ring_end_the_search() -> None:
    one = process_facts(300, "sglang::scheduler_TP0", parent_pid=301, start=5)
    two = process_facts(301, "sglang::scheduler_TP1", parent_pid=300, start=5)
    assert kind_of(one, [two]) is HolderKind.OTHER_SGLANG


def test_a_device_file_alone_makes_a_holder_that_the_driver_does_not_list() -> None:
    host = HostFacts({104: RANK, 100: MAIN}, {104: (0, 3), 4: (0,)})
    reading = GpuReading(1.0, (device(0), device(1), device(3)))
    view = classify(reading, host, [SERVER], ME)
    assert [(h.gpu_index, h.pid) for h in view.holders] == [(0, 104), (3, 104)]
    assert not view.holders[0].is_driver_listed
    assert view.holders[0].evidence.startswith("has /dev/nvidia0 open")


def test_in_a_container_an_open_device_file_makes_a_pid_certain() -> None:
    me = replace(ME, is_container=True)
    trainer = process_facts(300, "python train.py")
    doubtful = one_holder(view_of(300, HostFacts({300: trainer}), me))
    certain = one_holder(view_of(300, HostFacts({300: trainer}, {300: (0,)}), me))
    assert (doubtful.kind, certain.kind) == (HolderKind.INVISIBLE, HolderKind.FOREIGN)


def test_a_hidden_pid_is_told_from_one_that_is_gone() -> None:
    hidden = one_holder(view_of(300, HostFacts(hidden=frozenset({300}))))
    gone = one_holder(view_of(300, HostFacts()))
    assert "may not be looked at" in hidden.evidence
    assert "not visible here" in gone.evidence
    assert hidden.start_ticks is None and gone.start_ticks is None


def test_what_merely_started_our_launch_is_not_its_owner() -> None:
    owners = {104: Owner("started by 20 bash run.sh", None)}
    host = HostFacts({104: RANK, 100: MAIN}, owners=owners)
    assert one_holder(view_of(104, host, known=(SERVER,))).owner is None
    assert one_holder(view_of(104, host)).owner == "started by 20 bash run.sh"


def test_an_unknown_identity_in_the_tree_does_not_match_by_pid_alone() -> None:
    server = replace(SERVER, tree=(ProcessIdentity(300, 1),))
    assert kind_of(process_facts(300, "python train.py"), [], server) is HolderKind.FOREIGN


def test_who_had_the_device_open_at_the_last_scan_and_has_ended_is_no_holder() -> None:
    reading = GpuReading(1.0, (device(0),))
    for hidden, count in ((frozenset[int](), 0), (frozenset({77}), 1)):
        host = HostFacts({}, {77: (0,)}, hidden)
        assert len(classify(reading, host, (), Me(0, "root", 4)).holders) == count
