"""A server of the run as a fake: deterministic answers on a test's clock, and every failure."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvctl.core.clock import Clock
from kvctl.core.ports import GenerateReply, GenerateRequest, TransportFailed

VOCABULARY = 1000


def next_token(prefix: list[int]) -> int:
    """What the fake model says after a prefix: it hangs on all of it."""
    seed = len(prefix)
    for token in prefix[-8:]:
        seed = (seed * 31 + token) % 1_000_003
    return (seed + sum(prefix)) % VOCABULARY


def full_answer(prompt: list[int], length: int) -> list[int]:
    """The uninterrupted answer to a prompt."""
    prefix = list(prompt)
    for _ in range(length):
        prefix.append(next_token(prefix))
    return prefix[len(prompt) :]


def ids_of(request: GenerateRequest) -> list[int]:
    if request.input_ids is not None:
        return list(request.input_ids)
    return list((request.text or "").encode())


@dataclass
class FakeGenerator:
    """Implements `kvctl.core.ports.Generator`; every request takes tokens / speed seconds."""

    clock: Clock
    url: str = "http://fake:1"
    speed: float = 10.0
    """Tokens per second of one request."""
    length: Callable[[GenerateRequest], int] | None = None
    """Tokens of an answer; None: max_new_tokens, ended by the limit."""
    is_up: bool = True
    is_deaf: bool = False
    """Aborts are accepted and have no effect."""
    scripted: list[GenerateReply | TransportFailed] = field(default_factory=list)
    """Given out first, one a request, at once."""
    judge: Callable[[GenerateRequest], GenerateReply | None] = lambda request: None
    """A reply to give at once to a request, or None."""
    requests: list[GenerateRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    probes: int = 0
    peak: int = 0
    running: dict[str, "asyncio.Future[str]"] = field(default_factory=dict)
    is_closed: bool = False

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        if not self.is_up:
            raise TransportFailed("connection refused", sent=False)
        self.requests.append(request)
        if request.rid in self.running:
            return reply_error(400, f"Duplicate request ID detected: {request.rid}")
        if self.scripted:
            came = self.scripted.pop(0)
            if isinstance(came, TransportFailed):
                raise came
            return came
        if (given := self.judge(request)) is not None:
            return given
        return await self._decode(request)

    async def _decode(self, request: GenerateRequest) -> GenerateReply:
        limit = int(str(request.sampling.get("max_new_tokens", 128)))
        wanted = min(limit, self.length(request)) if self.length else limit
        finish = "length" if wanted == limit and not self.length else "stop"
        end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.running[request.rid] = end
        self.peak = max(self.peak, len(self.running))
        started = self.clock.monotonic()
        timer = asyncio.ensure_future(self.clock.sleep(wanted / self.speed))
        both: list[asyncio.Future[Any]] = [timer, end]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            self.running.pop(request.rid, None)
        how = end.result() if end.done() else finish
        if how == "killed":
            raise TransportFailed("the connection broke", sent=True)
        made = wanted
        if how == "abort":
            made = min(wanted, int((self.clock.monotonic() - started) * self.speed))
        return reply_ok(request, made, how)

    async def abort(self, rid: str) -> None:
        if not self.is_up:
            raise TransportFailed("connection refused", sent=False)
        self.aborted.append(rid)
        if self.is_deaf:
            return
        for running, end in list(self.running.items()):
            if running.startswith(rid) and not end.done():
                end.set_result("abort")

    async def is_alive(self) -> bool:
        self.probes += 1
        return self.is_up

    async def close(self) -> None:
        self.is_closed = True

    def kill(self) -> None:
        """The server process dies: every connection breaks, new ones are refused."""
        self.is_up = False
        for end in self.running.values():
            if not end.done():
                end.set_result("killed")

    def abort_everything(self) -> None:
        """Somebody else aborts all requests."""
        for end in self.running.values():
            if not end.done():
                end.set_result("abort")


def reply_ok(request: GenerateRequest, tokens: int, how: str) -> GenerateReply:
    output = full_answer(ids_of(request), tokens)
    finish: dict[str, object] = {"type": how}
    if how == "abort":
        finish |= {"message": "Aborted", "status_code": None}
    meta = {"id": request.rid, "prompt_tokens": len(ids_of(request)), "cached_tokens": 0}
    text = "".join(chr(97 + token % 26) for token in output)
    return GenerateReply(200, text, tuple(output), finish, meta, None)


def reply_error(status: int, error: str) -> GenerateReply:
    return GenerateReply(status, None, (), None, {}, error)
