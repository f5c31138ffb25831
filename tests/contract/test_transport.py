"""The transport against a real HTTP server on the loopback: what failed is told truly."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from kvctl.core.ports import GenerateRequest, TransportFailed
from kvctl.core.runs.sending.transport import AiohttpGenerator

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST = GenerateRequest("run-00000001-00.", None, (1, 2, 3), {"max_new_tokens": 4})


class Server:
    """An HTTP server whose answer a test chooses."""

    def __init__(self) -> None:
        self.answer: Answer = self.good
        self.bodies: list[dict[str, object]] = []
        self.headers: list[dict[str, str]] = []
        self.open = 0
        self.peak = 0
        self.url = ""

    async def good(self, request: web.Request) -> web.StreamResponse:
        meta = {"id": "x", "finish_reason": {"type": "length", "length": 4}, "prompt_tokens": 3}
        return web.json_response({"text": "abcd", "output_ids": [4, 5, 6, 7], "meta_info": meta})

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.json() if request.can_read_body else {})
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            return await self.answer(request)
        finally:
            self.open -= 1


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def generator(server: Server) -> AsyncIterator[AiohttpGenerator]:
    made = AiohttpGenerator(server.url)
    yield made
    await made.close()


async def test_a_request_carries_ids_sampling_and_rid(
    server: Server, generator: AiohttpGenerator
) -> None:
    reply = await generator.generate(REQUEST)
    assert server.bodies == [
        {"rid": REQUEST.rid, "sampling_params": {"max_new_tokens": 4}, "input_ids": [1, 2, 3]}
    ]
    assert (reply.status, reply.output_ids, reply.text) == (200, (4, 5, 6, 7), "abcd")
    assert reply.finish == {"type": "length", "length": 4}


async def test_text_goes_as_text(server: Server, generator: AiohttpGenerator) -> None:
    await generator.generate(GenerateRequest("r.", "π ask", None, {}))
    assert server.bodies == [{"rid": "r.", "sampling_params": {}, "text": "π ask"}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": "too long"}, "too long"),
        ({"error": {"message": "Duplicate request ID detected: x"}}, "Duplicate request ID"),
        (
            {"object": "error", "message": "The request queue is full.", "code": 503},
            "queue is full",
        ),
        ("plain words", "plain words"),
    ],
)
async def test_an_error_body_of_any_shape_gives_its_message(
    server: Server, generator: AiohttpGenerator, body: object, said: str
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=400, text=text)

    server.answer = refuse
    reply = await generator.generate(REQUEST)
    assert reply.status == 400 and said in (reply.error or "")
    assert reply.output_ids == () and reply.finish is None


async def test_a_full_queue_is_a_reply_not_a_failure(
    server: Server, generator: AiohttpGenerator
) -> None:
    async def full(request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "error", "message": "full"}, status=503)

    server.answer = full
    assert (await generator.generate(REQUEST)).status == 503


async def test_a_refused_connection_was_not_sent(server: Server) -> None:
    nobody = AiohttpGenerator("http://127.0.0.1:9")
    with pytest.raises(TransportFailed) as caught:
        await nobody.generate(REQUEST)
    assert caught.value.sent is False
    assert not await nobody.is_alive()
    await nobody.close()


async def test_a_connection_that_breaks_mid_flight_was_sent(
    server: Server, generator: AiohttpGenerator
) -> None:
    async def drop(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    server.answer = drop
    with pytest.raises(TransportFailed) as caught:
        await generator.generate(REQUEST)
    assert caught.value.sent is True and len(server.bodies) == 1


async def test_an_answer_cut_in_its_middle_was_sent(
    server: Server, generator: AiohttpGenerator
) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"text": "ab')
        assert request.transport is not None
        request.transport.abort()
        return response

    server.answer = half
    with pytest.raises(TransportFailed) as caught:
        await generator.generate(REQUEST)
    assert caught.value.sent is True


@pytest.mark.parametrize("body", ["<html>", '{"text": "no meta"}', "[1, 2]"])
async def test_an_answer_that_is_not_generates_is_a_failure_that_was_sent(
    server: Server, generator: AiohttpGenerator, body: str
) -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body)

    server.answer = odd
    with pytest.raises(TransportFailed, match="not what /generate gives") as caught:
        await generator.generate(REQUEST)
    assert caught.value.sent is True


async def test_half_a_surrogate_pair_in_an_answer_is_read(
    server: Server, generator: AiohttpGenerator
) -> None:
    async def lone(request: web.Request) -> web.StreamResponse:
        meta = '"meta_info": {"finish_reason": {"type": "stop"}}'
        return web.Response(text='{"text": "lone \\ud83d end", "output_ids": [1], ' + meta + "}")

    server.answer = lone
    reply = await generator.generate(REQUEST)
    assert reply.text == "lone \ud83d end" and reply.output_ids == (1,)


async def test_no_cap_of_a_hundred_connections(server: Server, generator: AiohttpGenerator) -> None:
    all_here = asyncio.Event()

    async def together(request: web.Request) -> web.StreamResponse:
        if server.open == 150:
            all_here.set()
        await all_here.wait()
        return await server.good(request)

    server.answer = together
    requests = [GenerateRequest(f"r-{n:03d}.", None, (1,), {}) for n in range(150)]
    await asyncio.wait_for(asyncio.gather(*map(generator.generate, requests)), 20)
    assert server.peak == 150


def all_at_once(server: Server, count: int) -> None:
    """The server answers when it has that many requests, all of them together."""
    together = asyncio.Barrier(count)

    async def hold(request: web.Request) -> web.StreamResponse:
        await together.wait()
        return await server.good(request)

    server.answer = hold


async def test_answers_that_come_together_are_read_a_few_in_a_turn_of_the_loop(
    server: Server, generator: AiohttpGenerator
) -> None:
    all_at_once(server, 60)
    asked = [asyncio.ensure_future(generator.generate(REQUEST)) for _ in range(60)]
    turns, read = [], 0
    async with asyncio.timeout(20):
        while read < 60:
            await asyncio.sleep(0)
            turns.append(sum(request.done() for request in asked) - read)
            read += turns[-1]
    assert 1 < max(turns) <= 6


async def test_requests_cut_while_their_answers_wait_do_not_stop_the_others(
    server: Server, generator: AiohttpGenerator
) -> None:
    all_at_once(server, 60)
    asked = [asyncio.ensure_future(generator.generate(REQUEST)) for _ in range(60)]
    async with asyncio.timeout(20):
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        cut = [request for request in asked if not request.done()][:20]
        for request in cut:
            request.cancel()
        left = [request for request in asked if request not in cut]
        found = await asyncio.gather(*left)
    assert [reply.status for reply in found] == [200] * len(left)


async def test_an_abort_names_one_id_and_a_refusal_is_a_failure(
    server: Server, generator: AiohttpGenerator
) -> None:
    async def ok(request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if request.path == "/abort_request" else 404)

    server.answer = ok
    await generator.abort("run-1.")
    assert server.bodies == [{"rid": "run-1."}]

    async def denied(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "Unauthorized"}, status=401)

    server.answer = denied
    with pytest.raises(TransportFailed, match="HTTP 401 Unauthorized"):
        await generator.abort("run-1.")


async def test_a_key_is_sent_and_never_told(server: Server) -> None:
    keyed = AiohttpGenerator(server.url, api_key="s3cret")
    await keyed.generate(REQUEST)
    assert server.headers[0]["Authorization"] == "Bearer s3cret"
    gone = AiohttpGenerator("http://127.0.0.1:9", api_key="s3cret")
    with pytest.raises(TransportFailed) as caught:
        await gone.generate(REQUEST)
    assert "s3cret" not in str(caught.value) and "s3cret" not in repr(gone)
    await keyed.close()
    await gone.close()


async def test_a_server_that_answers_with_an_error_page_is_not_alive(
    server: Server, generator: AiohttpGenerator
) -> None:
    async def starting(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    assert await generator.is_alive()
    server.answer = starting
    assert not await generator.is_alive()
