"""A stop that cuts what is not ours: a client that asks on for ever does not hold it up."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.fakes.launcher import Boot, Started
from tests.fakes.rig import Rig
from tests.fakes.sglang import FakeServer

from kvctl.core.controller.commands import RestartServer, StopServer
from kvctl.core.ports import GenerateRequest, ProbeFailed, TransportFailed

DRAINS_FOR_EVER = Boot(term_s=None)
"""SGLang after TERM while its clients ask on."""


class Stranger:
    """Another's client: asks again as soon as it has been answered."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self.ends: list[str] = []

    async def ask(self) -> None:
        number = 0
        while True:
            number += 1
            sampling = {"max_new_tokens": 100_000}
            request = GenerateRequest(f"theirs-{number}.", None, (1, 2), sampling)
            try:
                reply = await self._server.generator.generate(request)
            except TransportFailed:
                self.ends.append("broken")
                return
            self.ends.append(str((reply.finish or {}).get("type")))


@pytest.fixture
async def strangers() -> AsyncIterator[list["asyncio.Task[None]"]]:
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def asked_by_another(
    rig: Rig, tasks: list["asyncio.Task[None]"], boot: Boot = DRAINS_FOR_EVER
) -> tuple[Started, Stranger]:
    started = await rig.serving(boot=boot)
    stranger = Stranger(started.server)
    tasks.append(asyncio.create_task(stranger.ask()))
    await rig.advance(5)
    return started, stranger


async def test_requests_of_others_are_aborted_and_their_drain_is_not_waited_for(
    rig: Rig, strangers: list["asyncio.Task[None]"]
) -> None:
    started, stranger = await asked_by_another(rig, strangers)
    before = rig.clock.monotonic()
    outcome = await rig.submit(StopServer(cut_foreign=True))
    assert outcome.is_done, outcome
    assert stranger.ends == ["abort", "broken"]
    assert rig.processes.signals_to(started.launched.identity) == ["TERM", "KILL"]
    assert rig.clock.monotonic() - before < 20
    assert rig.stage("stop").detail.startswith("1 requests of others cut; ")
    assert "after KILL" in rig.stage("stop").detail


async def test_our_own_requests_are_harvested_before_others_are_cut(
    rig: Rig, strangers: list["asyncio.Task[None]"]
) -> None:
    await rig.generating(rig.run_file(rows=20, tokens=400), boot=DRAINS_FOR_EVER)
    server = rig.launcher.started[-1].server
    stranger = Stranger(server)
    strangers.append(asyncio.create_task(stranger.ask()))
    await rig.advance(5)
    outcome = await rig.submit(StopServer(cut_foreign=True))
    assert outcome.is_done, outcome
    assert len([call for call in server.calls if call.startswith("abort ")]) == 4
    assert rig.stage("harvest").detail.startswith("4 ")
    assert rig.stage("stop").detail.startswith("1 requests of others cut; ")
    assert stranger.ends == ["abort", "broken"]


async def test_a_restart_that_may_cut_them_does_not_wait_either(
    rig: Rig, strangers: list["asyncio.Task[None]"]
) -> None:
    started, _ = await asked_by_another(rig, strangers)
    outcome = await rig.submit(RestartServer("small", cut_foreign=True))
    assert outcome.is_done, outcome
    assert rig.processes.signals_to(started.launched.identity) == ["TERM", "KILL"]


async def test_a_server_that_nobody_else_asks_keeps_its_whole_time_to_end(rig: Rig) -> None:
    started = await rig.serving(boot=Boot(term_s=30.0))
    outcome = await rig.submit(StopServer(cut_foreign=True))
    assert outcome.is_done, outcome
    assert rig.processes.signals_to(started.launched.identity) == ["TERM"]
    assert "cut" not in rig.stage("stop").detail


async def test_a_server_that_cannot_abort_is_stopped_all_the_same(
    rig: Rig, strangers: list["asyncio.Task[None]"]
) -> None:
    started, stranger = await asked_by_another(rig, strangers)
    started.server.failing["abort_all"] = ProbeFailed("unsupported", "no abort_all")
    outcome = await rig.submit(StopServer(cut_foreign=True))
    assert outcome.is_done, outcome
    assert stranger.ends == ["broken"]
    assert "requests of others not aborted: unsupported" in rig.stage("stop").detail
