"""A server that served and dies: noticed at once, and brought back only where that is asked for."""

from functools import partial

import pytest
from tests.fakes.launcher import OOM, Boot, Started
from tests.fakes.rig import PRESETS, Rig, preset_text
from tests.fakes.runs import answered

from kvctl.core.controller.commands import (
    PauseRun,
    RestartServer,
    ResumeRun,
    StartServer,
    StopServer,
)
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.servers.server import ServerState
from kvctl.core.servers.config import Config
from kvctl.core.servers.ledger import Ledger
from kvctl.core.servers.limits import CrashRestart

SIGQUIT = (
    "[2026-11-29 12:00:00] Subprocess scheduler_0 (pid=12) crashed with exit code -9. "
    "Triggering SIGQUIT for cleanup..."
)
ON = Config(crash=CrashRestart(restart=True))
SEEN_WITHIN_S = 2.0


def crash(rig: Rig, started: Started, *last_words: str) -> None:
    rig.world.write(started.launched.log_path, *last_words)
    rig.processes.end(started.launched.identity, status=-9)


# -- noticed ----------------------------------------------------------------------------------


async def test_a_crash_is_seen_within_two_seconds_and_holds_the_run(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=12, tokens=100))
    await rig.advance(3.3)
    crash(rig, rig.launcher.started[0], *OOM)
    await rig.clock.until(lambda: rig.server().state is ServerState.FAILED, SEEN_WITHIN_S)
    await rig.advance(1)
    assert rig.run().state is RunState.HOLDING and "main is failed" in rig.run().reason
    failure = rig.server().failure
    assert failure is not None and "memory" in failure.headline and failure.evidence


async def test_a_crash_without_a_word_names_its_signal_until_the_log_tells_more(rig: Rig) -> None:
    started = await rig.serving()
    crash(rig, started)
    await rig.clock.until(lambda: rig.server().state is ServerState.FAILED, SEEN_WITHIN_S)
    await rig.advance(1)
    failure = rig.server().failure
    assert failure is not None and failure.headline == rig.server().state_reason
    assert "was killed (SIGKILL" in failure.headline
    assert rig.shot().verdicts[0].lever.startswith("b goes back to small")
    rig.world.write(started.launched.log_path, *OOM)  # a rank that outlived it
    await rig.advance(3)
    late = rig.server().failure
    assert late is not None and "SIGKILL" not in late.headline
    assert any("out of memory" in line for line in late.evidence)


