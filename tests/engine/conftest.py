"""Fixtures for tests against a real SGLang server (`pytest -m engine`)."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.engine.client import EngineClient
from tests.engine.install import why_not_current
from tests.engine.launch import engine_home
from tests.engine.server import EngineServer, PlainEngine, start_server


@pytest.fixture(scope="session")
def installed_engine() -> None:
    """Fail, never skip, when there is no engine: a green run must mean that one was asked."""
    if reason := why_not_current(engine_home()):
        pytest.fail(reason, pytrace=False)


@pytest.fixture(scope="session")
def engine(
    installed_engine: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    """The session's server: pool of 4096 tokens, metrics on."""
    server = start_server(tmp_path_factory.mktemp("engine") / "server.log")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def plain_engine(
    installed_engine: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlainEngine]:
    """The session's other server: without metrics, and a test may stop and restart it."""
    folder = tmp_path_factory.mktemp("plain-engine")
    plain = PlainEngine(folder, start_server(folder / "plain-1.log", enable_metrics=False))
    try:
        plain.server.wait_ready()
        yield plain
    finally:
        plain.server.stop()


@pytest.fixture
def engine_server(installed_engine: None, tmp_path: Path) -> Iterator[Callable[..., EngineServer]]:
    """Start servers of one's own: `engine_server("--flag", "value", max_total_tokens=1024)`.

    Each call returns a ready server; all are stopped at the end of the test.
    """
    started: list[EngineServer] = []

    def start(*extra: str, **flags: str | int | float | bool | None) -> EngineServer:
        server = start_server(tmp_path / f"server-{len(started)}.log", *extra, **flags)
        started.append(server)
        server.wait_ready()
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
async def client(engine: EngineServer) -> AsyncIterator[EngineClient]:
    """A client of the session's server, which is settled before and after the test."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=engine.url, timeout=120, limits=limits) as http:
        client = EngineClient(http)
        await client.settle()
        yield client
        await client.settle()
