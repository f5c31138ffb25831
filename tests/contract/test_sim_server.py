"""The simulated server answers as SGLang 0.5.23 was recorded to answer."""

import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes.sim_server import SimServer, sim_server, until

from kvctl.core.sim.answers import EOS_ID

DATA = Path(__file__).parent.parent / "data" / "sglang-0.5.23"
LONG = {"max_new_tokens": 16_000, "ignore_eos": True}  # four real seconds at this speed
MODEL_DEPENDENT = {"embedding"}  # of the tiny model only


def recorded(name: str) -> Any:
    return json.loads((DATA / name).read_text("utf-8"))


def recorded_call(request: str, which: int = 0) -> Any:
    calls = [call for call in recorded("calls.json") if call["request"] == request]
    return calls[which]


def keys(value: object) -> object:
    """Return the shape of a JSON value: its keys all the way down, lists by their first item."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value and isinstance(value[0], dict) else []
    return None


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimServer]:
    flags = ("--enable-metrics", "--max-total-tokens", "60000", "--tp-size", "8")
    more = ("--mem-fraction-static", "0.88", "--schedule-conservativeness", "0.3")
    with sim_server(tmp_path_factory.mktemp("sim"), *flags, *more) as server:
        yield server


@pytest.fixture
def server(shared: SimServer) -> Iterator[SimServer]:
    """Hand out the shared server and leave it as it was: running, idle, uncapped."""
    yield shared
    shared.http.post("/continue_generation", json={})
    shared.http.post("/abort_request", json={"abort_all": True})
    most = loads(shared)["max_running_requests"]
    wanted = {"server_args": {"pp_max_micro_batch_size": most}}
    assert shared.http.post("/set_internal_state", json=wanted).json() == [True]
    until("idle", lambda: loads(shared)["num_running_reqs"] == 0)


def loads(server: SimServer) -> dict[str, Any]:
    return dict(server.http.get("/v1/loads").json()["loads"][0])


def generate(server: SimServer, **body: Any) -> httpx.Response:
    body.setdefault("input_ids", server.ids())
    return server.http.post("/generate", json=body)


class Background:
    """Requests that wait in threads, as a client with slots has them."""

    def __init__(self, server: SimServer) -> None:
        self._server = server
        self._pool = ThreadPoolExecutor(64)

    def send(self, rid: str, number: int = 0, **body: Any) -> "Future[httpx.Response]":
        body.setdefault("sampling_params", LONG)
        body["input_ids"] = self._server.ids(number=number)
        return self._pool.submit(generate, self._server, rid=rid, **body)


@pytest.fixture
def background(server: SimServer) -> Background:
    return Background(server)


def active_generates(server: SimServer) -> float:
    gauge = families(server.http.get("/metrics").text)["sglang:http_requests_active"]
    return sum(float(s.value) for s in gauge.samples if s.labels["endpoint"] == "/generate")


def wait_running(server: SimServer, count: int) -> None:
    until(f"{count} running", lambda: loads(server)["num_running_reqs"] == count)


# -- shapes of what is read ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["v1_loads_idle.json", "v1_loads_pressure.json"])
def test_loads_have_the_recorded_keys(server: SimServer, name: str) -> None:
    assert keys(server.http.get("/v1/loads").json()) == keys(recorded(name))


def test_server_info_has_the_recorded_keys(server: SimServer) -> None:
    ours, theirs = server.http.get("/server_info").json(), recorded("server_info.json")
    assert set(theirs) - set(ours) == set()
    ours_state, theirs_state = ours["internal_states"][0], theirs["internal_states"][0]
    assert set(theirs_state) - set(ours_state) == set()
    assert keys(ours_state["memory_usage"]) == keys(theirs_state["memory_usage"])
    assert ours["max_total_num_tokens"] == 60_000
    assert ours["pp_max_micro_batch_size"] is None
    assert ours_state["pp_max_micro_batch_size"] == 2_048
    assert ours["version"] == theirs["version"]


def test_model_info_has_the_recorded_keys(server: SimServer) -> None:
    theirs = json.loads(recorded_call("GET /model_info")["response"])
    assert set(server.http.get("/model_info").json()) == set(theirs) - MODEL_DEPENDENT


def test_models_have_the_recorded_keys(server: SimServer) -> None:
    theirs = json.loads(recorded_call("GET /v1/models")["response"])
    assert keys(server.http.get("/v1/models").json()) == keys(theirs)


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_have_the_recorded_names_types_and_labels(
    server: SimServer, background: Background
) -> None:
    generate(server, sampling_params={"max_new_tokens": 5})
    ours = families(server.http.get("/metrics").text)
    theirs = families((DATA / "metrics_pressure.txt").read_text("utf-8"))
    assert set(ours) <= set(theirs) | {"sglang:num_aborted_requests"}
    for name, family in ours.items():
        if name in theirs:
            assert family.type == theirs[name].type, name
            known = {label for sample in theirs[name].samples for label in sample.labels}
            assert set(family.samples[0].labels) <= known, name
    for name in ("num_running_reqs", "token_usage", "gen_throughput", "num_queue_reqs"):
        assert f"sglang:{name}" in ours


def test_metrics_count_tokens_and_omit_retractions_before_the_first(server: SimServer) -> None:
    before = families(server.http.get("/metrics").text)
    generate(server, sampling_params={"max_new_tokens": 101, "ignore_eos": True})
    after = families(server.http.get("/metrics").text)

    def decoded(seen: dict[str, Any]) -> float:
        samples = seen["sglang:realtime_tokens"].samples
        return float(next(s.value for s in samples if s.labels["mode"] == "decode"))

    assert decoded(after) - decoded(before) == 100  # the first token comes from prefill
    assert "sglang:num_retracted_requests" not in after


def test_an_unknown_path_is_404_as_fastapi_words_it(server: SimServer) -> None:
    theirs = recorded_call("GET /get_load")
    ours = server.http.get("/get_load")
    assert (ours.status_code, ours.text) == (theirs["status"], json.dumps({"detail": "Not Found"}))


# -- /generate -----------------------------------------------------------------------------


def test_a_reply_has_the_recorded_keys_and_ends_at_max_new_tokens(server: SimServer) -> None:
    theirs = json.loads(recorded_call("POST /generate")["response"])
    reply = generate(server, sampling_params={"max_new_tokens": 24}).json()
    assert set(reply) == set(theirs)
    assert set(reply["meta_info"]) == set(theirs["meta_info"])
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 24}
    assert len(reply["output_ids"]) == reply["meta_info"]["completion_tokens"] == 24


def test_an_answer_that_ends_by_itself_ends_in_eos(server: SimServer) -> None:
    reply = generate(server, rid="stop-1.", sampling_params={"max_new_tokens": 16_000}).json()
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS_ID}
    assert reply["output_ids"][-1] == EOS_ID
    assert reply["meta_info"]["id"] == "stop-1."


def test_without_sampling_params_128_tokens_come(server: SimServer) -> None:
    assert len(generate(server).json()["output_ids"]) == 128


def test_a_harvested_request_continues_to_the_same_answer(
    server: SimServer, background: Background
) -> None:
    sampling = {"max_new_tokens": 6_000, "ignore_eos": True}
    whole = generate(server, sampling_params=sampling).json()["output_ids"]
    part = background.send("cut-1.", sampling_params=sampling)
    wait_running(server, 1)
    server.http.post("/abort_request", json={"rid": "cut-1."})
    cut = part.result().json()["output_ids"]
    assert 0 < len(cut) < len(whole)
    sampling["max_new_tokens"] -= len(cut)
    rest = generate(server, input_ids=server.ids() + cut, sampling_params=sampling)
    assert cut + rest.json()["output_ids"] == whole


def test_a_batch_answers_in_order_with_the_given_ids(server: SimServer) -> None:
    theirs = recorded("live/generate_batch_ids.json")
    replies = generate(
        server,
        input_ids=[server.ids(), server.ids(number=1)],
        rid=["b-0", "b-1"],
        sampling_params={"max_new_tokens": 4},
    ).json()
    assert [reply["meta_info"]["id"] for reply in replies] == ["b-0", "b-1"]
    assert set(replies[0]["meta_info"]) == set(theirs[0]["meta_info"])


def test_a_stream_is_cumulative_and_ends_in_done(server: SimServer) -> None:
    body = {
        "input_ids": server.ids(),
        "stream": True,
        "sampling_params": {"max_new_tokens": 600, "ignore_eos": True},
    }
    with server.http.stream("POST", "/generate", json=body) as response:
        chunks = [line for line in response.iter_lines() if line]
    assert chunks[-1] == "data: [DONE]"
    parsed = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks[:-1]]
    assert len(parsed) > 1
    for earlier, later in itertools.pairwise(parsed):
        count = len(earlier["output_ids"])
        assert later["output_ids"][:count] == earlier["output_ids"]
        assert earlier["meta_info"]["finish_reason"] is None
    assert len(parsed[-1]["output_ids"]) == 600


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ({"sampling_params": {"max_tokens": 5}}, "contract"),
        ({"input_ids": None}, "contract"),
        ({"input_ids": [1] * 70_000}, "front"),
        ({"sampling_params": {"max_new_tokens": 262_144}}, "front"),
        ({"input_ids": "x"}, "json"),
    ],
)
def test_what_cannot_be_served_is_400_in_the_shape_of_its_layer(
    server: SimServer, body: dict[str, Any], shape: str
) -> None:
    response = generate(server, **body)
    assert response.status_code == 400
    answer = response.json()
    if shape == "contract":
        assert isinstance(answer["error"], str)
    elif shape == "front":
        assert set(answer["error"]) == {"message"}
    else:
        assert answer["code"] == 400


def test_the_too_long_text_is_the_recorded_one(server: SimServer) -> None:
    answer = generate(server, input_ids=[1] * 70_000).json()["error"]["message"]
    assert answer.startswith("Input length (70000 tokens) exceeds the maximum allowed length (")


def test_an_unknown_top_level_field_is_ignored(server: SimServer) -> None:
    assert generate(server, foo=1, sampling_params={"max_new_tokens": 2}).status_code == 200


def test_a_duplicate_id_is_400_and_the_first_is_unharmed(
    server: SimServer, background: Background
) -> None:
    first = background.send("dup.", sampling_params={"max_new_tokens": 6_000, "ignore_eos": True})
    wait_running(server, 1)
    second = generate(server, rid="dup.")
    assert second.status_code == 400
    assert second.json() == {"error": {"message": "Duplicate request ID detected: dup."}}
    assert len(first.result().json()["output_ids"]) == 6_000


# -- abort ---------------------------------------------------------------------------------


def test_abort_matches_by_prefix_and_returns_what_was_generated(
    server: SimServer, background: Background
) -> None:
    waiting = {
        rid: background.send(rid, number)
        for number, rid in enumerate(("job-1", "job-10", "xjob-1"))
    }
    wait_running(server, 3)
    assert server.http.post("/abort_request", json={"rid": "job-1"}).content == b""
    for rid in ("job-1", "job-10"):
        reply = waiting[rid].result().json()
        theirs = recorded("live/abort_running.json")["meta_info"]["finish_reason"]
        assert reply["meta_info"]["finish_reason"] == theirs
        assert len(reply["output_ids"]) == reply["meta_info"]["completion_tokens"] > 0
    assert loads(server)["num_running_reqs"] == 1


def test_an_unknown_or_empty_id_aborts_nobody(server: SimServer, background: Background) -> None:
    background.send("kept-1")
    wait_running(server, 1)
    for body in ({"rid": "kept"}, {"rid": ""}, {}):
        assert server.http.post("/abort_request", json=body).status_code == 200
    assert loads(server)["num_running_reqs"] == 1


def test_a_queued_request_ends_at_once_without_output(
    server: SimServer, background: Background
) -> None:
    wanted = {"server_args": {"pp_max_micro_batch_size": 1}}
    assert server.http.post("/set_internal_state", json=wanted).json() == [True]
    background.send("first.")
    wait_running(server, 1)
    queued = background.send("second.", 1)
    until("one queued", lambda: loads(server)["num_waiting_reqs"] == 1)
    server.http.post("/abort_request", json={"rid": "second."})
    ours, theirs = queued.result().json(), recorded("live/abort_queued.json")
    assert ours["output_ids"] == []
    assert ours["meta_info"]["finish_reason"] == theirs["meta_info"]["finish_reason"]
    assert set(ours["meta_info"]) == set(theirs["meta_info"])


def test_a_client_that_leaves_is_aborted(server: SimServer) -> None:
    sampling = {"max_new_tokens": 9_000, "ignore_eos": True}
    body = {"input_ids": server.ids(), "sampling_params": sampling}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/generate", json=body, timeout=0.2, trust_env=False)
    until("nothing runs", lambda: loads(server)["num_running_reqs"] == 0)
    assert server.lines("Request is disconnected from the client side (type 1)")


# -- pause ---------------------------------------------------------------------------------


def test_pause_without_a_mode_aborts_everything(server: SimServer, background: Background) -> None:
    waiting = [background.send(f"p-{number}.", number) for number in range(5)]
    wait_running(server, 5)
    answer = server.http.post("/pause_generation", json={})
    assert answer.json() == json.loads(recorded_call("POST /pause_generation")["response"])
    for future in waiting:
        assert future.result().json()["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause_freezes_loads_and_loses_nothing(
    server: SimServer, background: Background, mode: str
) -> None:
    sampling = {"max_new_tokens": 6_000, "ignore_eos": True}
    waiting = [background.send(f"f-{n}.", n, sampling_params=sampling) for n in range(4)]
    wait_running(server, 4)
    server.http.post("/pause_generation", json={"mode": mode})
    before = loads(server)
    assert server.http.get("/ready").status_code == 503
    assert server.http.get("/health").status_code == 503
    assert loads(server) == before
    assert before["num_running_reqs"] == 4
    gauges = families(server.http.get("/metrics").text)
    running = gauges["sglang:num_running_reqs"].samples[0].value
    queued = gauges["sglang:num_queue_reqs"].samples[0].value
    assert (running, queued) == ((4, 0) if mode == "in_place" else (0, 4))
    server.http.post("/continue_generation", json={})
    assert server.http.get("/ready").status_code == 503  # the failed probe made it unhealthy
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/ready").status_code == 200
    for future in waiting:
        reply = future.result().json()
        assert len(reply["output_ids"]) == 6_000
        assert reply["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)


def test_server_info_polled_during_a_pause_makes_health_200(server: SimServer) -> None:
    server.http.post("/pause_generation", json={"mode": "retract"})
    seen: list[int] = []
    probe = threading.Thread(target=lambda: seen.append(server.http.get("/health").status_code))
    probe.start()
    while probe.is_alive():
        server.http.get("/server_info")
    assert seen == [200]


def test_a_request_sent_during_a_pause_hangs_beyond_abort_and_is_served_after(
    server: SimServer, background: Background
) -> None:
    server.http.post("/pause_generation", json={"mode": "in_place"})
    held = background.send("held.", sampling_params={"max_new_tokens": 10})
    until("taken", lambda: active_generates(server) == 1)
    server.http.post("/abort_request", json={"abort_all": True})
    assert not held.done()
    server.http.post("/continue_generation", json={})
    assert held.result().json()["meta_info"]["finish_reason"]["type"] == "length"


def test_an_abort_during_an_in_place_pause_waits_for_continue(
    server: SimServer, background: Background
) -> None:
    running = background.send("late.")
    wait_running(server, 1)
    server.http.post("/pause_generation", json={"mode": "in_place"})
    server.http.post("/abort_request", json={"rid": "late."})
    assert server.http.get("/health").status_code == 503  # twenty seconds later
    assert not running.done()
    server.http.post("/continue_generation", json={})
    assert running.result().json()["meta_info"]["finish_reason"]["message"] == "Aborted"


def test_an_abort_during_a_retract_pause_returns_a_multiple_of_50_tokens(
    server: SimServer, background: Background
) -> None:
    running = background.send("cut.")
    wait_running(server, 1)
    until("150 tokens", lambda: loads(server)["num_used_tokens"] > 250)
    server.http.post("/pause_generation", json={"mode": "retract"})
    server.http.post("/abort_request", json={"rid": "cut."})
    reply = running.result().json()
    theirs = recorded("live/abort_while_retract_paused.json")["meta_info"]["finish_reason"]
    assert reply["meta_info"]["finish_reason"] == theirs
    assert len(reply["output_ids"]) % 50 == 0
    assert len(reply["output_ids"]) >= 100


# -- control -------------------------------------------------------------------------------


def test_flush_is_refused_while_busy(server: SimServer, background: Background) -> None:
    theirs = [recorded_call("POST /flush_cache", which) for which in (0, 1)]
    idle = server.http.post("/flush_cache")
    assert (idle.status_code, idle.text) == (200, theirs[1]["response"])
    background.send("busy.")
    wait_running(server, 1)
    busy = server.http.post("/flush_cache")
    assert (busy.status_code, busy.text) == (400, theirs[0]["response"])


@pytest.mark.parametrize(
    ("value", "accepted", "stored"),
    [(8, True, 8), (0, False, 2048), (100_000, False, 2048), ("8", True, 8), (True, True, 1)],
)
def test_the_live_cap_follows_the_rules_of_a_real_server(
    server: SimServer, value: object, accepted: bool, stored: int
) -> None:
    wanted = {"server_args": {"pp_max_micro_batch_size": value}}
    assert server.http.post("/set_internal_state", json=wanted).json() == [accepted]
    state = server.http.get("/server_info").json()["internal_states"][0]
    assert state["pp_max_micro_batch_size"] == stored


def test_an_unsupported_key_rejects_the_whole_change(server: SimServer) -> None:
    wanted = {"server_args": {"pp_max_micro_batch_size": 8, "max_running_requests": 4}}
    assert server.http.post("/set_internal_state", json=wanted).json() == [False]
    state = server.http.get("/server_info").json()["internal_states"][0]
    assert state["pp_max_micro_batch_size"] == 2048
    assert server.http.post("/set_internal_state", json={}).status_code == 400


def test_lowering_the_cap_lets_running_requests_end_and_admits_no_more(
    server: SimServer, background: Background
) -> None:
    short = {"max_new_tokens": 200, "ignore_eos": True}
    server.http.post("/pause_generation", json={"mode": "in_place"})  # so that all begin at once
    ending = [background.send(f"short-{n}.", n, sampling_params=short) for n in range(6)]
    for number in range(4):
        background.send(f"long-{number}.", 10 + number)
    until("all taken", lambda: active_generates(server) == 10)
    server.http.post("/continue_generation", json={})
    until("all entered", lambda: sum(counts(server)) > 0)
    wanted = {"server_args": {"pp_max_micro_batch_size": 4}}
    assert server.http.post("/set_internal_state", json=wanted).json() == [True]
    more = [background.send(f"more-{number}.", 50 + number) for number in range(3)]
    until("four run, three wait", lambda: counts(server) == (4, 3))
    assert [len(future.result().json()["output_ids"]) for future in ending] == [200] * 6
    assert not any(future.done() for future in more)


def counts(server: SimServer) -> tuple[int, int]:
    now = loads(server)
    return now["num_running_reqs"], now["num_waiting_reqs"]
