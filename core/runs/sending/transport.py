"""One server's /generate and /abort_request over aiohttp.

No cap on connections and no total timeout (both would silently cut a run), TCP keep-alive to
notice a dead host, connections dropped before the server's own keep-alive of 5 s ends. Judging
answers is `kvctl.core.domain.runs.outcomes`.
Source: SGLang 0.5.23 /generate, /abort_request, /model_info.
"""

import asyncio
import json
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import aiohttp
import msgspec

from kvctl.core.ports import GenerateReply, GenerateRequest, TransportFailed
from kvctl.core.runs.sending.token_ids import TokenIds

CONNECT_S = 10.0
_HOWEVER_LONG = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
_AN_ABORT = aiohttp.ClientTimeout(total=15.0, sock_connect=CONNECT_S)
_PROBE_S = 8.0
_KEEPALIVE_S = 4.0
_A_TURN = 6
_IDS = b'"output_ids":['


class _Reply(msgspec.Struct):
    meta_info: dict[str, Any]
    text: str | None = None
    output_ids: msgspec.Raw = msgspec.Raw(b"[]")


class _SlowReply(msgspec.Struct):
    meta_info: dict[str, Any]
    text: str | None = None
    output_ids: list[int] = msgspec.field(default_factory=list)


_CUT = -7640891576956012809
"""Stands where the ids were cut out: a number that no server sends."""


class _RestOfReply(msgspec.Struct):
    meta_info: dict[str, Any]
    output_ids: Literal[-7640891576956012809]
    text: str | None = None


_decode_reply = msgspec.json.Decoder(_Reply).decode
_decode_rest = msgspec.json.Decoder(_RestOfReply).decode


class AiohttpGenerator:
    """Sends requests of the run to one server."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        """Prepare for a server; nothing is sent yet."""
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._read = 0
        """Answers read in this turn of the event loop."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Answers that came and are read in later turns, oldest first."""

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        """Send one request and wait for its end, however long. Raises TransportFailed."""
        body: dict[str, object] = {"rid": request.rid, "sampling_params": dict(request.sampling)}
        if request.input_ids is not None:
            body["input_ids"] = request.input_ids
        else:
            body["text"] = request.text
        status, answer = await self._post("/generate", body, _HOWEVER_LONG)
        await self._wait_turn()
        return _as_reply(status, answer, request.vocabulary)

    async def abort(self, rid: str) -> None:
        """Abort one request. Raises TransportFailed."""
        status, answer = await self._post("/abort_request", {"rid": rid}, _AN_ABORT)
        if status != 200:
            raise TransportFailed(f"abort: HTTP {status} {_error_text(answer)}", sent=True)

    async def is_alive(self) -> bool:
        """Ask /model_info, which the front end answers without the scheduler."""
        timeout = aiohttp.ClientTimeout(total=_PROBE_S)
        try:
            async with self._open().get(f"{self.url}/model_info", timeout=timeout) as response:
                await response.read()
                return response.status < 500
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _wait_turn(self) -> None:
        """Let no more than a few answers be read in one turn of the loop, however many came.

        Reading and writing down 4,000 tokens takes a third of a millisecond; everything else
        waits for it. A turn costs, too, so that it reads more than one.
        """
        if not self._read:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        if self._read < _A_TURN:
            self._read += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _begin_turn(self) -> None:
        self._read = 0
        while self._waiting and self._read < _A_TURN:
            turn = self._waiting.popleft()
            if not turn.done():  # its request was cut
                turn.set_result(None)
                self._read += 1
        if self._read:
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEPALIVE_S, socket_factory=_keepalive_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                auto_decompress=True,
                trust_env=False,
            )
        return self._session

    async def _post(
        self, path: str, body: dict[str, object], timeout: aiohttp.ClientTimeout
    ) -> tuple[int, bytes]:
        data = msgspec.json.encode(body)
        try:
            async with self._open().post(self.url + path, data=data, timeout=timeout) as response:
                return response.status, await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise TransportFailed(f"no connection to {self.url}: {error}", sent=False) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            words = str(error) or type(error).__name__
            raise TransportFailed(f"{self.url} broke the connection: {words}", sent=True) from error


def _keepalive_socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = info
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _as_reply(status: int, answer: bytes, vocabulary: int | None) -> GenerateReply:
    if status != 200:
        return GenerateReply(status, None, (), None, {}, _error_text(answer))
    reply, ids = _within(answer, vocabulary) or _read(answer)
    finish = reply.meta_info.get("finish_reason")
    finish = finish if isinstance(finish, dict) else None
    return GenerateReply(status, reply.text, ids, finish, reply.meta_info, None)


def _within(answer: bytes, vocabulary: int | None) -> tuple[_RestOfReply, TokenIds] | None:
    """Read an answer as SGLang spells it whose ids are all in the vocabulary; None: another.

    The ids are most of the answer: cut out first, they are gone over once instead of three times.
    """
    if vocabulary is None or (begin := answer.rfind(_IDS)) < 0:
        return None
    begin += len(_IDS) - 1
    end = answer.find(b"]", begin) + 1
    try:
        rest = _decode_rest(b"%b%d%b" % (answer[:begin], _CUT, answer[end:]))
        return rest, TokenIds.below(answer[begin:end], vocabulary)
    except (msgspec.MsgspecError, ValueError):
        return None


def _read(answer: bytes) -> tuple[_Reply | _SlowReply, Sequence[int]]:
    try:
        reply = _decode_reply(answer)
        return reply, TokenIds(bytes(reply.output_ids))
    except (msgspec.MsgspecError, ValueError):
        slow = _decode_slowly(answer)
        return slow, tuple(slow.output_ids)


def _decode_slowly(answer: bytes) -> _SlowReply:
    """Read what the strict decoder refuses, such as half a surrogate pair in the text."""
    try:
        return msgspec.convert(json.loads(answer), _SlowReply)
    except (ValueError, msgspec.MsgspecError) as error:
        raise TransportFailed(
            f"the answer is not what /generate gives: {error}", sent=True
        ) from error


def _error_text(answer: bytes) -> str:
    """Return the message of an error body in any of its three shapes."""
    text = answer.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:500]
    if isinstance(found, dict):
        error = found.get("error")
        if isinstance(error, dict):
            error = error.get("message")
        message = error if isinstance(error, str) and error else found.get("message")
        if isinstance(message, str) and message:
            return message
    return " ".join(text.split())[:500]
