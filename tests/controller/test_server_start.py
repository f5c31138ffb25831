"""Starting a server: the checks before, the stages, and every way in which it can fail."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.fakes.generator import reply_error
from tests.fakes.gpus import GIB
from tests.fakes.launcher import OOM, READY, Boot
from tests.fakes.rig import PRESETS, URL, Rig, preset_text
from tests.fakes.sglang import FakeServer

from kvctl.core.controller.commands import (
    CancelStart,
    CheckPreset,
    RestartServer,
    StartServer,
    StopServer,
)
from kvctl.core.domain.servers.server import ServerState, StageState
from kvctl.core.servers.limits import StageLimits

DYING = Boot(dies_after=3, last_words=OOM)


def untouched(rig: Rig) -> bool:
    return not rig.launcher.started and not rig.processes.sent


# -- checking ---------------------------------------------------------------------------------


async def test_a_check_tells_every_line_and_touches_nothing(rig: Rig) -> None:
    outcome = await rig.submit(CheckPreset("small"))
    assert outcome.is_done and outcome.message == "preset small: may start"
    assert "ok: GPU memory: no process on them" in outcome.observed
    assert outcome.data["may_start"] is True and outcome.data["url"] == URL
    assert untouched(rig) and rig.shot().servers == ()


async def test_a_check_against_a_running_server_shows_what_would_change(rig: Rig) -> None:
    await rig.serving()
    outcome = await rig.submit(CheckPreset("large"))
    assert outcome.is_done, outcome
    assert {
        "flag": "mem-fraction-static",
        "now": "0.8",
        "after": "0.9",
        "kind": "flag",
    } in outcome.data["diff"]
    assert "ok: GPU memory: no process but ours" in outcome.observed


async def test_a_preset_against_a_rule_is_refused_with_the_reason(rig: Rig) -> None:
    outcome = await rig.submit(CheckPreset("fp8"))
    assert outcome.exit_status == 4
    assert any("fp8 KV degrades this model noticeably" in line for line in outcome.observed)


async def test_an_unknown_preset_is_a_usage_error_that_lists_the_known(rig: Rig) -> None:
    for command in (CheckPreset("nope"), StartServer("nope")):
        outcome = await rig.submit(command)
        assert outcome.exit_status == 2
        assert "no preset 'nope'" in outcome.message and "small" in outcome.message
    assert untouched(rig)


# -- refused before anything is touched -------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "reason"),
    [("fp8", "fp8 KV degrades"), ("elsewhere", "GPU 7 not here")],
)
async def test_a_failed_check_starts_nothing(rig: Rig, preset: str, reason: str) -> None:
    outcome = await rig.submit(StartServer(preset))
    assert outcome.exit_status == 4
    assert reason in outcome.message and "nothing was touched" in outcome.message
    assert untouched(rig) and rig.shot().servers == () and rig.shot().busy_command is None


async def test_a_gpu_that_a_leftover_holds_is_refused_with_the_way_out(rig: Rig) -> None:
    left = rig.leftover()
    outcome = await rig.submit(StartServer("small"))
    assert outcome.exit_status == 4
    assert f"leftover pid {left.facts.identity.pid}" in outcome.message
    assert "kvctl kill --leftovers" in outcome.message
    assert untouched(rig) and left.lives


async def test_no_gpu_at_all_is_refused_in_one_line(rig: Rig) -> None:
    rig.gpus.problem = "no NVIDIA driver is loaded"
    outcome = await rig.submit(StartServer("small"))
    assert outcome.exit_status == 4 and "no NVIDIA driver is loaded" in outcome.message


async def test_a_preset_that_only_watches_cannot_be_started(rig: Rig) -> None:
    rig.write_preset("far", '[launch]\nurl = "http://far:1"\nmodel-path = "x"\n')
    for command in (CheckPreset("far"), StartServer("far")):
        outcome = await rig.submit(command)
        assert outcome.exit_status == 2
        assert "only watches http://far:1" in outcome.message and "adopt" in outcome.message


async def test_a_name_that_serves_already_is_refused_with_the_command_for_it(rig: Rig) -> None:
    await rig.serving()
    outcome = await rig.submit(StartServer("large"))
    assert outcome.exit_status == 4
    assert "main runs already (idle, preset small): kvctl server restart large" in outcome.message
    assert len(rig.launcher.started) == 1


async def test_a_port_of_another_server_of_ours_is_refused(rig: Rig) -> None:
    await rig.serving()
    rig.write_preset("second", preset_text("gpus = [1]\n"))
    outcome = await rig.submit(StartServer("second", server="b"))
    assert outcome.exit_status == 4 and "belongs to the server 'main'" in outcome.message


# -- success ----------------------------------------------------------------------------------


async def test_a_start_shows_its_stages_and_ends_with_a_token_as_proof(rig: Rig) -> None:
    task = rig.begin_command(StartServer("small"))
    await rig.clock.until(lambda: bool(rig.shot().servers))
    await rig.clock.until(lambda: rig.stage("weights").state is StageState.DOING, 10)
    assert rig.shot().busy_command == "start of small"
    assert rig.server().state is ServerState.STARTING
    assert rig.stage("process").state is StageState.DONE
    assert rig.stage("first token").state is StageState.TODO
    await rig.clock.until(task.done)
    outcome = task.result()
    assert outcome.is_done, outcome
    started = rig.launcher.started[0]
    assert "serves as main after" in outcome.message
    assert "pool 100,000 tokens" in outcome.message and "7.50 GB free" in outcome.message
    assert rig.stage("first token").detail == f"a token from pid {started.launched.pid}"
    assert rig.server().state is ServerState.IDLE and rig.server().ready_after_s is not None
    assert started.server.generator.requests[0].sampling["max_new_tokens"] == 1


async def test_a_start_is_in_the_ledger_and_is_remembered(rig: Rig) -> None:
    started = await rig.serving()
    (record,) = rig.now.ledger.records()
    assert (record.preset, record.pool_tokens, record.was_ready) == ("small", 100_000, True)
    assert (record.pid, record.version) == (started.launched.pid, "0.5.23")
    (kept,) = rig.now.remembered.servers
    assert kept.ready_seen and rig.now.remembered.last_good_preset == "small"
    assert (kept.pid, started.scheduler.facts.identity.pid) == (kept.tree[0][0], kept.tree[1][0])


async def test_a_server_that_is_ready_is_not_waited_for_longer_than_it_takes(rig: Rig) -> None:
    """The count's own loop may be in a long back-off by then."""
    steps = Boot().steps
    slow = Boot(steps=(*steps[:1], (110.0, steps[1][1]), *steps[2:]))
    await rig.serving(boot=slow)
    assert rig.clock.monotonic() - 1000.0 < 112.6 + 1.5


