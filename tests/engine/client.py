"""A plain asynchronous client of the test server, independent of kvctl's own adapters."""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Response:
    """What one `/generate` call returned."""

    output_ids: list[int]
    finish: str
    """finish_reason.type: length, stop or abort."""
    message: str | None
    """finish_reason.message; None unless aborted."""
    retractions: int
    """How often the request went back to the queue."""
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    text: str


@dataclass(frozen=True, slots=True)
class Load:
    """The core of one `/v1/loads` entry."""

    running: int
    queued: int
    used_tokens: int
    token_usage: float


async def until(condition: Callable[[], Awaitable[bool]], what: str, within_s: float = 60) -> None:
    """Return as soon as the condition holds; fail with `what` if it does not in time."""
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline, f"not seen within {within_s:.0f} s: {what}"
        await asyncio.sleep(POLL_S)


class EngineClient:
    """The endpoints that the ground-truth cases need."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def generate(self, prompt: list[int], max_new_tokens: int, rid: str) -> Response:
        """Send one greedy request and wait for all of it."""
        body = {
            "rid": rid,
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": max_new_tokens, "temperature": 0},
        }
        reply = await self.http.post("/generate", json=body)
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        meta = answer["meta_info"]
        return Response(
            output_ids=answer["output_ids"],
            finish=meta["finish_reason"]["type"],
            message=meta["finish_reason"].get("message"),
            retractions=meta.get("num_retractions", 0),
            cached_tokens=meta.get("cached_tokens", 0),
            text=answer["text"],
        )

    def send(self, prompt: list[int], max_new_tokens: int, rid: str) -> asyncio.Task[Response]:
        """Start `generate` without waiting."""
        return asyncio.create_task(self.generate(prompt, max_new_tokens, rid), name=rid)

    async def post(self, path: str, body: dict[str, Any]) -> int:
        """Send a control call; its status."""
        return (await self.http.post(path, json=body)).status_code

    async def abort(self, rid: str) -> None:
        """Abort every request whose rid begins with `rid`."""
        assert await self.post("/abort_request", {"rid": rid}) == 200

    async def flush_cache(self) -> None:
        """Drop the prefix cache, waiting until the server is idle."""
        assert await self.post("/flush_cache?timeout=30", {}) == 200

    async def status_of(self, path: str) -> int:
        """The status of a GET."""
        return (await self.http.get(path)).status_code

    async def load(self) -> Load:
        """What `/v1/loads` says now."""
        entry = (await self.http.get("/v1/loads")).json()["loads"][0]
        return Load(
            running=entry["num_running_reqs"],
            queued=entry["num_waiting_reqs"],
            used_tokens=entry["num_used_tokens"],
            token_usage=entry["token_usage"],
        )

    async def metric(self, name: str) -> float:
        """The sum of one metric's samples, nan if there are none.

        SGLang leaves a counter out of `/metrics` until it first counts.
        """
        text = (await self.http.get("/metrics/")).text
        values = re.findall(rf"^sglang:{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, values)) if values else math.nan

    async def until_load(
        self, holds: Callable[[Load], bool], what: str, within_s: float = 60
    ) -> None:
        """Return as soon as `/v1/loads` shows what is asked for."""

        async def shown() -> bool:
            return holds(await self.load())

        await until(shown, what, within_s)

    async def settle(self) -> None:
        """Leave the server as a new one: not paused, nothing in flight, no cached prefix."""
        await self.post("/continue_generation", {})
        await self.post("/abort_request", {"abort_all": True})
        await self.flush_cache()
