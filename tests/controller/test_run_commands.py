"""The run's commands: start, pause in four ways, resume, close, slots, weights, retry."""

import json
from pathlib import Path

import pytest
from tests.fakes.generator import reply_error
from tests.fakes.rig import Rig
from tests.fakes.runs import answered, answers
from tests.fakes.sglang import FakeServer

from kvctl.core.controller import commands as c
from kvctl.core.controller.commands import (
    AdoptServer,
    CloseRun,
    ForgetServer,
    NudgeThrottle,
    PauseRun,
    RestartServer,
    ResumeRun,
    RetryFailed,
    SetWeights,
    StartRun,
    StopServer,
    Throttle,
    WaitHow,
)
from kvctl.core.domain.runs.run import PartitionState, RunState
from kvctl.core.domain.servers.server import ServerState
from kvctl.core.ports import ProbeFailed

FREEZE = PauseRun(WaitHow.FREEZE)


async def finished(rig: Rig, limit_s: float = 600) -> None:
    await rig.clock.until(lambda: rig.run().state is RunState.FINISHED, limit_s)


# -- start ------------------------------------------------------------------------------------


async def test_a_run_starts_finishes_and_every_answer_is_on_disk_once(rig: Rig) -> None:
    await rig.serving()
    outcome = await rig.submit(StartRun(rig.run_file(rows=6, names=("B1", "B2"))))
    assert outcome.is_done and "12 prompts in 2 partitions" in outcome.message
    read = "6 prompts, 0 done, read as ids"
    assert outcome.observed == (f"B1: {read}", f"B2: {read}")
    await finished(rig)
    view = rig.run()
    assert (view.done, view.total, view.failed) == (12, 12, 0)
    assert [p.state for p in view.partitions] == [PartitionState.DONE] * 2
    assert len(answered(rig.output)) == 12


async def test_a_second_run_is_refused_with_the_way_out(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=40))
    for path in (rig.run_file(rows=40), rig.run_file(folder="second")):
        outcome = await rig.submit(StartRun(path))
        assert outcome.exit_status == 4
        assert "run test is open (running): `kvctl run close` ends it first" in outcome.message
    assert rig.run().state is RunState.RUNNING


async def test_a_finished_run_makes_room_for_the_next(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=2))
    await finished(rig)
    second = rig.run_file(rows=3, folder="second")
    assert (await rig.submit(StartRun(second))).is_done
    assert rig.run().total == 3
    assert rig.now.remembered.run is not None and rig.now.remembered.run.path == second


@pytest.mark.parametrize(
    ("content", "word"),
    [(None, "no such run file"), ("[run\n", "not valid TOML"), ("[run]\nname = 'x'\n", "output")],
)
async def test_a_run_file_that_cannot_be_used_leaves_the_finished_run_in_view(
    rig: Rig, content: str | None, word: str
) -> None:
    await rig.generating(rig.run_file(rows=2))
    await finished(rig)
    file = rig.folder / "bad.toml"
    if content is not None:
        file.write_text(content)
    outcome = await rig.submit(StartRun(str(file)))
    assert outcome.exit_status == 2 and word in outcome.message
    assert "\n" not in outcome.message
    assert rig.run().state is RunState.FINISHED and rig.run().done == 2


async def test_every_problem_of_the_inputs_is_told_in_one_line(rig: Rig) -> None:
    await rig.serving()
    path = rig.run_file(names=("B1", "B2"))
    for name in ("B1", "B2"):
        (Path(path).parent / f"{name}.jsonl").write_text("")
    outcome = await rig.submit(StartRun(path))
    assert outcome.exit_status == 2
    assert "B1" in outcome.message and "B2" in outcome.message and "\n" not in outcome.message
    assert rig.shot().run is None and rig.now.remembered.run is None


async def test_a_run_that_is_only_counted_cannot_be_started(rig: Rig) -> None:
    await rig.serving()
    file = rig.folder / "attached.toml"
    file.write_text('[attach]\nfile = "out/raw_responses.jsonl"\n')
    outcome = await rig.submit(StartRun(str(file)))
    assert outcome.exit_status == 2 and rig.shot().run is None


