"""What is left of a run is told only while it gets to its end by itself."""

from collections.abc import Callable

import pytest
from tests.fakes.bench import Bench
from tests.fakes.generator import FakeGenerator
from tests.fakes.runs import ids_rows, write_run

from kvctl.core.cli.render import remaining
from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.runs.driving.driver import RunDriver

OTHER = "http://fake:2"


def ends(run: Run) -> tuple[float | None, ...]:
    return (run.remaining_s, run.done_wall, *(p.remaining_s for p in run.partitions))


async def under_way(bench: Bench, *servers: FakeGenerator, rows: int = 400) -> RunDriver:
    write_run(bench.folder, {"B1": ids_rows(rows), "B2": ids_rows(rows)}, concurrency=8)
    driver = await bench.begin(*servers)
    await bench.clock.advance(60)
    assert None not in ends(driver.view(bench.clock.monotonic()))
    return driver


Quiet = Callable[[RunDriver], None]
QUIET: dict[str, tuple[Quiet, Quiet]] = {
    "paused": (lambda d: d.pause(), lambda d: d.resume()),
    "held": (lambda d: d.hold("server", "main starts"), lambda d: d.release("server")),
    "held by every law": (
        lambda d: d.set_target(8, is_held=True, note="figures are 70 s old"),
        lambda d: d.set_target(8),
    ),
}


@pytest.mark.parametrize("name", QUIET)
async def test_while_nothing_is_sent_no_end_is_told(bench: Bench, name: str) -> None:
    stop, go = QUIET[name]
    driver = await under_way(bench)
    stop(driver)
    await bench.clock.advance(30)
    run = driver.view(bench.clock.monotonic())
    assert run.in_flight == 0 and set(ends(run)) == {None}
    assert remaining(run, 0.0) == "remaining – (nothing is sent now)"
    go(driver)
    await bench.clock.advance(5)
    assert None not in ends(driver.view(bench.clock.monotonic()))


async def test_one_server_that_is_held_and_one_that_is_down_send_nothing_together(
    bench: Bench,
) -> None:
    other = FakeGenerator(bench.clock, url=OTHER)
    driver = await under_way(bench, bench.server, other)
    driver.set_target(4, "http://fake:1", is_held=True)
    other.kill()
    await bench.clock.advance(30)
    run = driver.view(bench.clock.monotonic())
    assert (run.state, run.is_sending) == (RunState.RUNNING, False)
    assert set(ends(run)) == {None}


async def test_the_end_is_told_once_everything_is_sent_also_where_no_more_would_be(
    bench: Bench,
) -> None:
    driver = await under_way(bench, rows=50)
    await bench.clock.advance(4)
    driver.set_target(8, is_held=True)
    run = driver.view(bench.clock.monotonic())
    assert run.in_flight == 4 and run.done == 96
    assert None not in ends(run)
