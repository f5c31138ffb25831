"""/generate of the simulated server: what it accepts, refuses and answers.

Source: SGLang 0.5.23 entrypoints/api_contract.py, http_server.py, managers/tokenizer_manager.py;
the shapes of errors were seen on a real server.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kvctl.core.sim.answers import answer_to, ids_of_text
from kvctl.core.sim.engine import EngineRequest, Outcome
from kvctl.core.sim.logfile import ServerLog
from kvctl.core.sim.model import PoolRequest
from kvctl.core.sim.replies import Front, finish_reason, generate_reply

DEFAULT_NEW_TOKENS = 128
DISCONNECT_TICK_S = 4.0
"""Seconds between two looks at a waiting client. Source: SGLANG_REQUEST_STATE_WAIT_TIMEOUT."""
NEVER = 1 << 40
SAMPLING_FIELDS = (
    *("max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k"),
    *("min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens"),
    *("n", "json_schema", "regex", "ebnf", "structural_tag", "ignore_eos", "skip_special_tokens"),
    *("spaces_between_special_tokens", "no_stop_trim", "custom_params", "stream_interval"),
    *("logit_bias", "sampling_seed"),
)


class Refused(Exception):
    """A request is answered with an error."""

    def __init__(self, status: int, body: Mapping[str, object]) -> None:
        """Keep the HTTP status and the JSON body."""
        super().__init__(status)
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a request."""

    rid: str
    input_ids: Sequence[int]
    sampling: Mapping[str, Any]