async def test_an_output_folder_that_cannot_be_made_is_told(rig: Rig) -> None:
    await rig.serving()
    path = rig.run_file()
    (Path(path).parent / "out").write_text("a file in its place")
    outcome = await rig.submit(StartRun(path))
    assert outcome.exit_status != 0 and "out" in outcome.message
    assert rig.shot().run is None


async def test_a_run_needs_a_server_that_is_known(rig: Rig) -> None:
    nothing = await rig.submit(StartRun(rig.run_file()))
    assert nothing.exit_status == 2 and "no server is known here" in nothing.message
    await rig.serving()
    named = await rig.submit(StartRun(rig.run_file(run='server = "b"', folder="b")))
    assert (
        named.exit_status == 2 and "server 'b' is not known here; there are: main" in named.message
    )


async def test_a_run_that_could_not_be_opened_leaves_no_server_in_the_list(rig: Rig) -> None:
    path = rig.run_file(run='server = "http://typo:1"')
    (Path(path).parent / "B1.jsonl").write_text("")
    assert (await rig.submit(StartRun(path))).exit_status == 2
    assert rig.shot().servers == () and rig.now.remembered.servers == []


async def test_a_run_for_a_server_that_is_not_up_yet_waits_for_it(rig: Rig) -> None:
    path = rig.run_file(rows=4, run='server = "http://localhost:9"')
    assert (await rig.submit(StartRun(path))).is_done
    await rig.advance(5)
    assert rig.run().state is RunState.HOLDING
    await rig.serving()
    await finished(rig)
    assert len(answered(rig.output)) == 4


async def test_a_server_that_a_run_names_is_watched_with_the_run(rig: Rig) -> None:
    far = rig.remote("http://far:1", others=1)
    await rig.submit_run(rig.run_file(rows=40, run='server = "http://far:1"'))
    await rig.clock.until(lambda: bool(far.generator.running), 20)
    await rig.advance(3)
    server = rig.server("port-1")
    assert server.state.is_ready and not server.is_managed
    assert server.decode.running.value == 5 and server.foreign_requests.value == 1


async def test_a_run_that_spells_the_url_otherwise_is_still_known_as_our_own(rig: Rig) -> None:
    server = await rig.generating(
        rig.run_file(rows=40, tokens=100, run='server = "http://localhost:9/"')
    )
    await rig.advance(3)
    assert rig.server().foreign_requests.value == 0
    outcome = await rig.submit(RestartServer("large"))
    assert outcome.is_done, outcome
    assert "4 partials" in rig.stage("harvest").detail
    assert server.generator.running == {}


async def test_without_a_run_every_command_of_it_is_refused(rig: Rig) -> None:
    needing: list[c.Command] = [
        PauseRun(),
        ResumeRun(),
        CloseRun(),
        Throttle(4),
        NudgeThrottle(1),
        SetWeights({"B1": 1.0}),
        RetryFailed(),
    ]
    for command in needing:
        outcome = await rig.submit(command)
        assert outcome.exit_status == 4, command
        assert "no run is open: `kvctl run start FILE` starts one" in outcome.message


# -- pause and resume -------------------------------------------------------------------------


async def test_a_drain_pause_sends_nothing_and_lets_answers_end(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=40))
    outcome = await rig.submit(PauseRun())
    assert outcome.is_done and "paused by you: nothing is sent; 4 in flight end" in outcome.message
    await rig.advance(20)
    assert (rig.run().state, rig.run().in_flight, rig.run().done) == (RunState.PAUSED, 0, 4)
    assert server.calls == [] and server.generator.aborted == []
    assert (await rig.submit(ResumeRun())).message == "sending again"
    await finished(rig)


