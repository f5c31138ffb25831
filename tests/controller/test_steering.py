"""The throttle law and the ceiling policy on a run: what is sent, and what is told of it."""

from dataclasses import replace

import pytest
from tests.fakes.rig import Rig, preset_text
from tests.fakes.runs import answered
from tests.fakes.sglang import FakeServer

from kvctl.core.controller.commands import (
    PauseRun,
    ResumeRun,
    StartServer,
    Throttle,
    WaitHow,
)
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.telemetry.readings import RankLoad
from kvctl.core.domain.throttle.parameters import ThrottleParameters
from kvctl.core.ports import ProbeFailed

POLICY = 'on_ceiling = "pause"\npause_above = 0.95\nresume_below = 0.8'


async def auto(rig: Rig, *, rows: int = 300, tokens: int = 300, run: str = "") -> FakeServer:
    return await rig.generating(rig.run_file(rows, concurrency=None, tokens=tokens, run=run))


def ranks(*loads: tuple[int, int, float]) -> tuple[RankLoad, ...]:
    """DP ranks by (running, queued, usage)."""
    plain = RankLoad(0, None, 0, 0, None, 50_000, 0.0, None, None, 100)
    return tuple(
        replace(plain, dp_rank=n, running=running, queued=queued, token_usage=usage)
        for n, (running, queued, usage) in enumerate(loads)
    )


# -- AUTO and MANUAL --------------------------------------------------------------------------


async def test_auto_grows_while_the_pool_has_room_and_no_queue(rig: Rig) -> None:
    server = await auto(rig)
    server.capacity, server.usage = 200, 0.3
    await rig.advance(10)
    view = rig.run()
    assert view.is_auto and view.auto_target == view.target
    assert view.target > 16 and view.in_flight == view.target


async def test_auto_stays_within_what_config_toml_allows(rig: Rig) -> None:
    law = ThrottleParameters(start=6, most=20)
    rig.config = replace(rig.config, throttle=law)
    await rig.again()
    server = await auto(rig)
    assert rig.run().target == 6
    server.capacity, server.usage = 200, 0.3
    await rig.advance(30)
    assert rig.run().target == rig.run().in_flight == 20


async def test_auto_does_not_believe_lengths_before_the_answers_have_turned_over_once(
    rig: Rig,
) -> None:
    server = await auto(rig, tokens=5000)
    server.generator.length = lambda _: 20 if len(server.generator.requests) < 36 else 5000
    server.capacity, server.usage = 200, 0.3
    await rig.advance(15)
    view = rig.run()
    assert 0 < view.done < view.in_flight
    assert view.fit_at_mean is None and view.target > 40


async def test_a_move_of_auto_is_told_once_it_stands_not_at_every_step(rig: Rig) -> None:
    server = await auto(rig, rows=2000, tokens=100)
    server.capacity, server.usage = 60, 0.9
    await rig.advance(70)
    (told,) = rig.events("AUTO")
    assert told.startswith("slots 32 → ")


async def test_auto_keeps_a_short_queue_above_what_the_server_runs(rig: Rig) -> None:
    server = await auto(rig)
    server.capacity, server.usage = 20, 0.9
    await rig.advance(60)
    assert 20 < rig.run().in_flight <= 20 + 8
    assert server.generator.aborted == []


async def test_manual_rules_at_once_and_auto_goes_on_in_its_shadow(rig: Rig) -> None:
    server = await auto(rig)
    server.capacity, server.usage = 20, 0.9
    await rig.advance(60)
    before = rig.run().target
    await rig.submit(Throttle(before))
    assert rig.run().target == before and not rig.run().is_auto
    await rig.submit(Throttle(34))
    await rig.advance(30)
    assert rig.run().target == 34
    shadow = rig.run().auto_target
    assert shadow is not None and shadow < 30
    await rig.submit(Throttle(None))
    assert rig.run().is_auto and rig.run().target == shadow
    assert server.generator.aborted == []


async def test_ranks_are_summed_and_the_fullest_one_counts(rig: Rig) -> None:
    server = await auto(rig)
    server.ranks = ranks((30, 0, 0.98), (10, 0, 0.2))
    await rig.advance(5)
    held = rig.run().target
    decode = rig.server().decode
    assert (decode.running.value, decode.token_usage.value) == (40, 0.98)
    assert decode.pool_tokens.value == 100_000
    assert decode.worst_rank == "DP0"
    await rig.advance(20)
    assert rig.run().target == held, "the fullest rank is no reason to grow"