class GenerateEndpoint:
    """Takes requests, waits for the engine and words the replies."""

    def __init__(self, front: Front, log: ServerLog, speed: float) -> None:
        """Serve this front; client checks run on simulated seconds."""
        self._front = front
        self._log = log
        self._tick_s = max(0.05, DISCONNECT_TICK_S / speed)
        self._chunk_s = max(0.02, 0.25 / speed)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Answer POST /generate."""
        try:
            body = await _json_body(request)
            items, is_list = self._items(body)
            taken = self._take(items, bool(body.get("stream")), _dp_rank(body))
            for one in taken:
                await self._enter(one, request, taken)
            if body.get("stream"):
                return await self._stream(request, taken[0])
            replies = [await self._wait(one, request) for one in taken]
        except Refused as refusal:
            return web.json_response(refusal.body, status=refusal.status)
        return _json(replies if is_list else replies[0])

    # -- taking a request ------------------------------------------------------------------

    def _items(self, body: Mapping[str, Any]) -> tuple[list[Item], bool]:
        prompts, is_batch = _prompts(body)
        sampling = body.get("sampling_params") or {}
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        for one in each:
            _check_sampling(one)
        copies = int(each[0].get("n") or 1) if each else 1
        rids = self._rids(body.get("rid"), len(prompts), is_batch, copies)
        items = [
            Item(rids[at * copies + copy], ids, each[at])
            for at, ids in enumerate(prompts)
            for copy in range(copies)
        ]
        for item in items:
            self._check_length(item)
        return items, is_batch or copies > 1

    def _rids(self, given: object, count: int, is_batch: bool, copies: int) -> list[str]:
        fresh = self._front.engine.fresh_rid
        if copies > 1 or given is None:  # with n > 1 a given id is not kept
            return [fresh() for _ in range(count * copies)]
        if isinstance(given, list):
            if len(given) != count:
                raise _front_error("The length of rid should match the number of prompts")
            return [str(rid) for rid in given]
        return [f"{given}_{at}" for at in range(count)] if is_batch else [str(given)]

    def _check_length(self, item: Item) -> None:
        length, context = len(item.input_ids), self._front.context_tokens
        wanted = _max_new_tokens(item)
        if length >= context:
            raise _front_error(
                f"The input ({length} tokens) is longer than the model's context length "
                f"({context} tokens)."
            )
        if length > self._front.most_input_tokens:
            raise _front_error(
                f"Input length ({length} tokens) exceeds the maximum allowed length "
                f"({self._front.most_input_tokens} tokens). Use a shorter input or enable "
                "--allow-auto-truncate."
            )
        if length + wanted > context:
            raise _front_error(
                f"Requested token count exceeds the model's maximum context length of {context} "
                f"tokens. You requested a total of {length + wanted} tokens: {length} tokens from "
                f"the input messages and {wanted} tokens for the completion. Please reduce the "
                "number of tokens in the input messages or the completion to fit within the limit."
            )

    def _take(
        self, items: Sequence[Item], stream: bool, dp_rank: int | None
    ) -> list[EngineRequest]:
        engine = self._front.engine
        rids = [item.rid for item in items]
        for rid in rids:
            if rid in engine.requests or rids.count(rid) > 1:
                raise _front_error(f"Duplicate request ID detected: {rid}")
        return [self._take_one(item, stream, dp_rank) for item in items]

    def _take_one(self, item: Item, stream: bool, dp_rank: int | None) -> EngineRequest:
        answer = answer_to(item.input_ids, self._front.engine.laws)
        length = len(item.input_ids)
        room = self._front.engine.limits.capacity_tokens - length - 2
        request = PoolRequest(
            rid=item.rid,
            prompt_tokens=length,
            max_new_tokens=max(1, min(_max_new_tokens(item), room)),
            stop_after=NEVER if item.sampling.get("ignore_eos") else max(1, answer.left_tokens),
            arrived_at=self._front.engine.clock.monotonic(),
        )
        return self._front.engine.take(answer, request, stream, dp_rank)

    # -- waiting ---------------------------------------------------------------------------

    async def _enter(
        self, one: EngineRequest, request: web.Request, together: Sequence[EngineRequest]
    ) -> None:
        entering = asyncio.ensure_future(self._front.engine.enter(one))
        while not entering.done():
            await asyncio.wait({entering}, timeout=self._tick_s)
            if not entering.done() and _is_gone(request):
                entering.cancel()
                for other in together:
                    self._drop(other)

    async def _wait(self, one: EngineRequest, request: web.Request) -> dict[str, Any]:
        while not one.done.done():
            await asyncio.wait({one.done}, timeout=self._tick_s)
            if not one.done.done() and _is_gone(request):
                self._drop(one)
        outcome = one.done.result()
        if outcome.reason in ("queue_full", "out_of_memory"):
            raise _status_error(outcome)
        return generate_reply(self._front, one, outcome)

    def _drop(self, one: EngineRequest) -> None:
        self._log.main(
            "[http_server] Error: Request is disconnected from the client side (type 1). "
            f"Abort request obj.rid={one.rid!r}"
        )
        self._front.engine.forget(one)

    async def _stream(self, request: web.Request, one: EngineRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sent = 0
        try:
            while not one.done.done():
                await asyncio.wait({one.done}, timeout=self._chunk_s)
                if _is_gone(request):
                    raise ConnectionResetError
                tokens = self._front.engine.output_tokens(one)
                if not one.done.done() and tokens > sent:
                    sent = tokens
                    await _send_chunk(response, generate_reply(self._front, one, None))
            await _send_chunk(response, generate_reply(self._front, one, one.done.result()))
            await response.write(b"data: [DONE]\n\n")
        except ConnectionResetError:
            self._front.engine.forget(one)
        return response


async def _send_chunk(response: web.StreamResponse, reply: Mapping[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(reply, separators=(",", ":")).encode() + b"\n\n")


def _json(body: object) -> web.Response:
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return web.Response(body=text.encode(), content_type="application/json")


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _json_body(request: web.Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise _bad_json(str(error)) from None
    if not isinstance(body, dict):
        raise _bad_json("The body is not an object.")
    return body


def _prompts(body: Mapping[str, Any]) -> tuple[list[Sequence[int]], bool]:
    ids, text = body.get("input_ids"), body.get("text")
    if isinstance(ids, list) and ids and all(isinstance(one, list) for one in ids):
        return list(ids), True
    if isinstance(ids, list) and ids and all(isinstance(one, int) for one in ids):
        return [ids], False
    if isinstance(text, str):
        return [ids_of_text(text) or [0]], False
    if isinstance(text, list) and text and all(isinstance(one, str) for one in text):
        return [ids_of_text(one) or [0] for one in text], True
    if ids is None and text is None:
        raise Refused(400, {"error": "Either text, input_ids or input_embeds should be provided."})
    raise _bad_json("text or input_ids has the wrong type")


def _check_sampling(sampling: object) -> None:
    if not isinstance(sampling, dict):
        raise _bad_json("sampling_params is not an object")
    for name in sampling:
        if name not in SAMPLING_FIELDS:
            listed = ", ".join(f"`{known}`" for known in SAMPLING_FIELDS)
            text = f"unknown field `{name}`, expected one of {listed}"
            raise Refused(400, {"error": text})
    wanted = sampling.get("max_new_tokens", DEFAULT_NEW_TOKENS)
    if wanted is not None and (not isinstance(wanted, int) or wanted < 0):
        raise _front_error(f"max_new_tokens must be at least 0, got {wanted}.")


def _dp_rank(body: Mapping[str, Any]) -> int | None:
    """Return the DP rank that a request asks for. Source: io_struct.py GenerateReqInput."""
    wanted = body.get("routed_dp_rank", body.get("data_parallel_rank"))
    return wanted if isinstance(wanted, int) and not isinstance(wanted, bool) else None


def _max_new_tokens(item: Item) -> int:
    wanted = item.sampling.get("max_new_tokens")
    return DEFAULT_NEW_TOKENS if wanted is None else int(wanted)


def _front_error(message: str) -> Refused:
    return Refused(400, {"error": {"message": message}})


def _bad_json(message: str) -> Refused:
    body = {"object": "error", "message": message, "type": "BadRequest", "param": None, "code": 400}
    return Refused(400, body)


def _status_error(outcome: Outcome) -> Refused:
    reason = finish_reason(outcome)
    status = int(str(reason["status_code"]))
    body = {
        "object": "error",
        "message": reason["message"],
        "type": str(status),
        "param": None,
        "code": status,
    }
    return Refused(status, body)