@pytest.mark.parametrize(
    ("how", "word"),
    [(WaitHow.HARVEST, "4 partials, "), (WaitHow.ABANDON, "4 start again")],
)
async def test_a_pause_that_cuts_says_what_was_kept(rig: Rig, how: WaitHow, word: str) -> None:
    server = await rig.generating(rig.run_file(rows=8, tokens=100))
    await rig.advance(3)
    outcome = await rig.submit(PauseRun(how))
    assert outcome.is_done and word in outcome.message
    assert rig.run().in_flight == 0 and len(server.generator.aborted) == 4
    await rig.submit(ResumeRun())
    await finished(rig)
    assert len(answered(rig.output)) == 8


async def test_a_freeze_keeps_every_token_in_the_engine_and_shows_no_figure_as_live(
    rig: Rig,
) -> None:
    server = await rig.generating(rig.run_file(rows=8, tokens=100))
    await rig.advance(3)
    outcome = await rig.submit(FREEZE)
    assert outcome.is_done and "4 in flight keep their tokens" in outcome.message
    assert server.calls == ["pause retract"]
    await rig.advance(120)
    assert rig.server().state is ServerState.PAUSED
    decode = rig.server().decode
    assert decode.is_frozen and decode.generation_tokens_per_s.value is None
    assert decode.running.value == 4
    assert decode.running.age_s(rig.shot().at) == pytest.approx(120, abs=3)
    assert rig.run().in_flight == 4 and rig.run().done == 0
    resumed = await rig.submit(ResumeRun())
    assert resumed.message == "sending again; continued main"
    assert server.calls == ["pause retract", "unpause"]
    await finished(rig)
    assert len(answered(rig.output)) == 8 and server.generator.aborted == []


async def test_a_run_that_has_finished_freezes_no_engine(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=2))
    await finished(rig)
    outcome = await rig.submit(FREEZE)
    assert outcome.is_done and "has finished: there is nothing to pause" in outcome.message
    assert server.calls == [] and rig.run().state is RunState.FINISHED


async def test_an_engine_frozen_as_its_last_answers_came_goes_on(rig: Rig) -> None:
    """They were on their way when it was frozen: nobody has a reason to resume that run."""
    server = await rig.generating(rig.run_file(rows=2, tokens=100))
    assert (await rig.submit(FREEZE)).is_done
    server.failing["unpause"] = ProbeFailed("timeout", "/continue_generation: no answer")
    server.time.go()
    await finished(rig)
    await rig.advance(10)
    assert server.calls == ["pause retract"] and len(rig.events("frozen")) == 1
    server.failing.clear()
    await rig.advance(20)
    assert server.calls == ["pause retract", "unpause"]
    assert rig.events("resumed") == ["the run has finished; continued main"]
    assert rig.server().state.is_ready


async def test_a_second_freeze_changes_nothing(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=8, tokens=100))
    await rig.submit(FREEZE)
    server.failing["pause"] = ProbeFailed("timeout", "/pause_generation")
    outcome = await rig.submit(FREEZE)
    assert outcome.is_done and "frozen already" in outcome.observed[0]
    assert (await rig.submit(ResumeRun())).message == "sending again; continued main"


async def test_a_drain_after_a_freeze_lets_the_answers_end(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=40))
    await rig.submit(FREEZE)
    outcome = await rig.submit(PauseRun(WaitHow.DRAIN))
    assert outcome.is_done and "4 in flight end normally" in outcome.message
    assert server.calls == ["pause retract", "unpause"]
    await rig.advance(10)
    assert (rig.run().state, rig.run().in_flight, rig.run().done) == (RunState.PAUSED, 0, 4)


async def test_a_resume_that_sends_nothing_yet_says_why(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=40))
    await rig.submit(PauseRun())
    await rig.submit(StopServer())
    outcome = await rig.submit(ResumeRun())
    assert outcome.is_done
    assert outcome.message == "the pause is over, but nothing is sent yet: main is stopped"


async def test_a_version_without_pause_modes_only_stops_sending(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=40))
    server.failing["pause"] = ProbeFailed("unsupported", "version 0.5.2: no pause modes")
    outcome = await rig.submit(FREEZE)
    assert outcome.exit_status == 1
    assert "sending is stopped, but main was not frozen: version 0.5.2" in outcome.message
    assert rig.run().state is RunState.PAUSED and server.calls == []
    await rig.advance(10)
    assert rig.run().done == 4 and not rig.server().decode.is_frozen


