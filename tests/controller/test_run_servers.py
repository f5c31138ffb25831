"""Servers that come to a run and leave it while it goes on, and the room for connections."""

import resource

import pytest
from tests.fakes.bench import Bench
from tests.fakes.generator import FakeGenerator, full_answer
from tests.fakes.rig import URL, Rig
from tests.fakes.runs import answered, answers, ids_rows, write_run

from kvctl.core.controller.commands import ChangeRunServers, Throttle, WaitHow
from kvctl.core.domain.errors import CommandRefused
from kvctl.core.domain.runs.run import RunState
from kvctl.core.runs.driving.descriptors import RESERVED, room_for

OTHER = "http://fake:2"


async def test_a_server_that_is_added_takes_rows_once_it_answers(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(60)})
    driver = await bench.begin()
    other = FakeGenerator(bench.clock, url=OTHER, is_up=False)
    driver.add_server(lambda: other)
    driver.set_target(5, OTHER)
    await bench.clock.advance(3)
    assert (driver.in_flight(OTHER), driver.view(0).servers) == (0, ("http://fake:1", OTHER))
    other.is_up = True
    await bench.clock.advance(20)
    assert driver.in_flight(OTHER) == 5
    with pytest.raises(CommandRefused, match="a server of this run already"):
        driver.add_server(lambda: FakeGenerator(bench.clock, url=OTHER))
    await bench.finish(driver)
    assert len(answered(bench.folder)) == 60


@pytest.mark.parametrize("keep", [True, False, None])
async def test_a_server_that_leaves_costs_no_row_and_with_harvest_no_token(
    bench: Bench, keep: bool | None
) -> None:
    write_run(bench.folder, {"B1": ids_rows(40)}, concurrency=6)
    other = FakeGenerator(bench.clock, url=OTHER)
    driver = await bench.begin(bench.server, other)
    await bench.clock.advance(2)
    report = await bench.during(driver.remove_server(OTHER, keep=keep))
    assert other.is_closed and not other.running
    assert driver.view(0).servers == ("http://fake:1",)
    sent = len(other.requests)
    if keep is not None:
        assert report.kept == (3 if keep else 0) and report.asked == 3
    driver.set_target(6)
    await bench.finish(driver)
    assert len(other.requests) == sent
    assert len(answered(bench.folder)) == 40
    for record in answers(bench.folder):
        assert record["output_ids"] == full_answer(list(record["input_ids"]), 50)  # type: ignore[call-overload]
    continued = sum("segments" in record for record in answers(bench.folder))
    assert continued == (3 if keep else 0)


async def test_the_last_server_stays(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)})
    driver = await bench.begin()
    with pytest.raises(CommandRefused, match="the run's last server: add another, or pause"):
        await driver.remove_server("http://fake:1", keep=True)


# -- files ----------------------------------------------------------------------------------


class Limits:
    """The limits of a process, as the kernel keeps them."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = (soft, hard)

    def get(self, which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return self.now

    def set(self, which: int, limits: tuple[int, int]) -> None:
        assert limits[0] <= self.now[1] and limits[1] == self.now[1]
        self.now = limits


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    made = Limits(1024, 4096)
    monkeypatch.setattr(resource, "getrlimit", made.get)
    monkeypatch.setattr(resource, "setrlimit", made.set)
    return made


def test_the_soft_limit_is_raised_as_far_as_it_is_needed(limits: Limits) -> None:
    assert room_for(100) == 100 and limits.now == (1024, 4096)
    assert room_for(2000) == 2000 and limits.now == (2000 + RESERVED, 4096)
    assert room_for(9000) == 4096 - RESERVED and limits.now == (4096, 4096)


def test_a_limit_that_is_unbounded_needs_nothing(limits: Limits) -> None:
    limits.now = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert room_for(9000) == 9000


async def test_slots_beyond_the_hard_limit_are_not_opened_and_one_line_says_so(
    bench: Bench, limits: Limits
) -> None:
    write_run(bench.folder, {"B1": ids_rows(40)}, concurrency=4)
    limits.now = (RESERVED + 8, RESERVED + 8)
    driver = await bench.begin()
    driver.set_target(20)
    driver.set_target(20)
    await bench.clock.advance(0.1)
    assert driver.in_flight() == 8
    said = [text for kind, text in bench.events if kind == "files"]
    assert len(said) == 1 and "8 of 20 slots are used" in said[0] and "ulimit -Hn" in said[0]
    assert "8 of 20 slots" in driver.view(0).reason


# -- the command ----------------------------------------------------------------------------


async def test_servers_come_and_go_by_command_and_outlive_kvctld(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=400, concurrency=20))
    other = rig.remote("http://10.0.0.9:30000").url
    outcome = await rig.submit(ChangeRunServers(add=(other,)))
    assert outcome.is_done and f"{other} serves the run" in outcome.message
    await rig.advance(20)
    assert rig.run().servers == (URL, other) and rig.run().target == 20
    await rig.again()
    await rig.advance(20)
    assert rig.run().servers == (URL, other) and rig.run().state is RunState.RUNNING
    outcome = await rig.submit(ChangeRunServers(remove=(other,), how=WaitHow.DRAIN))
    assert outcome.is_done and "all in flight have ended" in outcome.message
    await rig.again()
    await rig.advance(5)
    assert rig.run().servers == (URL,)
    await rig.submit(Throttle(7))
    await rig.advance(20)
    assert rig.run().in_flight == 7


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (ChangeRunServers(remove=(URL,)), "the run's last server"),
        (ChangeRunServers(add=("nobody",)), "server 'nobody' is not known here"),
        (ChangeRunServers(add=(URL,)), "a server of this run already"),
        (ChangeRunServers(remove=(URL,), how=WaitHow.FREEZE), "cannot be frozen"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_in_one_line(
    rig: Rig, change: ChangeRunServers, why: str
) -> None:
    await rig.generating(rig.run_file(rows=40))
    outcome = await rig.submit(change)
    assert not outcome.is_done and why in outcome.message and "\n" not in outcome.message
    assert rig.run().servers == (URL,)