async def test_the_end_of_a_server_that_an_earlier_kvctld_launched_shows_its_last_line(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await rig.serving()
    await rig.again()
    monkeypatch.setattr(rig.launcher, "is_child", lambda _: False)  # as after a real restart
    rig.world.write(started.launched.log_path, "the last words")
    await rig.advance(3)
    crash(rig, started)
    await rig.clock.until(lambda: rig.server().state is ServerState.FAILED, SEEN_WITHIN_S)
    await rig.advance(1)
    failure = rig.server().failure
    assert failure is not None and failure.headline == rig.server().state_reason
    assert "its log names no cause: killed, by hand or for lack of memory" in failure.headline
    assert failure.evidence == ("the last words",)


async def test_a_crash_is_in_the_ledger_with_its_moment_before_anything_is_done_about_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await rig.serving()
    died = rig.clock.wall()
    crash(rig, started)
    await rig.advance(10)
    (launch,) = Ledger(rig.state_folder / "launches.jsonl").records()
    assert launch.ended_wall == pytest.approx(died, abs=SEEN_WITHIN_S)
    assert "was killed (SIGKILL" in (launch.cause or "") and launch.exit_code == -9
    since = rig.server().state_since
    await rig.again()
    monkeypatch.setattr(rig.launcher, "is_child", lambda _: False)  # as after a real restart
    await rig.advance(10)
    server = rig.server()
    assert server.state is ServerState.FAILED
    assert server.state_since == pytest.approx(since, abs=0.5)  # not since this kvctld looked
    assert any("ended at" in text for text in rig.events("gone"))
    assert (await rig.submit(StartServer("small"))).is_done
    first, _ = Ledger(rig.state_folder / "launches.jsonl").records()
    assert (first.ended_wall, first.exit_code, first.cause) == (
        launch.ended_wall,
        launch.exit_code,
        launch.cause,
    )


@pytest.mark.parametrize("is_logged", [False, True])
async def test_a_rank_that_dies_is_a_crash_while_the_main_process_still_lives(
    rig: Rig, is_logged: bool
) -> None:
    """0.5.23 ends itself only 65 s after a scheduler has died."""
    started = await rig.serving()
    if is_logged:
        rig.world.write(started.launched.log_path, SIGQUIT)
    else:
        rig.processes.end(started.scheduler.facts.identity, status=-9)
    await rig.clock.until(lambda: rig.server().state is ServerState.FAILED, SEEN_WITHIN_S)
    assert started.main.lives and "its main process still runs" in rig.server().state_reason


@pytest.mark.parametrize("command", [StartServer("large"), RestartServer("large")])
async def test_a_dying_server_is_killed_at_once_and_replaced_with_one_command(
    rig: Rig, command: StartServer | RestartServer
) -> None:
    started = await rig.serving(boot=Boot(term_s=None))
    rig.world.write(started.launched.log_path, SIGQUIT)
    await rig.advance(3)
    before = rig.clock.monotonic()
    outcome = await rig.submit(command)
    assert outcome.is_done, outcome
    assert rig.processes.signals_to(started.launched.identity) == ["KILL"]
    assert rig.clock.monotonic() - before < 15
    assert rig.server().preset == "large" and rig.server().failure is None


async def test_what_is_left_of_a_crashed_server_goes_with_the_restart(rig: Rig) -> None:
    started = await rig.serving(boot=Boot(leaves_behind=True))
    crash(rig, started)
    await rig.advance(3)
    assert started.scheduler.lives
    assert (await rig.submit(RestartServer())).is_done
    assert not started.scheduler.lives


# -- brought back -----------------------------------------------------------------------------


async def test_nothing_is_brought_back_unasked(rig: Rig) -> None:
    crash(rig, await rig.serving())
    await rig.advance(300)
    assert len(rig.launcher.started) == 1 and rig.events("crash restart") == []


async def turn_on(rig: Rig, config: Config = ON) -> None:
    rig.config = config
    await rig.again()


async def test_a_crashed_server_comes_back_and_the_run_goes_on(rig: Rig) -> None:
    await turn_on(rig)
    await rig.generating(rig.run_file(rows=12, tokens=100))
    crash(rig, rig.launcher.started[0], *OOM)
    await rig.clock.until(lambda: bool(rig.events("crash restart")), 5)
    failure = rig.server().failure
    assert failure is not None and "memory" in failure.headline
    assert "it restarts by itself at" in failure.advice[0] and "1 of 3" in failure.advice[0]
    await rig.advance(8)
    assert len(rig.launcher.started) == 1
    await rig.clock.until(lambda: rig.run().state is RunState.FINISHED, 300)
    assert len(answered(rig.output)) == 12 and len(rig.launcher.started) == 2
    told = rig.events("crash restart")
    assert "crashed: it restarts by itself" in told[0]
    assert "is restarted with small after its crash (1)" in told[1]
    assert "after its crash: small at" in told[2]


@pytest.mark.parametrize("asked", [True, False])
async def test_a_preset_stands_above_the_config(rig: Rig, asked: bool) -> None:
    await turn_on(rig, Config(crash=CrashRestart(restart=not asked)))
    line = f"restart-after-crash = {str(asked).lower()}\n"
    rig.write_preset("own", preset_text(line + PRESETS["small"]))
    crash(rig, await rig.serving("own"))
    await rig.advance(60)
    assert len(rig.launcher.started) == (2 if asked else 1)


def has_started(rig: Rig, count: int) -> bool:
    return len(rig.launcher.started) == count


async def test_each_restart_waits_longer_and_after_the_limit_it_stays_down(rig: Rig) -> None:
    await turn_on(rig)
    await rig.serving()
    waits = []
    for number in (1, 2, 3):
        crash(rig, rig.launcher.started[-1])
        crashed_at = rig.clock.monotonic()
        await rig.clock.until(partial(has_started, rig, number + 1), 120)
        waits.append(rig.clock.monotonic() - crashed_at)
        await rig.clock.until(lambda: rig.server().state is ServerState.IDLE, 60)
    assert waits == [pytest.approx(wait, abs=3) for wait in (10, 20, 40)]
    crash(rig, rig.launcher.started[-1])
    await rig.advance(300)
    assert len(rig.launcher.started) == 4
    assert "it stays down: 3 restarts within 1 h" in rig.events("crash restart")[-1]
    failure = rig.server().failure
    assert failure is not None and failure.advice[0].startswith("it stays down")
    assert (await rig.submit(StartServer("small"))).is_done


async def test_a_start_that_fails_again_counts_and_is_tried_again(rig: Rig) -> None:
    await turn_on(rig)
    rig.launcher.boots = [Boot(), Boot(dies_after=2, last_words=OOM)]
    crash(rig, await rig.serving())
    await rig.clock.until(lambda: len(rig.launcher.started) == 3, 120)
    await rig.clock.until(lambda: rig.server().state is ServerState.IDLE, 60)
    assert len(rig.now.remembered.crash_restarts["main"]) == 2


async def test_a_start_that_never_served_is_not_brought_back(rig: Rig) -> None:
    await turn_on(rig)
    rig.launcher.boots = [Boot(dies_after=2, last_words=OOM)]
    assert (await rig.submit(StartServer("small"))).exit_status == 1
    await rig.advance(120)
    assert len(rig.launcher.started) == 1


async def test_the_operators_pause_holds_it_until_the_run_goes_on(rig: Rig) -> None:
    await turn_on(rig)
    await rig.generating(rig.run_file(rows=12, tokens=100))
    await rig.submit(PauseRun())
    crash(rig, rig.launcher.started[0])
    await rig.advance(120)
    assert len(rig.launcher.started) == 1
    assert any("you hold the run" in text for text in rig.events("crash restart"))
    await rig.submit(ResumeRun())
    await rig.clock.until(lambda: rig.run().state is RunState.FINISHED, 300)
    assert len(rig.launcher.started) == 2


async def test_a_stop_while_it_waits_keeps_the_server_down(rig: Rig) -> None:
    await turn_on(rig)
    crash(rig, await rig.serving())
    await rig.clock.until(lambda: bool(rig.events("crash restart")), 5)
    assert (await rig.submit(StopServer())).is_done
    await rig.advance(120)
    assert len(rig.launcher.started) == 1


async def test_another_kvctld_counts_on(rig: Rig) -> None:
    await turn_on(rig, Config(crash=CrashRestart(restart=True, most_restarts=1)))
    crash(rig, await rig.serving())
    await rig.clock.until(lambda: len(rig.launcher.started) == 2, 60)
    await rig.clock.until(lambda: rig.server().state is ServerState.IDLE, 60)
    await rig.kill()
    crash(rig, rig.launcher.started[-1])
    await rig.begin()
    await rig.advance(120)
    assert len(rig.launcher.started) == 2
    assert any("it stays down" in text for text in rig.events("crash restart"))
