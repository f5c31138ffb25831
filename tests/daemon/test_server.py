"""kvctld over its real socket: what it answers, whom it names, when it stays and when it goes."""

import asyncio
import json
import os
import shutil
import socket
import stat
from collections.abc import Callable

import httpx
import pytest
from tests.daemon.conftest import Served

from kvctl.core.controller.commands import (
    Outcome,
    PauseRun,
    RefreshNow,
    StartRun,
    StopDaemon,
    Throttle,
)
from kvctl.core.daemon.api import HEARTBEAT_S
from kvctl.core.daemon.server import IDLE_EXIT_S
from kvctl.core.daemon.wire import (
    OPERATOR_HEADER,
    DaemonInfo,
    Goodbye,
    decode,
    decode_any,
    encode_command,
)
from kvctl.core.domain.events import Event
from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.domain.snapshot import Snapshot


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is another connection's state
            await asyncio.sleep(0.01)


async def test_the_socket_is_private_and_names_its_process(served: Served) -> None:
    async with served.http() as http:
        info = decode((await http.get("/v1/daemon")).content, DaemonInfo)
    assert (info.pid, info.socket) == (os.getpid(), str(served.paths.socket))
    assert stat.S_IMODE(served.paths.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(served.paths.runtime.stat().st_mode) == 0o700


async def test_the_snapshot_is_the_controllers(served: Served) -> None:
    async with served.http() as http:
        answer = await http.get("/v1/snapshot")
    assert decode(answer.content, Snapshot) == served.controller.current


async def test_the_stream_begins_with_now_and_follows_changes(served: Served) -> None:
    async with served.http() as http, http.stream("GET", "/v1/stream") as got:
        lines = got.aiter_lines()
        first = decode((await anext(lines)).encode(), Snapshot)
        await served.controller.publish(busy_command="restart")
        second = decode((await anext(lines)).encode(), Snapshot)
    assert (first.busy_command, second.busy_command) == (None, "restart")


async def test_attached_panels_see_each_others_operator(served: Served) -> None:
    headers = {OPERATOR_HEADER: "ada"}
    async with served.http() as http, http.stream("GET", "/v1/stream", headers=headers) as got:
        seen = decode((await anext(got.aiter_lines())).encode(), Snapshot)
        assert seen.operators == ("ada",)
    async with served.http() as http:
        await until(lambda: served.daemon.describe().operators == ())
        assert decode((await http.get("/v1/snapshot")).content, Snapshot).operators == ()


async def test_a_reader_that_stops_reading_costs_no_growing_buffer(served: Served) -> None:
    """A client that never reads must not make kvctld pile up snapshots for it."""
    big = tuple(Event(1.0, 2.0, "log", "x" * 1000) for _ in range(200))
    await served.controller.publish(events=big)
    slow = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(os.fspath(served.paths.socket))
    slow.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: kvctld\r\n\r\n")
    await until(lambda: served.controller.open_subscriptions == 1)
    for number in range(40):
        await served.controller.publish(busy_command=str(number))
        await asyncio.sleep(0)
    async with served.http() as http, http.stream("GET", "/v1/stream") as got:
        newest = decode((await anext(got.aiter_lines())).encode(), Snapshot)
    assert newest.busy_command == "39"
    slow.close()
    await until(lambda: served.controller.open_subscriptions == 0)


async def test_a_quiet_stream_carries_a_heartbeat(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HEARTBEAT_S > 0
    monkeypatch.setattr("kvctl.core.daemon.api.HEARTBEAT_S", 0.01)
    async with served.http() as http, http.stream("GET", "/v1/stream") as got:
        lines = got.aiter_lines()
        await anext(lines)
        assert await anext(lines) == ""


async def test_a_command_runs_to_its_end_and_answers_its_outcome(served: Served) -> None:
    served.controller.answer = lambda _: Outcome(4, "a rule says no", ("flag x",))
    async with served.http() as http:
        answer = await http.post("/v1/commands", content=encode_command(Throttle(12)))
    assert decode(answer.content, Outcome) == Outcome(4, "a rule says no", ("flag x",))
    assert served.controller.submitted == [Throttle(12)]


async def test_a_client_that_goes_away_does_not_cancel_its_command(served: Served) -> None:
    served.controller.gate = asyncio.Event()
    finished: list[str] = []
    served.controller.answer = lambda _: finished.append("ended") or Outcome(0, "done")  # type: ignore[func-returns-value]
    async with served.http() as http:
        asking = asyncio.create_task(
            http.post("/v1/commands", content=encode_command(PauseRun()), timeout=None)
        )
        await until(lambda: bool(served.controller.submitted))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    served.controller.gate.set()
    await until(lambda: finished == ["ended"])


async def test_a_followed_command_tells_its_events_and_then_its_outcome(served: Served) -> None:
    await served.controller.emit("old", "before the command")
    served.controller.gate = asyncio.Event()
    body = encode_command(StartRun("/r.toml"))
    path = "/v1/commands?follow=1"
    async with served.http() as http, http.stream("POST", path, content=body) as got:
        lines = got.aiter_lines()
        await until(lambda: bool(served.controller.submitted))
        await served.controller.emit("loading", "88 rows")
        event = decode_any((await anext(lines)).encode())
        await served.controller.emit("running", "6 slots")
        served.controller.gate.set()
        rest = [decode_any(line.encode()) async for line in lines]
    assert isinstance(event, Event) and event.text == "88 rows"
    assert [getattr(r, "text", None) or getattr(r, "message", None) for r in rest] == [
        "6 slots",
        "done",
    ]


@pytest.mark.parametrize("body", [b"{", b'{"command": "nonsense"}'])
async def test_a_command_that_is_not_understood_is_answered_not_run(
    served: Served, body: bytes
) -> None:
    async with served.http() as http:
        answer = await http.post("/v1/commands", content=body)
    assert answer.status_code == 400
    assert json.loads(answer.content)["outcome"]["exit_status"] == 2
    assert served.controller.submitted == []


async def test_a_crash_in_a_command_is_an_outcome(served: Served) -> None:
    def fail(_: object) -> Outcome:
        raise ZeroDivisionError("oops")

    served.controller.answer = fail
    async with served.http() as http:
        answer = await http.post("/v1/commands", content=encode_command(RefreshNow()))
    outcome = decode(answer.content, Outcome)
    assert outcome.exit_status == 1
    assert "ZeroDivisionError: oops" in outcome.message


@pytest.mark.parametrize("whole_folder", [False, True], ids=["socket", "folder"])
async def test_the_same_kvctld_answers_after_its_files_were_deleted(
    served: Served, whole_folder: bool
) -> None:
    async with served.http() as http, http.stream("GET", "/v1/stream") as got:
        lines = got.aiter_lines()
        await anext(lines)
        if whole_folder:
            shutil.rmtree(served.paths.runtime)
        else:
            served.paths.socket.unlink()
        await served.clock.advance(1.0)
        await until(served.paths.socket.exists)
        await served.controller.publish(busy_command="still here")
        assert "still here" in await anext(lines)  # older connections live on
    async with served.http() as http:
        info = decode((await http.get("/v1/daemon")).content, DaemonInfo)
    assert info.pid == os.getpid()
    assert served.paths.lock.read_text().strip() == str(os.getpid())


async def test_a_stopping_kvctld_says_goodbye_and_brings_the_controller_to_rest(
    served: Served,
) -> None:
    async with served.http() as http, http.stream("GET", "/v1/stream") as got:
        lines = got.aiter_lines()
        await anext(lines)
        served.daemon.stop("stopped by SIGTERM")
        assert decode_any((await anext(lines)).encode()) == Goodbye("stopped by SIGTERM")
    assert await served.ended == "stopped by SIGTERM"
    assert served.controller.is_closed
    assert not served.paths.socket.exists()


async def test_the_stop_command_is_answered_before_the_socket_closes(served: Served) -> None:
    async with served.http() as http:
        answer = await http.post("/v1/commands", content=b'{"command": "stop-daemon"}')
    assert decode(answer.content, Outcome).is_done
    assert await served.ended == "stopped by an operator"
    assert served.controller.submitted == [StopDaemon()]


async def test_a_command_cut_by_the_stop_has_an_outcome_that_says_so(served: Served) -> None:
    served.controller.gate = asyncio.Event()
    async with served.http() as http:
        asking = asyncio.create_task(http.post("/v1/commands", content=encode_command(PauseRun())))
        await until(lambda: bool(served.controller.submitted))
        served.daemon.stop("stopped")
        outcome = decode((await asking).content, Outcome)
    assert outcome.exit_status == 1
    assert "before the command had ended" in outcome.message


async def test_idle_for_ten_minutes_it_leaves(served: Served) -> None:
    await served.clock.advance(IDLE_EXIT_S - 1)
    assert not served.ended.done()
    await served.clock.advance(2)
    assert "idle" in await asyncio.wait_for(served.ended, 10)


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.PAUSED, RunState.HOLDING])
async def test_with_a_run_it_stays(served: Served, state: RunState) -> None:
    await served.controller.publish(run=Run("r", "/r.toml", "/out", state, 0.0))
    await served.clock.advance(10 * IDLE_EXIT_S)
    assert not served.ended.done()


async def test_with_a_client_it_stays(served: Served) -> None:
    async with served.http() as http, http.stream("GET", "/v1/stream") as got:
        lines = got.aiter_lines()
        await anext(lines)
        await served.clock.advance(10 * IDLE_EXIT_S)
        assert not served.ended.done()


async def test_a_controller_that_breaks_ends_kvctld_with_its_error(served: Served) -> None:
    served.daemon.stop("replaced")
    await served.ended
    served.controller.crash = RuntimeError("sampler broke")
    with pytest.raises(RuntimeError, match="sampler broke"):
        await asyncio.wait_for(served.daemon.serve(), 10)


async def test_an_unknown_path_is_not_found(served: Served) -> None:
    async with served.http() as http:
        answer: httpx.Response = await http.get("/v2/anything")
    assert answer.status_code == 404
