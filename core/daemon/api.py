"""The HTTP API of kvctld: one snapshot, a stream of them, commands, and kvctld itself.

    GET  /v1/snapshot   one line
    GET  /v1/stream     lines as things change, at most four a second, coalesced to a slow reader
    POST /v1/commands   runs to its end and answers its outcome; `?follow=1` sends events first
    GET  /v1/daemon     pid, version, socket, uptime

A client that goes away ends its stream, never its command.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from aiohttp import web

from kvctl.core.controller.commands import Command, Outcome, StopDaemon
from kvctl.core.daemon.attached import Attached
from kvctl.core.daemon.news import events_since
from kvctl.core.daemon.port import ServedController
from kvctl.core.daemon.wire import OPERATOR_HEADER, DaemonInfo, Goodbye, decode_command, encode
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.snapshot import Snapshot

SMALLEST_GAP_S = 0.25
"""Seconds between two snapshots to one client."""
HEARTBEAT_S = 5.0
"""An empty line after so many seconds without news, so both sides notice a dead other."""
_GONE = "kvctld stopped before the command had ended; `kvctl status` shows what was reached"

log = logging.getLogger("kvctld")


class DaemonApi:
    """Routes over one controller."""

    def __init__(
        self,
        controller: ServedController,
        attached: Attached,
        describe: Callable[[], DaemonInfo],
    ) -> None:
        """Serve this controller; `describe` says what kvctld is now."""
        self._controller = controller
        self._attached = attached
        self._describe = describe
        self._stopping = asyncio.Event()
        self._why = "kvctld stopped"
        self._commands: set[asyncio.Task[Outcome]] = set()
        self._encoded: tuple[Snapshot, tuple[str, ...], bytes] | None = None

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        application = web.Application(middlewares=[self._count])
        application.router.add_get("/v1/snapshot", self._snapshot)
        application.router.add_get("/v1/stream", self._stream)
        application.router.add_get("/v1/daemon", self._daemon)
        application.router.add_post("/v1/commands", self._command)
        return application

    @property
    def is_busy(self) -> bool:
        """Whether a command is being carried out."""
        return bool(self._commands)

    def stop(self, reason: str) -> None:
        """End the streams with a goodbye and wake whoever waits in `stopped`."""
        if not self._stopping.is_set():
            self._why = reason
            self._stopping.set()

    async def stopped(self) -> str:
        """Wait until somebody asked kvctld to leave, and return why."""
        await self._stopping.wait()
        return self._why

    async def abandon_commands(self) -> None:
        """Cancel what is still being carried out; its clients get an outcome that says so."""
        for task in self._commands:
            task.cancel()
        await asyncio.gather(*self._commands, return_exceptions=True)

    # --- handlers ------------------------------------------------------------------------------

    @web.middleware
    async def _count(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        with self._attached.request():
            return await handler(request)

    async def _daemon(self, _: web.Request) -> web.Response:
        return _answer(encode(self._describe()))

    async def _snapshot(self, _: web.Request) -> web.Response:
        return _answer(self._line(self._controller.snapshot()))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = await _begin_lines(request)
        with self._attached.panel(request.headers.get(OPERATOR_HEADER)), suppress(ConnectionError):
            async with aclosing(self._changes(until=None)) as changes:
                async for snapshot in changes:
                    await response.write(self._line(snapshot) + b"\n" if snapshot else b"\n")
                    if snapshot:
                        await self._pause(SMALLEST_GAP_S)
            await response.write(encode(Goodbye(self._why)) + b"\n")
        return response

    async def _command(self, request: web.Request) -> web.StreamResponse:
        try:
            command = decode_command(await request.read())
        except KvctlError as error:
            return _answer(encode(Outcome(error.exit_status, str(error))), status=400)
        if isinstance(command, StopDaemon):
            outcome = await self._controller.submit(command)
            # The answer must leave before the sockets close.
            asyncio.get_running_loop().call_soon(self.stop, "stopped by an operator")
            return _answer(encode(outcome))
        before = self._controller.snapshot()
        task = self._begin(command)
        if request.query.get("follow"):
            return await self._follow(request, task, before)
        return _answer(encode(await _outcome_of(task)))

    async def _follow(
        self, request: web.Request, task: asyncio.Task[Outcome], before: Snapshot
    ) -> web.StreamResponse:
        response = await _begin_lines(request)
        with suppress(ConnectionError):
            async with aclosing(self._changes(until=task)) as changes:
                async for snapshot in changes:
                    for event in events_since(before, snapshot) if snapshot else ():
                        await response.write(encode(event) + b"\n")
                    before = snapshot or before
            outcome = await _outcome_of(task)
            for event in events_since(before, self._controller.snapshot()):
                await response.write(encode(event) + b"\n")
            await response.write(encode(outcome) + b"\n")
        return response

    # --- parts ---------------------------------------------------------------------------------

    def _begin(self, command: Command) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(self._controller.submit(command))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)
        return task

    def _line(self, snapshot: Snapshot) -> bytes:
        operators = self._attached.operators
        known = self._encoded
        if known is None or known[0] is not snapshot or known[1] != operators:
            known = (snapshot, operators, encode(replace(snapshot, operators=operators)))
            self._encoded = known
        return known[2]

    async def _changes(
        self, until: "asyncio.Task[Outcome] | None"
    ) -> AsyncGenerator[Snapshot | None, None]:
        """Yield snapshots as they come and None as a heartbeat, until told to stop."""
        feed = aiter(self._controller.subscribe())
        ending = {asyncio.ensure_future(self._stopping.wait())}
        waiting = asyncio.ensure_future(_next(feed))
        try:
            while True:
                watched = {waiting, *ending} | ({until} if until else set())
                done, _ = await asyncio.wait(
                    watched, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED
                )
                if waiting in done:
                    if (snapshot := waiting.result()) is None:
                        return
                    yield snapshot
                    waiting = asyncio.ensure_future(_next(feed))
                elif done:
                    return
                else:
                    yield None
        finally:
            await _cancel(waiting, *ending)
            close = getattr(feed, "aclose", None)
            if close is not None:
                await close()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


async def _outcome_of(task: asyncio.Task[Outcome]) -> Outcome:
    # Shielded: the request may be cancelled with its connection, the command goes on.
    await asyncio.wait({task})
    if task.cancelled():
        return Outcome(1, _GONE)
    error = task.exception()
    if error is not None:
        log.error("a command failed unexpectedly", exc_info=error)
        what = f"{type(error).__name__}: {error}"
        return Outcome(1, f"kvctld failed ({what}); its log has the details")
    return task.result()


async def _next(feed: AsyncIterator[Snapshot]) -> Snapshot | None:
    return await anext(feed, None)


async def _cancel(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _begin_lines(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    return response


def _answer(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