# -- stale and absent figures -----------------------------------------------------------------


async def test_figures_that_stop_hold_the_run_after_a_minute_and_are_told_once(rig: Rig) -> None:
    server = await auto(rig, rows=3000, tokens=50)
    await rig.advance(3)
    server.failing["loads"] = ProbeFailed("timeout", "/v1/loads: no answer")
    await rig.advance(50)
    assert rig.run().state is RunState.RUNNING
    await rig.advance(15)
    assert rig.run().state is RunState.HOLDING
    assert "no figures from the server for" in rig.run().reason
    await rig.advance(60)
    assert len([t for t in rig.events("hold") if "no figures" in t]) == 1
    assert "no figures from the server for 12" in rig.run().reason
    del server.failing["loads"]
    await rig.advance(20)
    assert rig.run().state is RunState.RUNNING and rig.run().in_flight


async def test_a_server_that_is_not_ready_is_not_sent_to_and_named(rig: Rig) -> None:
    server = await auto(rig)
    assert server.identity is not None
    rig.processes.end(server.identity, status=-9)
    await rig.advance(3)
    assert rig.run().state is RunState.HOLDING and rig.run().is_held
    assert rig.run().target > 0 and rig.run().in_flight == 0
    assert "main is failed: " in rig.run().reason
    holds = rig.events("hold")
    await rig.advance(120)
    assert rig.events("hold") == holds


async def test_a_stalled_server_is_not_taken_for_dead(rig: Rig) -> None:
    server = await auto(rig, tokens=5000)
    await rig.advance(5)
    server.hang()
    await rig.advance(55)
    assert rig.server().state.value == "stalled"
    assert rig.run().in_flight and server.generator.aborted == []


# -- the operator's policy --------------------------------------------------------------------


async def test_the_policy_pauses_at_its_mark_and_resumes_at_the_lower_one(rig: Rig) -> None:
    server = await auto(rig, run=POLICY)
    server.capacity, server.usage = 8, 0.96
    await rig.advance(3)
    assert rig.run().state is RunState.PAUSED
    assert rig.run().reason.startswith("paused by the policy: usage 0.96, ")
    server.capacity, server.usage = 100, 0.85
    await rig.advance(5)
    assert rig.run().state is RunState.PAUSED
    server.usage = 0.79
    await rig.advance(3)
    assert rig.run().state is RunState.RUNNING
    told = rig.events("ceiling")
    assert len(told) == 2 and told[0].startswith("paused: ") and told[1].startswith("resumed: ")
    assert server.generator.aborted == []


async def test_the_operators_word_stands_above_the_policy_until_usage_came_down(rig: Rig) -> None:
    server = await auto(rig, run=POLICY)
    server.capacity, server.usage = 8, 0.96
    await rig.advance(3)
    assert (await rig.submit(ResumeRun())).is_done
    await rig.advance(10)
    assert rig.run().state is RunState.RUNNING
    server.capacity, server.usage = 100, 0.7
    await rig.advance(3)
    server.capacity, server.usage = 8, 0.96
    await rig.advance(3)
    assert rig.run().state is RunState.PAUSED


async def test_a_resume_of_ones_own_pause_does_not_switch_the_policy_off(rig: Rig) -> None:
    server = await auto(rig, run=POLICY)
    server.usage = 0.9
    await rig.advance(3)
    await rig.submit(PauseRun())
    await rig.submit(ResumeRun())
    await rig.advance(3)
    server.capacity, server.usage = 8, 0.97
    await rig.advance(3)
    assert rig.run().state is RunState.PAUSED


async def test_the_policys_resume_does_not_undo_the_operators_pause(rig: Rig) -> None:
    server = await auto(rig, run=POLICY)
    server.capacity, server.usage = 8, 0.96
    await rig.advance(3)
    await rig.submit(PauseRun())
    server.capacity, server.usage = 100, 0.5
    await rig.advance(5)
    assert rig.run().state is RunState.PAUSED and rig.run().reason == "paused by you"


async def test_a_policys_pause_outlives_kvctld_and_ends_by_itself(rig: Rig) -> None:
    server = await auto(rig, run=POLICY)
    server.capacity, server.usage = 8, 0.96
    await rig.advance(3)
    await rig.again()
    await rig.advance(10)
    assert rig.run().state is RunState.PAUSED
    server.capacity, server.usage = 100, 0.5
    await rig.advance(5)
    assert rig.run().state is RunState.RUNNING


