"""Killing processes: the guards, what is proven afterwards, and what cannot be ended."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.gpus import GIB
from tests.fakes.processes import ME, FakeProcess
from tests.fakes.rig import PORT, Rig, rig_on

from kvctl.core.controller.commands import ClearGpus, KillProcesses
from kvctl.core.domain.gpus.devices import HolderKind, ProcessIdentity


def pid_of(process: FakeProcess) -> int:
    return process.facts.identity.pid


def foreign(rig: Rig, gpu: int = 0, user: str = "bob") -> FakeProcess:
    other = rig.processes.begin("python train.py", uid=2000, user=user)
    rig.gpus.hold(gpu, other.facts.identity, 30 * GIB)
    return other


# -- guards -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("pid", "who"), [(1, "the init of this host"), (ME, "kvctld itself")])
async def test_init_and_kvctld_itself_are_never_signalled(rig: Rig, pid: int, who: str) -> None:
    facts = rig.processes.facts(pid)
    assert facts is not None
    outcome = await rig.submit(KillProcesses((facts.identity,), "KILL", confirmed=True))
    assert outcome.exit_status == 4 and who in outcome.message
    assert rig.processes.sent == []


async def test_what_is_not_ours_needs_a_yes_that_names_it(rig: Rig) -> None:
    mine = rig.processes.begin("python train.py")
    rig.gpus.hold(0, mine.facts.identity, 30 * GIB)
    refused = await rig.submit(KillProcesses((mine.facts.identity,)))
    assert refused.exit_status == 4
    assert f"needs an explicit yes: {pid_of(mine)} python train.py (your user)" in refused.message
    assert rig.processes.sent == []
    outcome = await rig.submit(KillProcesses((mine.facts.identity,), confirmed=True))
    assert outcome.is_done and "1 process gone; 1 of 1 GPUs clean" in outcome.message


async def test_what_the_kernel_forbids_is_said_before_anything_is_sent(rig: Rig) -> None:
    theirs = foreign(rig)
    outcome = await rig.submit(KillProcesses((theirs.facts.identity,), confirmed=True))
    assert outcome.exit_status == 4
    assert "it belongs to user bob; run kvctl as them, or as root" in outcome.message
    assert rig.processes.sent == [] and theirs.lives


async def test_a_process_without_gpu_memory_needs_a_yes_too(rig: Rig) -> None:
    editor = rig.processes.begin("vim notes.txt")
    refused = await rig.submit(KillProcesses((editor.facts.identity,)))
    assert refused.exit_status == 4 and "vim notes.txt (your user, holds no GPU)" in refused.message
    assert (await rig.submit(KillProcesses((editor.facts.identity,), confirmed=True))).is_done
    assert not editor.lives


async def test_a_supervised_process_is_refused_with_the_command_to_type(rig: Rig) -> None:
    kept = rig.processes.begin("sglang::scheduler_TP0", cgroup="/system.slice/sglang.service")
    rig.gpus.hold(0, kept.facts.identity, 30 * GIB)
    outcome = await rig.submit(KillProcesses((kept.facts.identity,), confirmed=True))
    assert outcome.exit_status == 4
    assert "systemctl stop sglang.service" in outcome.message
    assert rig.processes.sent == []


async def test_a_reused_pid_gets_no_signal_and_is_named(rig: Rig) -> None:
    left = rig.leftover()
    stale = left.facts.identity
    other = rig.processes.reuse(stale, "postgres")
    outcome = await rig.submit(KillProcesses((stale,), "KILL"))
    assert outcome.is_done
    assert any("postgres (user ann) now, which got no signal" in line for line in outcome.observed)
    assert rig.processes.sent == [] and other.lives


async def test_a_process_that_has_ended_meanwhile_needs_no_yes(rig: Rig) -> None:
    left = rig.leftover()
    rig.processes.end(left.facts.identity)
    outcome = await rig.submit(KillProcesses((left.facts.identity,)))
    assert outcome.is_done
    assert any("had ended before any signal" in line for line in outcome.observed)


async def test_one_that_may_not_be_killed_keeps_the_others_from_being_killed(rig: Rig) -> None:
    left, theirs = rig.leftover(), foreign(rig, 1)
    both = (left.facts.identity, theirs.facts.identity)
    assert (await rig.submit(KillProcesses(both))).exit_status == 4
    assert rig.processes.sent == [] and left.lives


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (KillProcesses(()), "no process named"),
        (KillProcesses((ProcessIdentity(5, 5),), signal="HUP"), "unknown signal HUP"),
        (ClearGpus(gpu=7), "there is no GPU 7 here: 0, 1"),
        (ClearGpus(signal="BOGUS"), "unknown signal BOGUS"),
    ],
)
async def test_wrong_words_are_usage_errors(
    rig: Rig, command: KillProcesses | ClearGpus, word: str
) -> None:
    rig.leftover()
    outcome = await rig.submit(command)
    assert outcome.exit_status == 2 and word in outcome.message
    assert rig.processes.sent == []


# -- what becomes of it -----------------------------------------------------------------------


async def test_a_leftover_is_killed_without_asking_and_its_gpu_proven_clean(rig: Rig) -> None:
    left = rig.leftover()
    outcome = await rig.submit(KillProcesses((left.facts.identity,), "SIGTERM"))
    assert outcome.is_done and "1 of 1 GPUs clean" in outcome.message
    assert rig.events("kill") and rig.events("clean")
    await rig.advance(3)
    assert rig.shot().gpus.leftovers == ()


async def test_a_signal_that_is_ignored_is_told_and_not_escalated_unasked(rig: Rig) -> None:
    left = rig.leftover()
    left.term_s = None
    outcome = await rig.submit(KillProcesses((left.facts.identity,), wait_s=5))
    assert outcome.exit_status == 1 and "still runs 5 s after TERM" in outcome.message
    assert rig.processes.signals_to(left.facts.identity) == ["TERM"]
    assert not rig.events("clean")
    killed = await rig.submit(KillProcesses((left.facts.identity,), wait_s=5, escalate=True))
    assert killed.is_done and "TERM ignored, gone" in killed.observed[0]


async def test_a_gpu_that_stays_full_after_the_kill_is_a_failure(rig: Rig) -> None:
    left = rig.leftover()
    rig.gpus.unexplained[0] = 9 * GIB
    outcome = await rig.submit(KillProcesses((left.facts.identity,)))
    assert outcome.exit_status == 1 and "GPU 0 NOT clean" in outcome.message
    assert rig.events("not clean") and not rig.events("clean")


async def test_another_leftover_on_the_gpu_keeps_it_from_being_clean(rig: Rig) -> None:
    left, second = rig.leftover(), rig.leftover("sglang::scheduler_TP5")
    outcome = await rig.submit(KillProcesses((left.facts.identity,)))
    assert outcome.exit_status == 1
    assert f"held by {pid_of(second)} sglang::scheduler_TP5" in outcome.message


# -- clear ------------------------------------------------------------------------------------


async def test_clear_ends_every_leftover_with_term_then_kill(rig: Rig) -> None:
    meek, stubborn = rig.leftover(), rig.leftover("sglang::scheduler_TP5", gpu=1)
    stubborn.term_s = None
    outcome = await rig.submit(ClearGpus())
    assert outcome.is_done and "2 processes gone; 2 of 2 GPUs clean" in outcome.message
    assert rig.processes.signals_to(meek.facts.identity) == ["TERM"]
    assert rig.processes.signals_to(stubborn.facts.identity) == ["TERM", "KILL"]


async def test_clear_of_one_gpu_leaves_the_other_alone(rig: Rig) -> None:
    first, second = rig.leftover(), rig.leftover(gpu=1)
    outcome = await rig.submit(ClearGpus(gpu=1))
    assert outcome.is_done
    assert first.lives and not second.lives


async def test_clear_never_touches_a_server_that_serves(rig: Rig) -> None:
    started = await rig.serving()
    await rig.advance(3)
    outcome = await rig.submit(ClearGpus())
    assert outcome.is_done and "no leftover on any GPU" in outcome.message
    assert started.main.lives and rig.processes.sent == []


async def test_clear_of_every_holder_asks_before_it_ends_a_server(rig: Rig) -> None:
    started = await rig.serving()
    await rig.advance(3)
    refused = await rig.submit(ClearGpus(gpu=0, every_holder=True))
    assert refused.exit_status == 4 and "sglang::scheduler_TP0" in refused.message
    assert rig.processes.sent == []
    outcome = await rig.submit(ClearGpus(gpu=0, every_holder=True, confirmed=True))
    assert outcome.is_done and not started.scheduler.lives


async def test_an_explicit_signal_is_not_escalated(rig: Rig) -> None:
    left = rig.leftover()
    left.term_s = None
    outcome = await rig.submit(ClearGpus(signal="INT", wait_s=3))
    assert outcome.exit_status == 1
    assert rig.processes.signals_to(left.facts.identity) == ["INT"]


async def test_a_leftover_that_nothing_ends_says_what_can_help(rig: Rig) -> None:
    left = rig.leftover()
    left.term_s = left.kill_s = None
    left.facts = replace(left.facts, state="D")
    outcome = await rig.submit(ClearGpus(confirmed=True))
    assert outcome.exit_status == 1
    assert "KILL cannot work until the kernel lets go" in outcome.message
    await rig.advance(3)
    kinds = {h.kind for h in rig.shot().gpus.holders}
    assert kinds == {HolderKind.EXITING}


async def test_learnt_idle_levels_outlive_kvctld(rig: Rig) -> None:
    await rig.advance(15)
    await rig.again()
    assert rig.now.gpus.idle_bytes == {"GPU-0": 400 << 20, "GPU-1": 400 << 20}


async def test_who_came_after_the_operator_agreed_needs_a_yes_of_its_own(rig: Rig) -> None:
    seen, late = rig.processes.begin("python seen.py"), rig.processes.begin("python late.py")
    for process in (seen, late):
        rig.gpus.hold(0, process.facts.identity, 9 * GIB)
    agreed = ClearGpus(gpu=0, every_holder=True, confirmed=True, named=(seen.facts.identity,))
    outcome = await rig.submit(agreed)
    assert outcome.exit_status == 4 and "python late.py" in outcome.message
    assert rig.processes.sent == []


# -- leftovers that hold no GPU ----------------------------------------------------------------


async def test_what_a_dead_server_left_off_the_gpus_is_listed_and_cleared(rig: Rig) -> None:
    started = await rig.serving()
    mark = started.main.facts.launch_mark
    session = started.main.facts.identity.pid
    tracker = rig.processes.begin(
        "python -c from multiprocessing.resource_tracker import main",
        session=session,
        mark=mark,
    )
    editor = rig.processes.begin("vim", session=session)
    rig.processes.end(started.main.facts.identity)
    await rig.advance(15)
    (stray,) = [s for s in rig.shot().gpus.strays if s.pid == pid_of(tracker)]
    assert (stray.kind, stray.server, stray.gpu_index) == (HolderKind.LEFTOVER, "main", None)
    outcome = await rig.submit(ClearGpus())
    assert outcome.is_done, outcome
    assert not tracker.lives and editor.lives
    assert rig.shot().gpus.strays == ()


async def test_an_orphaned_engine_process_without_a_gpu_is_a_leftover(rig: Rig) -> None:
    left = rig.processes.begin("sglang::detokenizer")
    await rig.advance(15)
    assert [s.pid for s in rig.shot().gpus.strays] == [pid_of(left)]
    assert (await rig.submit(ClearGpus())).is_done and not left.lives


async def test_a_leftover_that_stays_is_told_after_clearing(rig: Rig) -> None:
    left = rig.processes.begin("sglang::detokenizer")
    left.term_s = None
    outcome = await rig.submit(ClearGpus(signal="INT", wait_s=1))
    assert outcome.exit_status == 1 and "sglang::detokenizer" in outcome.message


# -- whole launches ----------------------------------------------------------------------------


async def test_a_group_kill_ends_the_whole_launch_of_one_process(rig: Rig) -> None:
    main = rig.processes.begin("python -m sglang.launch_server --port 7")
    pid = pid_of(main)
    rank = rig.processes.begin("sglang::scheduler_TP0", parent=pid, session=pid)
    apart = rig.processes.begin("sglang::detokenizer", parent=pid)
    other = rig.processes.begin("sglang::scheduler_TP0")
    rig.gpus.hold(0, rank.facts.identity, 9 * GIB)
    kill = KillProcesses((rank.facts.identity,), group=True)
    refused = await rig.submit(kill)
    assert refused.exit_status == 4 and rig.processes.sent == []
    outcome = await rig.submit(replace(kill, confirmed=True, escalate=True))
    assert outcome.is_done, outcome
    assert not (main.lives or rank.lives or apart.lives) and other.lives


async def test_a_group_kill_takes_siblings_of_an_orphan_but_not_a_shells_other_jobs(
    rig: Rig,
) -> None:
    orphan = rig.processes.begin("sglang::scheduler_TP0", session=4_321_000)
    sibling = rig.processes.begin("sglang::scheduler_TP1", session=4_321_000)
    job = rig.processes.begin("python train.py", session=4_321_000)
    outcome = await rig.submit(KillProcesses((orphan.facts.identity,), group=True))
    assert outcome.is_done, outcome
    assert not (orphan.lives or sibling.lives) and job.lives


async def test_a_group_with_kvctld_in_it_is_refused(rig: Rig) -> None:
    mine = rig.processes.facts(ME)
    assert mine is not None
    shell = rig.processes.begin("python -m sglang.launch_server")
    rig.processes.table[ME].facts = replace(mine, parent_pid=pid_of(shell))
    outcome = await rig.submit(KillProcesses((shell.facts.identity,), group=True, confirmed=True))
    assert outcome.exit_status == 4 and "kvctld itself" in outcome.message


# -- who would start it again ------------------------------------------------------------------


async def test_a_process_of_a_unit_is_refused_also_where_it_holds_no_gpu(rig: Rig) -> None:
    kept = rig.processes.begin("python worker.py", cgroup="/system.slice/worker.service")
    outcome = await rig.submit(KillProcesses((kept.facts.identity,), confirmed=True))
    assert outcome.exit_status == 4 and "systemctl stop worker.service" in outcome.message
    assert rig.processes.sent == []


async def test_what_comes_back_is_told_with_who_starts_it_and_not_fought_again(rig: Rig) -> None:
    keeper = rig.processes.begin("python keep.py")

    def start() -> FakeProcess:
        made = rig.processes.begin("sglang::scheduler_TP0", parent=pid_of(keeper))
        rig.gpus.hold(0, made.facts.identity, 9 * GIB)
        made.at_end.append(lambda: children.append(start()))
        return made

    children: list[FakeProcess] = []
    children.append(start())
    kill = KillProcesses((children[0].facts.identity,), confirmed=True)
    outcome = await rig.submit(kill)
    assert outcome.exit_status == 1
    assert f"something starts it again (parent {pid_of(keeper)})" in outcome.message
    again = KillProcesses((children[1].facts.identity,), confirmed=True)
    refused = await rig.submit(again)
    assert refused.exit_status == 4 and f"kvctl kill {pid_of(keeper)}" in refused.message
    children[1].at_end.clear()
    both = (keeper.facts.identity, children[1].facts.identity)
    assert (await rig.submit(KillProcesses(both, confirmed=True))).is_done


# -- one proof ---------------------------------------------------------------------------------


async def test_every_reading_says_of_each_gpu_whether_it_is_clean_and_since_when(rig: Rig) -> None:
    left = rig.leftover(gpu=1)
    await rig.advance(3)
    clean, held = rig.shot().gpus.proofs
    assert clean.is_clean and clean.since is not None and "idle level" in clean.basis
    assert not held.is_clean and held.since is None and str(pid_of(left)) in held.blockers[0]
    before = rig.clock.monotonic()
    assert (await rig.submit(ClearGpus())).is_done
    await rig.advance(3)
    first, second = rig.shot().gpus.proofs
    assert first.since == clean.since
    assert second.is_clean and second.since is not None and second.since >= before


# -- containers --------------------------------------------------------------------------------


async def test_the_processes_of_a_server_in_a_container_are_told_as_its_own(tmp_path: Path) -> None:
    box = "3f2a9c0d1e4b" + "0" * 52
    inside = f"/system.slice/docker-{box}.scope"
    async with rig_on(tmp_path, finds_servers=True) as rig:
        await rig.serving()
        engine = rig.processes.begin(f"python -m sglang.launch_server --port {PORT}", cgroup=inside)
        rank = rig.processes.begin(
            "sglang::scheduler_TP0",
            parent=pid_of(engine),
            session=pid_of(engine),
            cgroup=inside,
        )
        rig.gpus.hold(1, rank.facts.identity, 9 * GIB)
        await rig.advance(25)
        (row,) = [h for h in rig.shot().gpus.holders if h.pid == pid_of(rank)]
        assert (row.kind, row.server) == (HolderKind.RANK, "main")
        assert row.evidence == "in the container of main" and row.container == box[:12]
        kill = KillProcesses((rank.facts.identity,), confirmed=True, group=True)
        outcome = await rig.submit(kill)
        assert outcome.exit_status == 4 and f"docker stop {box[:12]}" in outcome.message
        assert rank.lives and rig.processes.sent == []