async def test_a_freeze_without_an_answer_is_taken_back(rig: Rig) -> None:
    """Nobody knows whether the engine heard it: it must not stay paused and forgotten."""
    server = await rig.generating(rig.run_file(rows=40))
    server.failing["pause"] = ProbeFailed("timeout", "/pause_generation: no answer")
    assert (await rig.submit(FREEZE)).exit_status == 1
    assert server.calls == ["unpause"]
    assert rig.now.remembered.servers[0].paused_mode is None
    server.failing["unpause"] = ProbeFailed("timeout", "/continue_generation: no answer")
    assert (await rig.submit(FREEZE)).exit_status == 1
    assert rig.now.remembered.servers[0].paused_mode == "retract"
    server.failing.clear()
    assert (await rig.submit(ResumeRun())).message == "sending again; continued main"


async def test_a_server_that_is_not_watched_cannot_be_frozen(rig: Rig) -> None:
    far = rig.remote("http://far:1")
    await rig.submit_run(rig.run_file(rows=40, run='server = "http://far:1"'))
    await rig.clock.until(lambda: bool(far.generator.running), 20)
    await rig.submit(ForgetServer())
    outcome = await rig.submit(FREEZE)
    assert outcome.exit_status == 4 and "http://far:1 is not watched here" in outcome.message
    assert rig.run().state is RunState.RUNNING


async def test_an_engine_that_cannot_be_continued_keeps_the_pause(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=8))
    await rig.submit(FREEZE)
    server.failing["unpause"] = ProbeFailed("http", "/continue_generation: status 500")
    outcome = await rig.submit(ResumeRun())
    assert outcome.exit_status == 1 and "main could not be continued" in outcome.message
    assert rig.run().state is RunState.PAUSED
    del server.failing["unpause"]
    assert (await rig.submit(ResumeRun())).is_done


async def test_a_frozen_server_that_died_does_not_keep_the_run_from_resuming(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=8))
    await rig.submit(FREEZE)
    assert server.identity is not None
    rig.processes.end(server.identity, status=-9)
    await rig.advance(3)
    assert rig.server().state is ServerState.FAILED
    assert (await rig.submit(ResumeRun())).is_done
    assert (await rig.submit(RestartServer())).is_done
    await finished(rig)
    assert len(answered(rig.output)) == 8


@pytest.mark.parametrize("how", [WaitHow.HARVEST, WaitHow.DRAIN])
async def test_a_frozen_server_is_woken_before_it_is_stopped(rig: Rig, how: WaitHow) -> None:
    server = await rig.generating(rig.run_file(rows=8, tokens=60))
    await rig.advance(2)
    await rig.submit(FREEZE)
    await rig.advance(5)
    outcome = await rig.submit(StopServer(how=how))
    assert outcome.is_done, outcome
    assert server.calls[1] == "unpause"
    if how is WaitHow.HARVEST:
        assert "4 partials" in rig.stage("harvest").detail
    assert rig.now.remembered.ended[-1].paused_mode is None


async def test_closing_a_frozen_run_continues_the_engine(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=8, tokens=60))
    await rig.advance(2)
    await rig.submit(FREEZE)
    assert (await rig.submit(CloseRun())).is_done
    assert server.calls[1] == "unpause" and not server.time.is_stopped
    assert len((rig.output / "out" / "partials.jsonl").read_text().splitlines()) == 4


# -- close ------------------------------------------------------------------------------------


async def test_a_closed_run_keeps_its_partials_and_is_taken_up_by_the_next_start(rig: Rig) -> None:
    path = rig.run_file(rows=12, tokens=100)
    await rig.generating(path)
    await rig.advance(13)
    outcome = await rig.submit(CloseRun())
    assert outcome.is_done and "run test is closed" in outcome.message
    assert rig.shot().run is None and rig.now.remembered.run is None
    again = await rig.submit(StartRun(path))
    assert again.is_done and "4 of 12 done before" in again.message
    assert rig.run().partials + rig.run().in_flight >= 4
    await finished(rig)
    assert len(answered(rig.output)) == 12