async def test_the_other_policies_only_tell_the_ceiling_and_only_once(rig: Rig) -> None:
    server = await auto(rig, run='on_ceiling = "notify"')
    server.capacity, server.usage = 8, 0.96
    await rig.advance(20)
    assert rig.run().state is RunState.RUNNING
    (told,) = rig.events("ceiling")
    assert "at the KV ceiling" in told


async def test_a_freeze_is_no_sample_for_the_law(rig: Rig) -> None:
    server = await auto(rig)
    server.capacity, server.usage = 20, 0.9
    await rig.advance(60)
    before = rig.run().auto_target
    await rig.submit(PauseRun(WaitHow.FREEZE))
    await rig.advance(100)
    assert rig.run().auto_target == before
    await rig.submit(ResumeRun())
    await rig.advance(3)
    assert rig.run().in_flight >= 20


# -- two servers ------------------------------------------------------------------------------


async def two(rig: Rig, *, concurrency: int | None, run: str = "") -> tuple[FakeServer, FakeServer]:
    rig.write_preset("second", preset_text("gpus = [1]\n", port=19))
    await rig.serving()
    assert (await rig.submit(StartServer("second", server="b"))).is_done
    lines = f'servers = ["main", "b"]\n{run}'
    path = rig.run_file(300, concurrency=concurrency, tokens=300, run=lines)
    await rig.submit_run(path)
    first, second = (one.server for one in rig.launcher.started)
    await rig.clock.until(lambda: bool(first.generator.running and second.generator.running), 20)
    return first, second


async def test_the_operators_number_is_shared_among_the_servers(rig: Rig) -> None:
    first, second = await two(rig, concurrency=9)
    assert (len(first.generator.running), len(second.generator.running)) == (5, 4)
    await rig.submit(Throttle(20))
    await rig.advance(1)
    assert (len(first.generator.running), len(second.generator.running)) == (10, 10)
    assert rig.run().target == 20


async def test_each_server_has_its_own_law(rig: Rig) -> None:
    first, second = await two(rig, concurrency=None)
    first.capacity, first.usage = 10, 0.95
    second.capacity, second.usage = 100, 0.4
    await rig.advance(60)
    assert len(first.generator.running) <= 10 + 6
    assert len(second.generator.running) > 30
    assert rig.run().target == rig.run().auto_target


async def test_what_the_servers_make_and_hold_is_summed_for_the_run(rig: Rig) -> None:
    first, second = await two(rig, concurrency=8)
    first.pool_tokens, second.pool_tokens = 100_000, 60_000
    await rig.advance(10)
    driver = rig.now.run_desk.driver
    assert driver is not None and driver.pool_tokens == 160_000
    assert driver.generation_tokens_per_s == pytest.approx(80)
    assert second.identity is not None
    rig.processes.end(second.identity, status=-9)
    await rig.advance(10)
    assert driver.generation_tokens_per_s == pytest.approx(40)


async def test_figures_of_the_whole_run_are_not_shown_as_one_servers(rig: Rig) -> None:
    await two(rig, concurrency=8)
    await rig.advance(40)
    assert rig.run().effective_tokens_per_s.value
    for name in ("main", "b"):
        server = rig.server(name)
        assert server.decode.effective_tokens_per_s.value is None
        assert server.decode.effective_tokens_per_s.reason == "several servers share the run"
        assert server.foreign_requests.value == 0


async def test_a_policys_pause_waits_for_the_fullest_server(rig: Rig) -> None:
    first, second = await two(rig, concurrency=None, run=POLICY)
    first.capacity, first.usage, second.usage = 4, 0.96, 0.3
    await rig.advance(5)
    assert rig.run().state is RunState.PAUSED
    await rig.advance(30)
    assert rig.run().state is RunState.PAUSED
    assert len(rig.events("ceiling")) == 1
    first.capacity, first.usage = 100, 0.5
    await rig.advance(3)
    assert rig.run().state is RunState.RUNNING


async def test_one_dead_server_of_two_does_not_stop_the_run(rig: Rig) -> None:
    first, second = await two(rig, concurrency=8)
    assert second.identity is not None
    rig.processes.end(second.identity, status=-9)
    await rig.advance(10)
    assert rig.run().state is RunState.RUNNING
    assert len(first.generator.running) == 4 and rig.run().in_flight == 4
    await rig.submit(Throttle(500))
    await rig.clock.until(lambda: rig.run().state is RunState.FINISHED, 900)
    assert len(answered(rig.output)) == 300
