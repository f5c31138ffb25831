"""What kvctl relies on, asked of a real server: one case per behaviour."""

import asyncio

import pytest
from tests.engine.client import EngineClient, Load, Response, until
from tests.engine.server import EngineServer
from tests.engine.tiny_model import BYTES

pytestmark = pytest.mark.engine

RESPONSE_TOKENS = 400  # some two seconds: a starved test still finds the request under way


def ids_of(text: str) -> list[int]:
    return list(text.encode())


def in_flight(tasks: list[asyncio.Task[Response]]) -> list[str]:
    return [task.get_name() for task in tasks if not task.done()]


async def test_greedy_output_varies_depends_on_the_prompt_and_repeats(client: EngineClient) -> None:
    first = await client.generate(ids_of("Janet's ducks lay 16 eggs"), 200, "varies.1")
    other = await client.generate(ids_of("Janet's ducks lay 17 eggs"), 200, "varies.2")
    await client.flush_cache()
    again = await client.generate(ids_of("Janet's ducks lay 16 eggs"), 200, "varies.3")

    assert len(set(first.output_ids)) >= 20
    assert (len(first.output_ids), first.finish) == (200, "length")
    assert max(first.output_ids) < BYTES, "a special token was chosen at temperature 0"
    assert other.output_ids != first.output_ids
    assert again.output_ids == first.output_ids


async def test_thirty_long_requests_hit_the_kv_ceiling_and_are_retracted(
    client: EngineClient, engine: EngineServer
) -> None:
    log_start = engine.log_size()
    sent = [client.send(ids_of(f"pressure {n:02d} " * 8), 900, f"kv-{n:02d}.") for n in range(30)]

    await client.until_load(
        lambda load: load.token_usage > 0.9 and load.queued > 0, "a full pool with a queue"
    )

    async def retracted() -> bool:
        return "KV cache pool is full. Retract requests." in engine.log_text(log_start)

    await until(retracted, "a retraction in the log")
    assert await client.post("/abort_request", {"abort_all": True}) == 200
    responses = await asyncio.gather(*sent)
    assert {response.finish for response in responses} <= {"abort", "length"}
    assert await client.metric("num_retracted_requests_total") > 0


async def abort_midway(client: EngineClient, prompt: list[int], rid: str) -> Response:
    """Abort one request amid three others once a part of its response exists."""
    sent = client.send(prompt, RESPONSE_TOKENS, rid)
    others = [client.send(ids_of(f"neighbour {n}"), RESPONSE_TOKENS, f"n{n}.") for n in range(3)]
    await client.until_load(
        lambda load: load.running == 4 and load.used_tokens > 4 * (len(prompt) + 20),
        "four requests under way",
    )
    await client.abort(rid)
    partial = await sent
    assert {response.finish for response in await asyncio.gather(*others)} == {"length"}
    return partial


@pytest.mark.parametrize("cache", ["warm", "cold"])
async def test_an_aborted_response_continued_from_its_tokens_equals_the_whole(
    client: EngineClient, cache: str
) -> None:
    prompt = ids_of("def has_close_elements(numbers, threshold):")
    whole = await client.generate(prompt, RESPONSE_TOKENS, "whole.")
    partial = await abort_midway(client, prompt, "partial.")

    kept = partial.output_ids
    assert (partial.finish, partial.message) == ("abort", "Aborted")
    assert 0 < len(kept) < RESPONSE_TOKENS
    assert kept == whole.output_ids[: len(kept)]

    if cache == "cold":
        await client.flush_cache()
    rest = await client.generate(prompt + kept, RESPONSE_TOKENS - len(kept), "rest.")
    assert (rest.cached_tokens > len(prompt)) == (cache == "warm")
    assert kept + rest.output_ids == whole.output_ids


async def test_a_retract_pause_stops_every_token_and_changes_no_output(
    client: EngineClient,
) -> None:
    prompts = {f"pause-{n}.": ids_of(f"A robe takes {n} bolts of blue fiber") for n in range(4)}
    wholes = await asyncio.gather(
        *(
            client.generate(prompt, RESPONSE_TOKENS, f"whole-{rid}")
            for rid, prompt in prompts.items()
        )
    )
    await client.flush_cache()

    sent = [client.send(prompt, RESPONSE_TOKENS, rid) for rid, prompt in prompts.items()]
    await client.until_load(
        lambda load: load.running == 4 and load.used_tokens > 4 * 60, "four requests under way"
    )
    assert await client.post("/pause_generation", {"mode": "retract"}) == 200

    async def all_are_queued() -> bool:
        queued = await client.metric("num_queue_reqs")
        return queued == 4 and await client.metric("num_running_reqs") == 0

    await until(all_are_queued, "0 running and 4 queued in /metrics")
    assert await client.status_of("/ready") == 503
    decoded = await client.metric("realtime_tokens_total")
    await asyncio.sleep(0.5)  # long enough for some hundred tokens, were it not paused
    assert await client.metric("realtime_tokens_total") == decoded
    assert in_flight(sent) == list(prompts)

    assert await client.post("/continue_generation", {}) == 200
    responses = await asyncio.gather(*sent)
    assert [r.output_ids for r in responses] == [whole.output_ids for whole in wholes]
    assert min(r.retractions for r in responses) >= 1
    assert await client.status_of("/ready") == 200


async def test_an_abort_hits_every_rid_that_begins_with_the_given_one(
    client: EngineClient,
) -> None:
    rids = ["job-1", "job-10", "xjob-1", "job-2"]
    sent = [client.send(ids_of(f"prefix {rid}"), 900, rid) for rid in rids]
    await client.until_load(lambda load: load.running == 4, "four running requests")

    await client.abort("no-such-request")
    await client.abort("job-1")
    aborted = await asyncio.gather(*sent[:2])
    assert [response.finish for response in aborted] == ["abort", "abort"]
    await client.until_load(lambda load: load.running == 2, "two running requests")
    assert in_flight(sent) == ["xjob-1", "job-2"]


async def test_a_closing_delimiter_keeps_an_abort_to_one_rid(client: EngineClient) -> None:
    sent = [client.send(ids_of(f"closed {rid}"), 900, rid) for rid in ("job-1.", "job-10.")]
    await client.until_load(lambda load: load.running == 2, "two running requests")

    await client.abort("job-1.")
    assert (await sent[0]).finish == "abort"
    await client.until_load(only_one_runs, "one running request")
    assert in_flight(sent) == ["job-10."]


def only_one_runs(load: Load) -> bool:
    return load.running == 1
