"""kill -9 of kvctld at every stage of a sequence: the next one finishes or tells, never twice."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.fakes.launcher import OOM, Boot
from tests.fakes.rig import Rig
from tests.fakes.runs import answered

from kvctl.core.controller.commands import (
    CancelStart,
    Command,
    RestartServer,
    StartServer,
    StopServer,
)
from kvctl.core.controller.servers.stages import RESUME_STAGES, START_STAGES, STOP_STAGES
from kvctl.core.controller.state import Remembered, SequenceRecord, StateFile
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.servers.server import ServerState, StageState

ROWS = 12
UNTOUCHED = STOP_STAGES[:2]
TOLD_BY_LOG = tuple(name for name in START_STAGES if name != "graphs")  # these boots have none


class Killed(BaseException):
    """The process is gone at this very line."""


@dataclass(slots=True)
class DyingFile(StateFile):
    """state.json of a kvctld that is killed when it has written (or is about to write) this."""

    is_last: Callable[[Remembered], bool] = lambda remembered: False
    writes_it: bool = True
    die: Callable[[], None] = lambda: None

    def save(self, remembered: Remembered) -> None:
        is_last = self.is_last(remembered)
        if self.writes_it or not is_last:
            StateFile.save(self, remembered)
        if is_last:
            self.die()


async def killed_at(
    rig: Rig, command: Command, is_last: Callable[[SequenceRecord], bool], writes_it: bool = True
) -> None:
    """Carry out a command until state.json says something of it; kvctld is killed there."""
    gone = asyncio.Event()

    def die() -> None:
        rig.now.sequences.steps.is_leaving = True  # no handler of the dead cleans up
        gone.set()
        raise Killed

    def is_there(remembered: Remembered) -> bool:
        sequence = remembered.sequence
        return not gone.is_set() and sequence is not None and is_last(sequence)

    file = rig.now._state_file
    rig.now._state_file = DyingFile(file.path, is_there, writes_it, die)
    task = rig.begin_command(command)
    await rig.clock.until(gone.is_set, 300)
    await rig.kill()
    await asyncio.gather(task, return_exceptions=True)


def at_stage(name: str) -> Callable[[SequenceRecord], bool]:
    return lambda sequence: sequence.doing == name


def living_mains(rig: Rig) -> list[str]:
    return [one.plan.preset for one in rig.launcher.started if one.main.lives]


async def until_settled(rig: Rig) -> None:
    await rig.clock.until(lambda: rig.shot().busy_command is None, 300)
    assert rig.now.remembered.sequence is None


async def finished_once(rig: Rig) -> None:
    await rig.clock.until(lambda: rig.run().state is RunState.FINISHED, 300)
    assert len(answered(rig.output)) == ROWS and rig.run().duplicates == 0


# -- a restart, at every stage ----------------------------------------------------------------


@pytest.mark.parametrize("stage", UNTOUCHED)
async def test_before_the_stop_it_is_told_and_the_old_server_goes_on(rig: Rig, stage: str) -> None:
    await rig.generating(rig.run_file(rows=ROWS, tokens=100))
    await killed_at(rig, RestartServer("large"), at_stage(stage))
    await rig.begin()
    await until_settled(rig)
    (told,) = rig.events("broken off")
    assert told.startswith(f"the restart with large broke off at {stage} when kvctld ended")
    assert "R or S asks for it again" in told
    assert living_mains(rig) == ["small"] and rig.processes.sent == []
    await finished_once(rig)


@pytest.mark.parametrize("stage", [*STOP_STAGES[2:], *TOLD_BY_LOG, *RESUME_STAGES])
async def test_from_the_stop_on_it_is_finished_with_one_server(rig: Rig, stage: str) -> None:
    first = await rig.generating(rig.run_file(rows=ROWS, tokens=100))
    await killed_at(rig, RestartServer("large"), at_stage(stage))
    await rig.begin()
    assert (rig.shot().busy_command or "").startswith("restart with large")
    await until_settled(rig)
    assert any(f"goes on at {stage}" in text for text in rig.events("taken up"))
    assert not first.is_up and living_mains(rig) == ["large"]
    assert [one.plan.preset for one in rig.launcher.started] == ["small", "large"]
    assert (rig.server().state.is_ready, rig.server().preset) == (True, "large")
    assert rig.stage("first token").state is StageState.DONE
    await finished_once(rig)
    assert [(r.preset, r.was_ready) for r in rig.now.ledger.records()] == [
        ("small", True),
        ("large", True),
    ]
    assert rig.now.remembered.last_good_preset == "large"


@pytest.mark.parametrize("is_spawned", [False, True])
async def test_around_the_spawn_there_is_one_server(rig: Rig, is_spawned: bool) -> None:
    """Its process may be there, with nothing but its mark to know it by."""
    await rig.generating(rig.run_file(rows=ROWS, tokens=100))
    count = 2 if is_spawned else 1
    await killed_at(
        rig,
        RestartServer("large"),
        lambda sequence: bool(sequence.launch_id) and len(rig.launcher.started) == count,
        writes_it=not is_spawned,
    )
    assert len(rig.launcher.started) == count
    await rig.begin()
    await until_settled(rig)
    assert [one.plan.preset for one in rig.launcher.started] == ["small", "large"]
    server, launched = rig.server(), rig.launcher.started[1].launched
    assert (server.pid, server.preset) == (launched.pid, "large") and server.state.is_ready
    assert [r.id for r in rig.now.ledger.records()][-1] == server.launch_id
    await finished_once(rig)


async def test_a_leftover_of_the_old_server_is_ended_before_the_new_one_starts(rig: Rig) -> None:
    first = await rig.serving(boot=Boot(leaves_behind=True))
    await killed_at(rig, RestartServer("large"), at_stage("free GPUs"))
    await rig.begin()
    await until_settled(rig)
    assert not first.scheduler.lives and living_mains(rig) == ["large"]


# -- a start and a stop -----------------------------------------------------------------------


async def test_a_stop_is_finished_with_its_proof(rig: Rig) -> None:
    await rig.serving()
    await killed_at(rig, StopServer(), at_stage("stop"))
    await rig.begin()
    await until_settled(rig)
    assert living_mains(rig) == [] and rig.server().state is ServerState.STOPPED
    assert any("1 of 1 GPUs clean" in text for text in rig.events("stopped"))


async def test_a_start_that_failed_meanwhile_has_its_card(rig: Rig) -> None:
    rig.launcher.boots = [Boot(dies_after=3, last_words=OOM)]
    await killed_at(rig, StartServer("small"), at_stage("process"))
    await rig.clock.until(lambda: not living_mains(rig), 60)
    await rig.begin()
    await until_settled(rig)
    failure = rig.server().failure
    assert failure is not None and "memory" in failure.headline
    assert any(failure.headline in text for text in rig.events("failed"))


async def test_what_is_taken_up_can_be_cancelled(rig: Rig) -> None:
    await killed_at(rig, StartServer("small"), at_stage("process"))
    await rig.begin()
    await rig.clock.until(lambda: rig.stage("process").state is StageState.DONE, 10)
    outcome = await rig.submit(CancelStart())
    assert outcome.is_done and living_mains(rig) == []
    assert rig.server().state is ServerState.STOPPED and rig.now.remembered.sequence is None


# -- told, not finished -----------------------------------------------------------------------


async def test_a_preset_that_may_not_start_any_more_is_told(rig: Rig) -> None:
    await rig.serving()
    await killed_at(rig, RestartServer("large"), at_stage("stop"))
    rig.write_preset("large", "[launch\n")
    await rig.begin()
    await until_settled(rig)
    (told,) = rig.events("broken off")
    assert "it cannot be finished: " in told and "large" in told
    assert len(rig.launcher.started) == 1


async def test_after_a_boot_nothing_is_started(rig: Rig) -> None:
    await rig.serving()
    await killed_at(rig, RestartServer("large"), at_stage("stop"))
    for one in rig.launcher.started:
        rig.processes.end(one.launched.identity)
    rig.clock.epoch += 7 * 24 * 3600.0  # so that the boot was long after it began
    await rig.begin()
    await until_settled(rig)
    (told,) = rig.events("broken off")
    assert "the host has booted since" in told and living_mains(rig) == []


async def test_a_sequence_that_ends_every_kvctld_is_left_to_the_operator(rig: Rig) -> None:
    slow = Boot(steps=((500.0, Boot().steps[0][1]),))
    rig.launcher.boots = [slow]
    await killed_at(rig, StartServer("small"), at_stage("process"))
    for _ in range(3):
        await rig.begin()
        await rig.advance(2)
        await rig.kill()
    await rig.begin()
    await until_settled(rig)
    (told,) = rig.events("broken off")
    assert "3 kvctlds have ended over it" in told and len(rig.launcher.started) == 1