async def test_other_sampling_is_refused_unless_forced(rig: Rig) -> None:
    path = rig.run_file(rows=4)
    await rig.generating(path)
    await rig.submit(CloseRun())
    rig.run_file(rows=4, tokens=60)
    outcome = await rig.submit(StartRun(path))
    assert outcome.exit_status == 4 and "begun with other settings" in outcome.message
    assert rig.shot().run is None
    assert (await rig.submit(StartRun(path, force=True))).is_done


# -- slots ------------------------------------------------------------------------------------


async def test_slots_are_set_at_once_and_nothing_is_aborted(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=60))
    outcome = await rig.submit(Throttle(9))
    assert outcome.is_done and "slots 4 → 9" in outcome.message
    await rig.advance(0.5)
    assert rig.run().in_flight == 9 and not rig.run().is_auto
    await rig.submit(Throttle(2))
    assert rig.run().in_flight == 9 and rig.run().target == 2
    await rig.advance(6)
    assert rig.run().in_flight == 2 and server.generator.aborted == []


@pytest.mark.parametrize("target", [0, -3, 10_001])
async def test_slots_out_of_range_are_a_usage_error(rig: Rig, target: int) -> None:
    await rig.generating(rig.run_file(rows=40))
    outcome = await rig.submit(Throttle(target))
    assert outcome.exit_status == 2 and "slots must be 1 to 10,000" in outcome.message
    assert rig.run().target == 4


async def test_a_nudge_adds_to_the_slots_and_stays_in_range(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=40))
    await rig.submit(NudgeThrottle(3))
    assert rig.run().target == 7
    await rig.submit(NudgeThrottle(-50))
    assert rig.run().target == 1


async def test_a_nudge_while_nothing_may_be_sent_counts_from_the_slots_not_from_none(
    rig: Rig,
) -> None:
    await rig.generating(rig.run_file(rows=40, concurrency=20))
    await rig.submit(StopServer())
    await rig.advance(2)
    assert rig.run().target == 20 and rig.run().is_held and not rig.run().in_flight
    outcome = await rig.submit(NudgeThrottle(5))
    assert "slots 20 → 25" in outcome.message


async def test_the_operators_slots_outlive_kvctld(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=60))
    await rig.submit(Throttle(7))
    await rig.again()
    await rig.advance(5)
    assert rig.run().target == 7 and not rig.run().is_auto


# -- weights and failed rows ------------------------------------------------------------------


async def test_weights_change_live_and_an_unknown_partition_is_refused(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=60, names=("B1", "B2"), run="scout = 0"))
    outcome = await rig.submit(SetWeights({"B1": 0.0, "B2": 2.0}))
    assert outcome.is_done and outcome.message == "weights B1=0, B2=2"
    await rig.advance(12)
    flying = {p.name: p.in_flight for p in rig.run().partitions}
    assert flying == {"B1": 0, "B2": 4}
    for weights in ({"B9": 1.0}, {"B1": -1.0}):
        assert (await rig.submit(SetWeights(weights))).exit_status == 4


async def test_failed_rows_are_queued_again_and_counted(rig: Rig) -> None:
    started = await rig.serving()
    generator = started.server.generator
    generator.judge = lambda request: (
        reply_error(400, "too long") if (request.input_ids or (0,))[0] == 2 else None
    )
    await rig.submit_run(rig.run_file(rows=4))
    await finished(rig)
    assert (rig.run().done, rig.run().failed) == (3, 1)
    generator.judge = lambda request: None
    outcome = await rig.submit(RetryFailed())
    assert outcome.is_done and outcome.message == "1 failed rows are queued again"
    await finished(rig)
    assert (rig.run().done, rig.run().failed) == (4, 0)
    assert (await rig.submit(RetryFailed())).message == "no row has failed"