async def test_a_second_server_starts_beside_the_first_and_has_its_own_name(rig: Rig) -> None:
    await rig.serving()
    rig.write_preset("second", preset_text("gpus = [1]\n", port=19))
    outcome = await rig.submit(StartServer("second", server="b"))
    assert outcome.is_done, outcome
    assert {s.name for s in rig.shot().servers} == {"main", "b"}
    refused = await rig.submit(StopServer())
    assert refused.exit_status == 2 and "--server: b, main" in refused.message


async def test_the_key_of_a_preset_reaches_the_engine_and_nothing_else(rig: Rig) -> None:
    rig.environment["MY_KEY"] = "sk-very-secret"
    await rig.again()
    rig.write_preset(
        "keyed", preset_text(PRESETS["small"] + '[secrets]\napi-key = { env = "MY_KEY" }\n')
    )
    outcome = await rig.submit(StartServer("keyed"))
    assert outcome.is_done, outcome
    assert rig.world.seen_keys[-1] == "sk-very-secret"
    assert "sk-very-secret" in rig.launcher.started[0].plan.argv
    rig.world.seen_keys.clear()
    await rig.again()
    assert rig.world.seen_keys[-1] == "sk-very-secret"
    for file in rig.state_folder.rglob("*"):
        assert not file.is_file() or b"very-secret" not in file.read_bytes(), file
    assert "very-secret" not in repr(rig.shot())


