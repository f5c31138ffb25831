"""Stopping and restarting: each step proven, each way to fail told, the run kept."""

import asyncio
from dataclasses import replace

import pytest
from tests.fakes.gpus import GIB
from tests.fakes.launcher import OOM, Boot
from tests.fakes.rig import PRESETS, Rig, preset_text
from tests.fakes.runs import answered

from kvctl.core.controller.commands import (
    AdoptServer,
    CancelStart,
    CloseRun,
    RestartServer,
    StartServer,
    StopServer,
    WaitHow,
)
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.servers.server import ServerState, StageState
from kvctl.core.ports import ProbeFailed

DYING = Boot(dies_after=3, last_words=OOM)


# -- stop -------------------------------------------------------------------------------------


async def test_a_stop_proves_each_step_and_the_gpus_clean(rig: Rig) -> None:
    started = await rig.serving()
    outcome = await rig.submit(StopServer())
    assert outcome.is_done
    assert "1 of 1 GPUs clean" in outcome.message
    assert [(s.name, s.state) for s in rig.server().stages] == [
        (name, StageState.DONE)
        for name in ("hold run", "harvest", "stop", "free GPUs", "prove clean")
    ]
    assert "gone 0.4 s after TERM" in rig.stage("stop").detail
    assert rig.server().state is ServerState.STOPPED
    assert rig.processes.sent == [(started.launched.pid, "TERM")]
    (record,) = rig.now.ledger.records()
    assert (record.cause, record.exit_code) == ("stopped", -15)
    assert rig.now.remembered.servers == [] and len(rig.now.remembered.ended) == 1


async def test_a_second_stop_proves_again_and_rewrites_no_history(rig: Rig) -> None:
    await rig.serving()
    rig.gpus.unexplained[0] = 9 * GIB
    assert (await rig.submit(StopServer())).exit_status == 1
    cause = rig.now.ledger.records()[0].cause
    rig.gpus.unexplained.clear()
    outcome = await rig.submit(StopServer())
    assert outcome.is_done and "1 of 1 GPUs clean" in outcome.message
    assert rig.now.ledger.records()[0].cause == cause
    assert len(rig.now.remembered.ended) == 1


async def test_a_stop_of_a_failed_server_ends_what_it_left_behind(rig: Rig) -> None:
    started = await rig.serving(boot=Boot(leaves_behind=True))
    rig.processes.end(started.launched.identity, status=-11)
    await rig.advance(3)
    assert rig.server().state is ServerState.FAILED
    outcome = await rig.submit(StopServer())
    assert outcome.is_done, outcome
    assert not started.scheduler.lives and "GPUs clean" in outcome.message


async def test_a_stop_shows_no_figures_afterwards(rig: Rig) -> None:
    await rig.serving()
    await rig.submit(StopServer())
    await rig.advance(30)
    server = rig.server()
    assert server.decode.running.value is None and server.decode.running.reason
    assert server.state is ServerState.STOPPED and server.failure is None


async def test_a_rank_that_ignores_term_is_killed_and_said_to_be(rig: Rig) -> None:
    started = await rig.serving(boot=Boot(leaves_behind=True))
    outcome = await rig.submit(StopServer())
    assert outcome.is_done
    assert rig.processes.signals_to(started.scheduler.facts.identity) == ["TERM", "KILL"]
    assert "left behind, all gone now" in rig.stage("free GPUs").detail
    assert "71,680 MiB held by" in rig.stage("free GPUs").detail


async def test_a_main_process_that_ignores_term_is_killed(rig: Rig) -> None:
    started = await rig.serving(boot=Boot(term_s=None))
    outcome = await rig.submit(StopServer())
    assert outcome.is_done, outcome
    assert "still runs 45 s after TERM" in rig.stage("stop").detail
    assert rig.processes.signals_to(started.launched.identity) == ["TERM", "TERM", "KILL"]
    assert not started.main.lives


