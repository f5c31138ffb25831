"""The panel's line to kvctld over its Unix socket, restored by itself.

After a crash of kvctld the feed starts a new one; after a goodbye (an operator stopped it, it was
idle) it only waits until somebody does.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import httpx

from kvctl.core.clock import Clock, RealClock
from kvctl.core.controller.commands import Command, Outcome
from kvctl.core.daemon.client import ANSWER_S, CONNECT_S, SILENCE_S
from kvctl.core.daemon.feed import FeedLost
from kvctl.core.daemon.wire import OPERATOR_HEADER, Goodbye, decode, decode_any, encode_command
from kvctl.core.domain.errors import DaemonUnreachable, KvctlError
from kvctl.core.domain.snapshot import Snapshot

RETRY_S = 1.0


class SocketFeed:
    """The feed over kvctld's Unix socket."""

    def __init__(
        self,
        socket: Path,
        operator: str,
        revive: Callable[[], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Attach to `socket` as `operator`.

        Args:
            socket: kvctld's socket.
            operator: The name shown to other panels.
            revive: Starts kvctld after a crash (blocking, run in a thread); None: only wait.
            clock: Times the retries.
        """
        self._operator = operator
        self._revive = revive
        self._clock = clock or RealClock()
        self._socket = socket
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket)),
            base_url="http://kvctld",
            trust_env=False,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
        )

    async def snapshots(self) -> AsyncGenerator[Snapshot | FeedLost, None]:
        """Yield pictures as they change, and FeedLost where they stopped; never ends or raises."""
        is_welcome = True
        while True:
            try:
                async for content in self._stream():
                    is_welcome = not isinstance(content, Goodbye)
                    yield FeedLost(content.reason) if isinstance(content, Goodbye) else content
                if is_welcome:
                    yield FeedLost("kvctld broke off")
            except KvctlError as error:
                yield FeedLost(str(error))
            await self._clock.sleep(RETRY_S)
            if is_welcome and (problem := await self._revived()):
                yield FeedLost(problem)

    async def submit(self, command: Command) -> Outcome:
        """Carry out a command to its end; what goes wrong is in the outcome."""
        try:
            answer = await self._http.post(
                "/v1/commands",
                content=encode_command(command),
                timeout=httpx.Timeout(None, connect=CONNECT_S),
            )
            return decode(answer.content, Outcome)
        except httpx.HTTPError as error:
            lost = self._unreachable(error)
            return Outcome(lost.exit_status, str(lost))
        except KvctlError as error:
            return Outcome(error.exit_status, str(error))

    async def close(self) -> None:
        """Let go of the connection; kvctld and its commands go on."""
        await self._http.aclose()

    async def _stream(self) -> AsyncIterator[Snapshot | Goodbye]:
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=SILENCE_S)
        headers = {OPERATOR_HEADER: self._operator}
        try:
            async with self._http.stream(
                "GET", "/v1/stream", headers=headers, timeout=timeout
            ) as got:
                async for line in got.aiter_lines():
                    content = decode_any(line.encode()) if line else None
                    if isinstance(content, Snapshot | Goodbye):
                        yield content
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _revived(self) -> str | None:
        if self._revive is None:
            return None
        try:
            await asyncio.to_thread(self._revive)
        except KvctlError as error:
            return str(error)
        return None

    def _unreachable(self, error: httpx.HTTPError) -> DaemonUnreachable:
        what = str(error) or type(error).__name__
        return DaemonUnreachable(f"kvctld does not answer at {self._socket} ({what})")