async def test_a_key_in_a_file_is_read_when_it_is_needed(rig: Rig) -> None:
    file = rig.folder / "key"
    file.write_text("sk-in-a-file\n")
    rig.write_preset(
        "keyed", preset_text(PRESETS["small"] + f'[secrets]\napi-key = {{ file = "{file}" }}\n')
    )
    outcome = await rig.submit(StartServer("keyed"))
    assert outcome.is_done, outcome
    assert rig.world.seen_keys[-1] == "sk-in-a-file"
    state = (rig.state_folder / "state.json").read_text()
    assert "in-a-file" not in state and str(file) in state
    file.unlink()
    await rig.again()
    assert rig.world.seen_keys[-1] is None and rig.is_running


# -- failures ---------------------------------------------------------------------------------


async def test_a_process_that_dies_while_loading_leaves_a_card_and_clean_gpus(rig: Rig) -> None:
    rig.launcher.boots = [DYING]
    outcome = await rig.submit(StartServer("small"))
    assert outcome.exit_status == 1
    server = rig.server()
    assert server.state is ServerState.FAILED
    assert server.failure is not None and "memory" in server.failure.headline
    assert server.failure.headline in outcome.message
    assert any("out of memory" in line for line in server.failure.evidence)
    assert server.failure.advice and server.failure.after_s is not None
    doing = [s for s in server.stages if s.state in (StageState.DOING, StageState.FAILED)]
    assert [s.state for s in doing] == [StageState.FAILED]
    assert any("GPUs clean" in text for text in rig.events("cleaned"))
    assert rig.processes.all_facts()[-1].title == "kvctl daemon run"
    (record,) = rig.now.ledger.records()
    assert record.exit_code == 1 and record.cause == server.failure.headline
    assert rig.shot().busy_command is None


async def test_a_process_that_dies_without_a_word_says_its_signal(rig: Rig) -> None:
    rig.launcher.boots = [Boot(dies_after=1, exit_status=-9)]
    outcome = await rig.submit(StartServer("small"))
    assert outcome.exit_status == 1
    assert "killed (SIGKILL" in outcome.message and "log names no cause" in outcome.message


async def test_a_rank_that_outlives_a_failed_start_is_killed_and_the_gpus_proven(rig: Rig) -> None:
    rig.launcher.boots = [Boot(dies_after=4, last_words=OOM, leaves_behind=True)]
    outcome = await rig.submit(StartServer("small"))
    assert outcome.exit_status == 1
    started = rig.launcher.started[0]
    assert rig.processes.signals_to(started.scheduler.facts.identity) == ["TERM", "KILL"]
    assert not started.scheduler.lives
    assert any("1 of 1 GPUs clean" in text for text in rig.events("cleaned"))


async def test_gpus_that_stay_full_after_a_failed_start_are_never_called_clean(rig: Rig) -> None:
    rig.launcher.boots = [DYING]
    rig.gpus.unexplained[0] = 9 * GIB
    outcome = await rig.submit(StartServer("small"))
    assert outcome.exit_status == 1
    assert rig.events("cleaned") == []
    (told,) = rig.events("not clean")
    assert "GPU 0 NOT clean" in told and "9,616 MiB still used" in told


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (
            lambda server: setattr(server.generator, "judge", lambda _: reply_error(500, "boom")),
            "boom",
        ),
        (lambda server: server.hang(), "no answer"),
        (lambda server: setattr(server.generator, "is_up", False), "refused"),
    ],
)
async def test_a_server_that_makes_no_token_is_no_server(
    rig: Rig, spoil: Callable[[FakeServer], None], word: str
) -> None:
    rig.launcher.boots = [Boot(ready=spoil)]
    outcome = await rig.submit(StartServer("small"), limit_s=1800)
    assert outcome.exit_status == 1
    assert "makes no token" in outcome.message and word in outcome.message
    server = rig.server()
    assert server.state is ServerState.FAILED
    assert server.failure is not None and "makes no token" in server.failure.headline
    assert rig.stage("first token").state is StageState.FAILED
    assert not rig.launcher.started[0].main.lives
    (record,) = rig.now.ledger.records()
    assert not record.was_ready and "makes no token" in (record.cause or "")


