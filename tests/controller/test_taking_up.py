"""What is true in the first moments: a kvctld that just began, a server that just came up."""

import asyncio

from tests.fakes.launcher import READY, Boot
from tests.fakes.rig import Rig

from kvctl.core.controller.commands import CloseRun, PauseRun, Throttle
from kvctl.core.controller.controller import Controller
from kvctl.core.domain.run import RunState


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
