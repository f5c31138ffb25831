"""A kvctld in this process over a real socket, with a controller that a test commands."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.fakes.controller import FakeController

from kvctl.core.clock import ManualClock
from kvctl.core.daemon.lock import DaemonLock
from kvctl.core.daemon.paths import DaemonPaths, prepare_folders
from kvctl.core.daemon.server import DaemonOptions, Kvctld


@dataclass
class Served:
    """The parts of a running in-process kvctld."""

    controller: FakeController
    daemon: Kvctld
    paths: DaemonPaths
    clock: ManualClock
    ended: "asyncio.Task[str]"

    def http(self) -> httpx.AsyncClient:
        """A raw client of its socket."""
        transport = httpx.AsyncHTTPTransport(uds=str(self.paths.socket))
        return httpx.AsyncClient(transport=transport, base_url="http://kvctld", trust_env=False)


@pytest.fixture
def paths(tmp_path: Path) -> DaemonPaths:
    return DaemonPaths(tmp_path / "s", tmp_path / "s", tmp_path / "s" / "config")


@pytest.fixture
def lock(paths: DaemonPaths) -> Iterator[DaemonLock]:
    prepare_folders(paths, os.getuid())
    lock = DaemonLock(paths.lock, paths.name_hash)
    lock.acquire()
    yield lock
    lock.release()


@pytest.fixture
async def served(paths: DaemonPaths, lock: DaemonLock) -> AsyncIterator[Served]:
    controller, clock, ready = FakeController(), ManualClock(), asyncio.Event()
    options = DaemonOptions(owns_standard_streams=False)
    daemon = Kvctld(controller, paths, lock, options, clock)
    ended = asyncio.create_task(daemon.serve(ready.set))
    await asyncio.wait_for(ready.wait(), 10)
    yield Served(controller, daemon, paths, clock, ended)
    daemon.stop("the test is over")
    with suppress(RuntimeError):
        await asyncio.wait_for(ended, 10)
