"""The first moments: a kvctld that just began, a server that just came up (again)."""

import asyncio
from typing import Any

import pytest
from tests.fakes.launcher import READY, Boot
from tests.fakes.rig import Rig
from tests.fakes.runs import answers

from kvctl.core.controller.commands import (
    CloseRun,
    Command,
    PauseRun,
    RestartServer,
    StartServer,
    Throttle,
)
from kvctl.core.controller.controller import Controller
from kvctl.core.domain.runs.run import RunState


async def test_a_command_waits_for_the_run_that_is_being_taken_up(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=40))
    await rig.kill()
    rig.now = Controller(rig.host())
    early = [rig.begin_command(command) for command in (Throttle(2), PauseRun())]
    await rig.clock.quiet()
    assert not any(task.done() for task in early)
    assert (rig.run().state, rig.run().name) == (RunState.LOADING, "test")
    rig._running = asyncio.create_task(rig.now.run())
    await rig.clock.until(lambda: all(task.done() for task in early), 30)
    assert all(task.result().is_done for task in early)
    assert (rig.run().state, rig.now.run_desk.driver is not None) == (RunState.PAUSED, True)


async def test_a_run_that_is_closed_before_it_is_taken_up_stays_closed(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=40))
    await rig.kill()
    rig.now = Controller(rig.host())
    assert (await rig.submit(CloseRun())).is_done
    rig._running = asyncio.create_task(rig.now.run())
    await rig.advance(5)
    assert rig.shot().run is None


async def test_without_a_run_a_command_is_refused_at_once(rig: Rig) -> None:
    outcome = await rig.submit(Throttle(2), limit_s=0.1)
    assert outcome.exit_status == 4 and "kvctl run start" in outcome.message


async def test_after_a_long_start_the_counts_are_current_at_once(rig: Rig) -> None:
    slow = Boot(steps=(*Boot().steps[:-1], (31.0, READY)))
    started = await rig.serving(boot=slow)
    started.server.others = 3
    await rig.advance(2.5)
    assert rig.server().decode.running.value == 3


@pytest.mark.parametrize("command", [StartServer("small"), RestartServer("small")])
async def test_a_server_that_ended_this_very_second_can_be_started_at_once(
    rig: Rig, command: Command
) -> None:
    started = await rig.serving()
    rig.processes.end(started.launched.identity, status=-9)
    outcome = await rig.submit(command)
    assert outcome.is_done and rig.server().pid != started.launched.pid


def launches(record: dict[str, Any]) -> list[str]:
    """Which start of the server made each part of an answer."""
    return [segment["launch"] for segment in record.get("segments", [])] or [record["launch"]]


@pytest.mark.parametrize("dtype", ["auto", "fp8_e5m2"])
async def test_after_a_restart_the_new_launch_is_asked_before_anything_is_sent(
    rig: Rig, dtype: str
) -> None:
    await rig.generating(rig.run_file(rows=8, tokens=60), Boot(ready=serve_with("auto")))
    await rig.advance(3)
    rig.launcher.boots = [Boot(ready=serve_with(dtype))]
    assert (await rig.submit(RestartServer("large"))).is_done
    await rig.clock.until(lambda: rig.run().state is RunState.FINISHED, 120)
    first, second = (f"{s.launched.pid}-{s.launched.start_ticks}" for s in rig.launcher.started)
    told = [launches(record) for record in answers(rig.output)]
    # A prefix is only continued where the numbers are made in the same way.
    is_same = dtype == "auto"
    assert told.count([first, second]) == (4 if is_same else 0)
    assert told.count([second]) == (4 if is_same else 8)
    assert bool(rig.events("restarted")) is not is_same


def serve_with(dtype: str) -> Any:
    return lambda server: server.flags.update(kv_cache_dtype=dtype)