async def test_a_rank_that_nothing_can_end_fails_the_stop_and_names_it(rig: Rig) -> None:
    started = await rig.serving(boot=Boot(leaves_behind=True))
    stuck = started.scheduler
    stuck.kill_s = None
    stuck.facts = replace(stuck.facts, state="D")
    outcome = await rig.submit(StopServer())
    assert outcome.exit_status == 1
    assert f"{stuck.facts.identity.pid} sglang::scheduler_TP0" in outcome.message
    assert "KILL cannot work until the kernel lets go" in outcome.message
    assert rig.stage("free GPUs").state is StageState.FAILED
    assert rig.stage("prove clean").state is StageState.TODO
    await rig.advance(3)
    holder = next(h for h in rig.shot().gpus.holders if h.pid == stuck.facts.identity.pid)
    assert holder.server == "main" and "KILL cannot work" in holder.evidence
    assert rig.shot().busy_command is None


async def test_a_gpu_that_does_not_come_clean_is_told_with_what_holds_it(rig: Rig) -> None:
    await rig.serving()
    rig.gpus.unexplained[0] = 9 * GIB
    outcome = await rig.submit(StopServer())
    assert outcome.exit_status == 1
    assert "GPU 0 NOT clean after 60.0 s" in outcome.message
    assert "by no process here" in outcome.message
    await rig.advance(2)
    assert rig.server().state is ServerState.STOPPED
    assert not rig.events("stopped") or "clean" not in rig.events("stopped")[-1]