async def test_a_program_that_cannot_be_started_is_told_and_leaves_nothing(rig: Rig) -> None:
    rig.launcher.refuses = "sleep does not exist; correct [launch] command"
    outcome = await rig.submit(StartServer("small"))
    assert outcome.exit_status == 1 and "does not exist" in outcome.message
    assert rig.shot().busy_command is None
    rig.launcher.refuses = None
    assert (await rig.submit(StartServer("small"))).is_done


async def test_a_failed_server_starts_again_with_start_and_with_restart(rig: Rig) -> None:
    rig.launcher.boots = [DYING]
    await rig.submit(StartServer("small"))
    assert (await rig.submit(StartServer("small"))).is_done
    assert rig.server().failure is None
    rig.processes.end(rig.launcher.started[-1].launched.identity, status=1)
    await rig.clock.until(lambda: rig.server().state is ServerState.FAILED, 10)
    outcome = await rig.submit(RestartServer())
    assert outcome.is_done, outcome
    assert [r.cause is not None for r in rig.now.ledger.records()] == [True, True, False]


async def test_a_crash_is_told_once_with_the_first_cause(rig: Rig) -> None:
    started = await rig.serving()
    rig.world.write(started.launched.log_path, *OOM)
    rig.processes.end(started.launched.identity, status=1)
    await rig.advance(20)
    assert len(rig.events("failed")) == 1
    failure = rig.server().failure
    assert failure is not None and "memory" in failure.headline


# -- slow -----------------------------------------------------------------------------------------


def slow_weights(*gaps_s: float) -> Boot:
    """A start whose shards come this far apart."""
    shards = (f"Loading safetensors checkpoint shards: {n}% | {n}/9" for n in range(1, 9))
    loading = tuple(zip(gaps_s, shards, strict=False))
    return Boot(steps=(*Boot().steps[:2], *loading, *Boot().steps[2:]))


async def patient(rig: Rig, *, end_start: bool = False) -> None:
    rig.config = replace(rig.config, limits=StageLimits(weights_s=60.0, end_start=end_start))
    await rig.again()


async def test_a_slow_start_is_told_once_and_goes_on(rig: Rig) -> None:
    await patient(rig)
    rig.launcher.boots = [slow_weights(10.0, 200.0)]
    task = rig.begin_command(StartServer("small"))
    await rig.clock.until(lambda: bool(rig.events("late")), 100)
    await rig.advance(30)
    (told,) = rig.events("late")
    assert told.startswith("main: weights: no progress for 1 m 00 s (last line of its log ")
    assert "it may be slow and goes on" in told
    assert "1/9; no progress for 1 m 3" in rig.stage("weights").detail
    assert rig.server().state is ServerState.STARTING
    await rig.clock.until(task.done, 300)
    assert task.result().is_done and len(rig.events("late")) == 1


async def test_slow_steps_that_go_on_are_never_late(rig: Rig) -> None:
    await patient(rig)
    rig.launcher.boots = [slow_weights(50.0, 50.0, 50.0)]
    assert (await rig.submit(StartServer("small"))).is_done
    assert rig.events("late") == []


