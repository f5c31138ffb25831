"""The panel's feed: never ends, never raises, comes back by itself."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.daemon.conftest import Served
from tests.fakes.controller import FakeController

from kvctl.core.clock import ManualClock
from kvctl.core.controller.commands import Outcome, RefreshNow
from kvctl.core.daemon.feed import FeedLost
from kvctl.core.daemon.lock import DaemonLock
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.server import DaemonOptions, Kvctld
from kvctl.core.daemon.socket_feed import RETRY_S, SocketFeed
from kvctl.core.domain.errors import DaemonUnreachable
from kvctl.core.domain.snapshot import Snapshot


@pytest.fixture
async def feed(paths: DaemonPaths) -> AsyncIterator[SocketFeed]:
    feed = SocketFeed(paths.socket, "ada", clock=ManualClock())
    yield feed
    await feed.close()


async def test_snapshots_come_by_themselves(served: Served, feed: SocketFeed) -> None:
    items = feed.snapshots()
    first = await anext(items)
    await served.controller.publish(busy_command="restart")
    second = await anext(items)
    assert isinstance(first, Snapshot) and first.operators == ("ada",)
    assert isinstance(second, Snapshot) and second.busy_command == "restart"
    await items.aclose()


async def test_a_command_comes_back_as_its_outcome(served: Served, feed: SocketFeed) -> None:
    served.controller.answer = lambda _: Outcome(4, "a rule says no")
    assert await feed.submit(RefreshNow()) == Outcome(4, "a rule says no")


async def test_without_kvctld_a_command_is_an_outcome_not_an_exception(feed: SocketFeed) -> None:
    outcome = await feed.submit(RefreshNow())
    assert outcome.exit_status == 3
    assert "does not answer" in outcome.message


async def test_after_a_goodbye_it_waits_and_finds_the_next_kvctld(
    served: Served, paths: DaemonPaths
) -> None:
    revived: list[str] = []
    clock = ManualClock()
    feed = SocketFeed(paths.socket, "ada", revive=lambda: revived.append("asked"), clock=clock)
    items = feed.snapshots()
    assert isinstance(await anext(items), Snapshot)
    served.daemon.stop("stopped by an operator")
    assert await anext(items) == FeedLost("stopped by an operator")
    await served.ended
    lost = asyncio.ensure_future(anext(items))
    await clock.advance(RETRY_S)
    assert isinstance(await lost, FeedLost)
    assert revived == []  # an operator stopped it: starting it again would be against the order
    again = asyncio.ensure_future(anext(items))
    next_kvctld = await _serve(paths, served.daemon)
    await clock.advance(RETRY_S)
    assert isinstance(await asyncio.wait_for(again, 10), Snapshot)
    await items.aclose()
    await feed.close()
    next_kvctld.cancel()
    await asyncio.gather(next_kvctld, return_exceptions=True)


async def test_a_kvctld_that_is_gone_is_started_again(paths: DaemonPaths) -> None:
    revived: list[str] = []
    clock = ManualClock()
    feed = SocketFeed(paths.socket, "ada", revive=lambda: revived.append("asked"), clock=clock)
    items = feed.snapshots()
    assert isinstance(await anext(items), FeedLost)
    following = asyncio.ensure_future(anext(items))
    await clock.advance(RETRY_S)
    assert isinstance(await asyncio.wait_for(following, 10), FeedLost)
    assert revived == ["asked"]
    await items.aclose()
    await feed.close()


async def test_a_revival_that_fails_says_why(paths: DaemonPaths) -> None:
    def fail() -> None:
        raise DaemonUnreachable("config.toml: not TOML")

    clock = ManualClock()
    feed = SocketFeed(paths.socket, "ada", revive=fail, clock=clock)
    items = feed.snapshots()
    await anext(items)
    following = asyncio.ensure_future(anext(items))
    await clock.advance(RETRY_S)
    assert await asyncio.wait_for(following, 10) == FeedLost("config.toml: not TOML")
    await items.aclose()
    await feed.close()


async def _serve(paths: DaemonPaths, before: Kvctld) -> "asyncio.Task[str]":
    """Serve the same folder anew; the lock of the first one is still this test's."""
    lock = DaemonLock(paths.lock, paths.name_hash + "-second")
    daemon = Kvctld(FakeController(), paths, lock, DaemonOptions(owns_standard_streams=False))
    ready = asyncio.Event()
    task = asyncio.create_task(daemon.serve(ready.set))
    await asyncio.wait_for(ready.wait(), 10)
    assert daemon is not before
    return task