async def test_other_programs_on_the_gpu_stay_and_do_not_spoil_the_proof(rig: Rig) -> None:
    await rig.serving()
    other = rig.processes.begin("python train.py", uid=2000, user="bob")
    rig.gpus.hold(0, other.facts.identity, GIB // 2)
    await rig.advance(3)
    outcome = await rig.submit(StopServer())
    assert outcome.is_done, outcome
    assert other.lives and rig.processes.signals_to(other.facts.identity) == []


async def test_no_server_and_an_unknown_name_are_usage_errors(rig: Rig) -> None:
    nothing = await rig.submit(StopServer())
    assert nothing.exit_status == 2 and "kvctl server start" in nothing.message
    await rig.serving()
    unknown = await rig.submit(StopServer("b"))
    assert unknown.exit_status == 2 and "there is no server b; there are: main" in unknown.message


async def test_a_stop_cannot_freeze(rig: Rig) -> None:
    started = await rig.serving()
    outcome = await rig.submit(StopServer(how=WaitHow.FREEZE))
    assert outcome.exit_status == 2 and "cannot freeze" in outcome.message
    assert started.main.lives and rig.server().state is ServerState.IDLE


async def test_requests_of_others_are_counted_and_cut_only_after_a_yes(rig: Rig) -> None:
    started = await rig.serving()
    started.server.others = 3
    for command in (StopServer(), RestartServer("large")):
        refused = await rig.submit(command)
        assert refused.exit_status == 4
        assert "3 requests on main are not this run's" in refused.message
    assert rig.processes.sent == [] and started.main.lives
    assert (await rig.submit(StopServer(cut_foreign=True))).is_done


async def test_old_counts_of_a_server_that_is_silent_are_no_requests_of_others(rig: Rig) -> None:
    started = await rig.serving()
    started.server.others = 3
    await rig.advance(3)
    started.server.failing["loads"] = ProbeFailed("timeout", "/v1/loads: no answer")
    await rig.advance(60)
    assert rig.server().state is ServerState.UNREACHABLE
    assert (await rig.submit(StopServer())).is_done


async def test_a_server_under_a_supervisor_is_refused_with_its_name(rig: Rig) -> None:
    server = rig.local(30100, cgroup="/system.slice/sglang.service")
    adopted = await rig.submit(AdoptServer("http://127.0.0.1:30100"))
    assert adopted.is_done, adopted
    for command in (StopServer(), RestartServer("small")):
        outcome = await rig.submit(command)
        assert outcome.exit_status == 4, outcome
        assert "systemd sglang.service" in outcome.message
    assert rig.processes.sent == [] and server.is_up


async def test_an_adopted_server_on_this_host_is_stopped_with_proof(rig: Rig) -> None:
    rig.local(30100)
    await rig.submit(AdoptServer("127.0.0.1:30100"))
    await rig.advance(3)
    outcome = await rig.submit(StopServer())
    assert outcome.is_done, outcome
    assert "GPUs clean" in outcome.message
    assert [facts.title for facts in rig.processes.all_facts()][2:] == []


async def test_a_server_elsewhere_is_refused_before_anything_is_held(rig: Rig) -> None:
    far = rig.remote("http://far:1")
    await rig.submit(AdoptServer("http://far:1"))
    await rig.submit_run(rig.run_file(run='server = "http://far:1"'))
    await rig.clock.until(lambda: len(far.generator.running) == 4, 10)
    outcome = await rig.submit(StopServer())
    assert outcome.exit_status == 4 and "is not on this host" in outcome.message
    await rig.advance(2)
    assert rig.run().state is RunState.RUNNING and rig.run().in_flight == 4
    assert far.calls == []


async def test_a_stop_command_is_run_and_its_failure_told(rig: Rig) -> None:
    for name, program in (("good", "true"), ("bad", "false")):
        rig.write_preset(name, preset_text(f'stop = ["{program}"]\n{PRESETS["small"]}'))
    started = await rig.serving("bad")
    outcome = await rig.submit(StopServer())
    assert outcome.exit_status == 1 and "false ended with 1" in outcome.message
    await rig.advance(2)
    assert started.main.lives and rig.server().state is ServerState.IDLE
    await rig.submit(RestartServer("good", cut_foreign=True))
    assert rig.processes.sent == []


async def test_what_prints_the_log_ends_with_the_launch(rig: Rig) -> None:
    rig.write_preset("unit", preset_text(f'log = ["journalctl", "-f"]\n{PRESETS["small"]}'))
    await rig.serving("unit")
    followers = [p for p in rig.processes.table.values() if p.facts.title == "journalctl -f"]
    assert len(followers) == 1 and followers[0].lives
    assert (await rig.submit(StopServer())).is_done
    assert not followers[0].lives


async def test_without_what_prints_the_log_the_start_goes_on(rig: Rig) -> None:
    rig.write_preset("unit", preset_text(f'log = ["missing"]\n{PRESETS["small"]}'))
    await rig.serving("unit")
    assert rig.server().state.is_ready
    assert "no log is followed: missing does not exist" in rig.event("log").text


# -- restart ----------------------------------------------------------------------------------


async def test_a_restart_that_fails_its_checks_touches_nothing(rig: Rig) -> None:
    started = await rig.serving()
    for preset in ("fp8", "elsewhere"):
        outcome = await rig.submit(RestartServer(preset))
        assert outcome.exit_status == 4 and "nothing was touched" in outcome.message
    assert rig.processes.sent == [] and started.main.lives
    assert rig.server().state is ServerState.IDLE and rig.shot().busy_command is None


async def test_a_restart_goes_through_every_stage_and_changes_the_preset(rig: Rig) -> None:
    first = await rig.serving()
    outcome = await rig.submit(RestartServer("large"))
    assert outcome.is_done and outcome.message.startswith("large at")
    server = rig.server()
    assert server.preset == "large" and not first.main.lives
    assert [s.state for s in server.stages if s.name != "graphs"] == [StageState.DONE] * 10
    assert [r.cause for r in rig.now.ledger.records()] == ["restarted", None]
    assert len({r.id for r in rig.now.ledger.records()}) == 2


async def test_a_restart_without_a_preset_takes_the_one_that_runs(rig: Rig) -> None:
    await rig.serving("large")
    assert (await rig.submit(RestartServer())).is_done
    assert [one.plan.preset for one in rig.launcher.started] == ["large", "large"]


async def test_a_found_server_needs_a_preset_to_be_restarted(rig: Rig) -> None:
    rig.local(30100)
    await rig.submit(AdoptServer("127.0.0.1:30100"))
    outcome = await rig.submit(RestartServer())
    assert outcome.exit_status == 2 and "name one" in outcome.message


async def test_a_restart_keeps_the_run_and_every_token(rig: Rig) -> None:
    path = rig.run_file(rows=12, tokens=100)
    await rig.generating(path)
    await rig.advance(3)
    task = rig.begin_command(RestartServer("large"))
    await rig.clock.until(lambda: rig.stage("harvest").state is StageState.DONE, 60)
    assert "4 partials, " in rig.stage("harvest").detail
    assert rig.run().state is RunState.HOLDING and rig.run().partials == 4
    await rig.clock.until(task.done)
    assert task.result().is_done
    await rig.clock.until(lambda: rig.run().state is RunState.FINISHED, 300)
    assert len(answered(rig.output)) == 12 and rig.run().duplicates == 0
    continued = [
        r for r in rig.launcher.started[1].server.generator.requests if len(r.input_ids or ()) > 3
    ]
    assert len(continued) == 4
    assert not any("does not say yet" in told for told in rig.events("reached"))


async def test_a_drain_waits_for_what_runs_and_cuts_nothing(rig: Rig) -> None:
    path = rig.run_file(rows=12, tokens=100)
    server = await rig.generating(path)
    outcome = await rig.submit(RestartServer("large", how=WaitHow.DRAIN))
    assert outcome.is_done
    assert rig.stage("harvest").detail == "all in flight have ended"
    assert server.generator.aborted == []


async def test_an_abandon_throws_away_and_says_how_much(rig: Rig) -> None:
    path = rig.run_file(rows=12, tokens=100)
    await rig.generating(path)
    await rig.advance(3)
    assert (await rig.submit(RestartServer("large", how=WaitHow.ABANDON))).is_done
    assert "4 start again" in rig.stage("harvest").detail
    assert "tokens thrown away" in rig.stage("harvest").detail


async def test_a_restart_that_dies_holds_the_run_and_the_way_back_works(rig: Rig) -> None:
    path = rig.run_file(rows=12)
    await rig.generating(path)
    rig.launcher.boots = [DYING]
    outcome = await rig.submit(RestartServer("large"))
    assert outcome.exit_status == 1 and "memory" in outcome.message
    await rig.advance(5)
    assert rig.server().state is ServerState.FAILED
    assert rig.run().state is RunState.HOLDING and "main is failed" in rig.run().reason
    assert rig.now.remembered.last_good_preset == "small"
    assert (await rig.submit(RestartServer("small"))).is_done
    await rig.clock.until(lambda: rig.run().state is RunState.FINISHED, 300)
    assert len(answered(rig.output)) == 12


async def test_a_restart_whose_program_is_missing_keeps_the_card_of_the_stopped(rig: Rig) -> None:
    await rig.serving()
    rig.launcher.refuses = "sleep does not exist"
    outcome = await rig.submit(RestartServer("large"))
    assert outcome.exit_status == 1 and "does not exist" in outcome.message
    assert rig.server().state is ServerState.STOPPED
    assert rig.stage("process").state is StageState.FAILED
    rig.launcher.refuses = None
    assert (await rig.submit(RestartServer("large"))).is_done


async def test_a_restart_cancelled_before_the_stop_lets_the_server_and_the_run_go_on(
    rig: Rig,
) -> None:
    path = rig.run_file(rows=40, tokens=200)
    server = await rig.generating(path)
    task = rig.begin_command(RestartServer("large", how=WaitHow.DRAIN))
    await rig.advance(2)
    assert rig.run().state is RunState.HOLDING
    assert (await rig.submit(CancelStart())).is_done
    await rig.clock.until(task.done, 5)
    assert task.result().exit_status == 1
    await rig.advance(25)
    assert rig.run().state is RunState.RUNNING and len(server.generator.running) == 4
    assert rig.server().state.is_ready and rig.processes.sent == []
    assert rig.stage("harvest").state is StageState.FAILED


async def test_a_stop_cancelled_after_the_signal_says_that_it_still_stops(rig: Rig) -> None:
    await rig.serving(boot=Boot(term_s=20.0))
    task = rig.begin_command(StopServer())
    await rig.clock.until(lambda: bool(rig.processes.sent), 10)
    await rig.submit(CancelStart())
    await rig.clock.until(task.done, 5)
    await rig.advance(2)
    assert rig.server().state is ServerState.STOPPING
    await rig.advance(30)
    assert rig.server().state is ServerState.STOPPED and rig.server().failure is None


async def test_a_start_cancelled_within_a_restart_holds_the_run(rig: Rig) -> None:
    path = rig.run_file(rows=12)
    await rig.generating(path)
    task = rig.begin_command(RestartServer("large"))
    await rig.clock.until(lambda: len(rig.launcher.started) == 2, 60)
    await rig.submit(CancelStart())
    await rig.clock.until(task.done, 5)
    await rig.advance(3)
    assert rig.run().state is RunState.HOLDING and "main is stopped" in rig.run().reason
    assert not rig.launcher.started[1].main.lives


async def test_a_cancel_while_a_preset_is_only_checked_says_that_nothing_is_touched(
    rig: Rig,
) -> None:
    await rig.serving()
    task = rig.begin_command(RestartServer("large"))
    await asyncio.sleep(0)
    outcome = await rig.now.submit(CancelStart())
    assert outcome.exit_status == 4 and "only being checked" in outcome.message
    await rig.clock.until(task.done)
    assert task.result().is_done


async def test_a_preset_at_another_address_would_lose_the_run_and_is_refused(rig: Rig) -> None:
    rig.write_preset("moved", preset_text(PRESETS["small"], port=19))
    server = await rig.generating(rig.run_file(rows=40))
    outcome = await rig.submit(RestartServer("moved"))
    assert outcome.exit_status == 4
    assert "the run sends to http://127.0.0.1:9" in outcome.message
    assert server.is_up and rig.run().state is RunState.RUNNING
    await rig.submit(CloseRun())
    assert (await rig.submit(RestartServer("moved"))).is_done


# -- several servers --------------------------------------------------------------------------


async def with_second(rig: Rig, **run: int) -> None:
    rig.write_preset("second", preset_text("gpus = [1]\n", port=19))
    await rig.serving()
    assert (await rig.submit(StartServer("second", server="b"))).is_done


async def test_another_servers_start_does_not_hold_the_run(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=40, tokens=100))
    rig.write_preset("second", preset_text("gpus = [1]\n", port=19))
    rig.launcher.boots = [replace(DYING)]
    task = rig.begin_command(StartServer("second", server="b"))
    await rig.advance(1.5)
    assert rig.run().state is RunState.RUNNING
    await rig.clock.until(task.done)
    assert task.result().exit_status == 1
    await rig.advance(3)
    assert rig.run().state is RunState.RUNNING and len(server.generator.running) == 4


@pytest.mark.parametrize("how", [WaitHow.HARVEST, WaitHow.DRAIN])
async def test_a_run_over_two_servers_goes_on_at_one_while_the_other_restarts(
    rig: Rig, how: WaitHow
) -> None:
    await with_second(rig)
    path = rig.run_file(rows=30, tokens=100, concurrency=8, run='servers = ["main", "b"]')
    await rig.submit_run(path)
    first, second = (one.server.generator for one in rig.launcher.started)
    await rig.clock.until(lambda: len(first.running) == len(second.running) == 4, 10)
    task = rig.begin_command(RestartServer("second", server="b", how=how))
    await rig.clock.until(lambda: not second.running, 60)
    assert rig.run().state is RunState.RUNNING
    await rig.advance(1)
    assert len(first.running) == 4 and not second.running
    await rig.clock.until(task.done)
    assert task.result().is_done, task.result()
    await rig.clock.until(lambda: rig.run().state is RunState.FINISHED, 400)
    assert len(answered(rig.output)) == 30
    assert rig.launcher.started[2].server.generator.requests