async def test_without_a_word_the_limits_are_generous(rig: Rig) -> None:
    limits = StageLimits()
    assert min(limits.process_s, limits.kv_pool_s, limits.warmup_s) >= 900
    assert min(limits.weights_s, limits.graphs_s) >= 3600 and not limits.end_start


async def test_a_late_start_ends_only_where_the_config_says_so(rig: Rig) -> None:
    await patient(rig, end_start=True)
    rig.launcher.boots = [slow_weights(10.0, 200.0)]
    outcome = await rig.submit(StartServer("small"))
    assert outcome.exit_status == 1
    assert "weights made no progress for 1 m" in outcome.message
    failure = rig.server().failure
    assert failure is not None and failure.stage == "weights"
    assert "end_start = true in config.toml" in failure.advice[0]
    assert not rig.launcher.started[0].main.lives


# -- cancelled --------------------------------------------------------------------------------


async def test_a_cancelled_start_leaves_no_process_and_says_so(rig: Rig) -> None:
    task = rig.begin_command(StartServer("small"))
    await rig.clock.until(lambda: len(rig.launcher.started) == 1)
    await rig.advance(1.5)
    outcome = await rig.submit(CancelStart())
    assert outcome.is_done and outcome.message == "cancelled: start of small"
    await rig.clock.until(task.done, 5)
    assert task.result().exit_status == 1 and "was cancelled" in task.result().message
    assert not rig.launcher.started[0].main.lives
    await rig.advance(1)
    server = rig.server()
    assert server.state is ServerState.STOPPED and server.failure is None
    assert all(s.state is not StageState.DOING for s in server.stages)
    assert rig.shot().busy_command is None
    assert (await rig.submit(StartServer("small"))).is_done


async def test_cancel_without_anything_to_cancel_is_refused(rig: Rig) -> None:
    outcome = await rig.submit(CancelStart())
    assert outcome.exit_status == 4 and "no start or restart is in progress" in outcome.message


@pytest.mark.parametrize("second", [StartServer("large"), StopServer(), RestartServer("large")])
async def test_a_second_command_while_one_is_at_work_is_refused(
    rig: Rig, second: StartServer | StopServer | RestartServer
) -> None:
    task = rig.begin_command(StartServer("small"))
    await rig.clock.until(lambda: len(rig.launcher.started) == 1)
    outcome = await rig.submit(second)
    assert outcome.exit_status == 4
    assert len(rig.launcher.started) == 1 and rig.processes.sent == []
    await rig.clock.until(task.done)
    assert task.result().is_done


async def test_a_log_that_tells_nothing_of_a_stage_skips_it(rig: Rig) -> None:
    await rig.serving(boot=Boot(steps=((1.0, READY),)))
    assert rig.stage("weights").state is StageState.SKIPPED


async def test_a_ready_line_after_a_bind_error_is_no_start(rig: Rig) -> None:
    """A real server says both: its own warm-up reached whoever has the port."""
    bind = (
        "[2026-11-29 11:36:11] ERROR:    [Errno 98] error while attempting to bind on address "
        "('127.0.0.1', 9): address already in use"
    )
    rig.launcher.boots = [Boot(steps=(*Boot().steps[:-1], (0.0, bind), (0.0, READY)))]
    outcome = await rig.submit(StartServer("small"))
    assert outcome.exit_status == 1 and "the port is already in use" in outcome.message
    assert not rig.launcher.started[0].main.lives
    failure = rig.server().failure
    assert failure is not None and any("Errno 98" in line for line in failure.evidence)


async def test_a_server_whose_log_is_silent_is_proven_by_a_token(rig: Rig) -> None:
    """Its disk is full, or its logging is another one: no ready line will come."""
    quiet = Boot(steps=((1.0, Boot().steps[0][1]),))
    rig.launcher.boots = [quiet]
    outcome = await rig.submit(StartServer("small"))
    assert outcome.is_done, outcome
    assert rig.stage("weights").state is StageState.SKIPPED
    assert rig.server().state is ServerState.IDLE