# -- kvctld's death and leave -----------------------------------------------------------------


async def test_a_run_is_shown_and_taken_up_after_kill_9(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=30))
    await rig.advance(12)
    done = rig.run().done
    assert done
    await rig.kill()
    answers_before = answered(rig.output)
    await rig.begin()
    assert rig.run().name in ("test", "run")
    await rig.clock.until(lambda: rig.run().state is RunState.RUNNING, 30)
    assert any("run test taken up" in text for text in rig.events("run"))
    assert answered(rig.output)[: len(answers_before)] == answers_before
    await finished(rig)
    assert len(answered(rig.output)) == 30 and rig.run().duplicates == 0


async def test_a_frozen_engine_is_remembered_over_kill_9_and_resume_continues_it(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=8))
    await rig.submit(FREEZE)
    await rig.again()
    await rig.advance(10)
    assert rig.server().state is ServerState.PAUSED
    assert rig.run().state is RunState.PAUSED and rig.run().in_flight == 0
    assert server.time.is_stopped
    outcome = await rig.submit(ResumeRun())
    assert outcome.message == "sending again; continued main"
    assert not server.time.is_stopped
    await finished(rig)
    assert len(answered(rig.output)) == 8


async def test_a_leaving_kvctld_keeps_every_token_and_leaves_no_engine_frozen(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=8, tokens=60))
    await rig.advance(3)
    await rig.submit(FREEZE)
    await rig.end()
    assert not server.time.is_stopped
    await rig.begin()
    await rig.advance(3)
    assert rig.run().state is RunState.PAUSED and rig.run().partials == 4
    await rig.submit(ResumeRun())
    await finished(rig)
    assert all("segments" in a for a in answers(rig.output)[:4]) or len(answers(rig.output)) == 8


async def test_a_run_that_cannot_be_taken_up_says_why_and_can_be_closed(rig: Rig) -> None:
    path = rig.run_file(rows=8)
    await rig.generating(path)
    await rig.kill()
    rig.rewrite(path, "[run\n")
    await rig.begin()
    await rig.advance(3)
    view = rig.run()
    assert view.state is RunState.FAILED and "not valid TOML" in view.reason
    outcome = await rig.submit(CloseRun())
    assert outcome.is_done
    assert rig.shot().run is None
    await rig.again()
    await rig.advance(3)
    assert rig.shot().run is None


async def test_a_run_that_cannot_be_taken_up_can_be_started_once_it_is_mended(rig: Rig) -> None:
    path = rig.run_file(rows=8)
    await rig.generating(path)
    await rig.kill()
    text = rig.rewrite(path, "[run\n")
    await rig.begin()
    await rig.advance(3)
    rig.rewrite(path, text)
    assert (await rig.submit(StartRun(path))).is_done
    await finished(rig)
    assert len(answered(rig.output)) == 8


async def test_a_run_whose_server_is_forgotten_goes_on_by_itself(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=12))
    await rig.submit(ForgetServer())
    await finished(rig)
    assert len(answered(rig.output)) == 12


async def test_a_server_that_dies_holds_the_run_and_costs_no_row(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=12, tokens=100))
    assert server.identity is not None
    rig.processes.end(server.identity, status=-9)
    await rig.advance(5)
    assert rig.run().state is RunState.HOLDING and rig.run().in_flight == 0
    assert (await rig.submit(RestartServer())).is_done
    await finished(rig)
    assert (rig.run().done, rig.run().failed) == (12, 0)


async def test_a_run_on_an_adopted_server_elsewhere_works(rig: Rig) -> None:
    far: FakeServer = rig.remote("http://far:1")
    await rig.submit(AdoptServer("http://far:1"))
    await rig.submit_run(rig.run_file(rows=6))
    await finished(rig)
    assert len(answered(rig.output)) == 6 and far.calls == []
    manifest = json.loads((rig.output / "out" / "manifest.json").read_text())
    assert manifest["model"] == "/models/tiny"
