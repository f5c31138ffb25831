"""The HTTP adapter against recorded answers served by a scripted transport."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvctl.core.clock import ManualClock
from kvctl.core.ports import Engine, ProbeFailed
from kvctl.core.probes.sglang_http import SglangEngine

DATA = Path(__file__).parents[1] / "data"
LOADS = json.loads((DATA / "sglang-0.5.23/v1_loads_pressure.json").read_text())
INFO = json.loads((DATA / "sglang-0.5.23/server_info.json").read_text())
OLD_LOAD = json.loads((DATA / "sglang-0.5.17/busy.get_load.json").read_text())

Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Script:
    """Serves what each path is told to answer, and keeps what was asked."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = {
            "/" + k.replace("__", "/"): v for k, v in answers.items()
        }
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.get(request.url.path, httpx.Response(404))
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.asked]

    def body(self) -> Any:
        return json.loads(self.asked[-1].content)


def engine(script: Script, key: str | None = None) -> Engine:
    return SglangEngine("http://h:1/", ManualClock(), key, httpx.MockTransport(script))


def ok(body: object) -> Answer:
    return lambda _: httpx.Response(200, json=body)


def info_of(version: str) -> Answer:
    return ok({**INFO, "version": version})


async def test_v1_loads_is_asked_alone_where_it_exists() -> None:
    script = Script(v1__loads=ok(LOADS))
    server = engine(script)
    first, _ = await server.loads(), await server.loads()
    assert script.paths == ["/v1/loads", "/v1/loads"]
    assert (first.source, first.ranks[0].running, first.version) == ("/v1/loads", 6, "0.5.23")


async def test_the_ladder_is_climbed_once_and_remembered() -> None:
    script = Script(get_load=ok(OLD_LOAD), get_server_info=info_of("0.5.5"))
    server = engine(script)
    reading = await server.loads()
    assert (reading.source, reading.version, reading.ranks[0].running) == ("/get_load", "0.5.5", 44)
    script.asked.clear()
    await server.loads()
    assert script.paths == ["/get_load"]


async def test_without_any_load_endpoint_sizes_come_from_server_info() -> None:
    reading = await engine(Script(get_server_info=info_of("0.4.6"))).loads()
    assert reading.source == "/server_info"
    assert (reading.ranks[0].pool_tokens, reading.ranks[0].running) == (4096, None)


async def test_another_version_under_the_same_address_is_found_again() -> None:
    script = Script(v1__loads=ok(LOADS))
    server = engine(script)
    await server.loads()
    script.answers = {"/get_load": ok(OLD_LOAD), "/server_info": info_of("0.5.7")}
    assert (await server.loads()).source == "/get_load"


async def test_the_deprecated_spelling_is_used_only_where_the_new_one_is_missing() -> None:
    script = Script(model_info=ok({"model_path": "/m", "served_model_name": "kimi"}))
    assert await engine(script).model_name() == "kimi"
    assert script.paths == ["/model_info"]
    old = Script(get_model_info=ok({"model_path": "/m"}))
    server = engine(old)
    assert [await server.model_name(), await server.model_name()] == ["/m", "/m"]
    assert old.paths == ["/model_info", "/get_model_info", "/get_model_info"]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (httpx.ConnectError("refused"), "refused"),
        (httpx.ReadError("reset"), "refused"),
        (httpx.ReadTimeout("slow"), "timeout"),
        (httpx.ConnectTimeout("slow"), "timeout"),
        (httpx.Response(401, json={"error": "Unauthorized"}), "unauthorized"),
        (httpx.Response(500), "http"),
        (httpx.Response(200, text="<html>"), "bad_answer"),
        (httpx.Response(200, json={"other": 1}), "bad_answer"),
        (httpx.Response(404), "bad_answer"),
    ],
)
async def test_every_way_to_fail_has_its_cause(answer: Any, cause: str) -> None:
    with pytest.raises(ProbeFailed) as caught:
        await engine(Script(v1__loads=answer)).loads()
    assert caught.value.cause == cause


async def test_metrics_that_are_not_mounted_are_off() -> None:
    with pytest.raises(ProbeFailed) as caught:
        await engine(Script()).metrics()
    assert caught.value.cause == "off"


async def test_metrics_are_read_behind_the_redirect_of_older_versions() -> None:
    def redirect(request: httpx.Request) -> httpx.Response:
        return httpx.Response(307, headers={"location": "/metrics/"})

    script = Script(metrics=redirect, metrics__=ok("x"))
    script.answers["/metrics/"] = lambda _: httpx.Response(200, text="sglang:num_queue_reqs 3\n")
    server = engine(script)
    assert (await server.metrics()).gauges == {"num_queue_reqs": 3}
    await server.metrics()
    assert script.paths == ["/metrics", "/metrics/", "/metrics/"]


@pytest.mark.parametrize(("status", "wanted"), [(200, True), (503, False), (404, None)])
async def test_ready_is_true_false_or_not_known_to_this_version(status: int, wanted: Any) -> None:
    assert await engine(Script(ready=httpx.Response(status))).is_ready() is wanted


async def test_pause_always_names_a_mode_that_keeps_the_requests() -> None:
    script = Script(server_info=info_of("0.5.23"), pause_generation=ok({"status": "ok"}))
    await engine(script).pause("retract")
    assert script.body() == {"mode": "retract"}


@pytest.mark.parametrize("mode", ["abort", "", "RETRACT"])
async def test_pause_refuses_a_mode_that_aborts(mode: str) -> None:
    script = Script(server_info=info_of("0.5.23"), pause_generation=ok({}))
    with pytest.raises(ValueError, match="keep the requests"):
        await engine(script).pause(mode)
    assert script.paths == []


@pytest.mark.parametrize("version", ["0.4.9", "0.5.5", "", "unknown"])
async def test_pause_is_never_sent_where_it_would_abort(version: Any) -> None:
    script = Script(server_info=info_of(version), pause_generation=ok({}))
    with pytest.raises(ProbeFailed) as caught:
        await engine(script).pause("retract")
    assert caught.value.cause == "unsupported"
    assert "/pause_generation" not in script.paths


async def test_pause_asks_again_for_the_version_after_the_server_was_gone() -> None:
    script = Script(server_info=info_of("0.5.23"), pause_generation=ok({}), v1__loads=ok(LOADS))
    server = engine(script)
    await server.loads()
    script.answers = {"/v1/loads": httpx.ConnectError("gone")}
    with pytest.raises(ProbeFailed):
        await server.loads()
    script.answers = {"/server_info": info_of("0.5.5"), "/pause_generation": ok({})}
    with pytest.raises(ProbeFailed) as caught:
        await server.pause("retract")
    assert caught.value.cause == "unsupported"


async def test_an_empty_id_is_never_aborted() -> None:
    script = Script(abort_request=httpx.Response(200))
    with pytest.raises(ValueError, match="every request"):
        await engine(script).abort("")
    assert script.asked == []


async def test_abort_names_its_request_and_abort_all_says_so() -> None:
    script = Script(abort_request=lambda _: httpx.Response(200))
    server = engine(script)
    await server.abort("B1-000001.")
    assert script.body() == {"rid": "B1-000001."}
    await server.abort_all()
    assert script.body()["abort_all"] is True


def capped(cap: int, version: str = "0.5.23") -> Answer:
    name = "pp_max_micro_batch_size" if version >= "0.5.4" else "max_micro_batch_size"
    return ok({"version": version, "internal_states": [{name: cap}]})


async def test_the_live_cap_is_what_was_read_back() -> None:
    script = Script(server_info=capped(8), set_internal_state=ok([True]))
    assert await engine(script).set_live_cap(8) == 8
    posted = [r for r in script.asked if r.method == "POST"]
    assert json.loads(posted[0].content) == {"server_args": {"pp_max_micro_batch_size": 8}}


async def test_a_cap_that_old_versions_pretend_to_accept_is_seen_by_reading_back() -> None:
    script = Script(server_info=capped(16), set_internal_state=ok([True]))
    assert await engine(script).set_live_cap(8) == 16


async def test_a_rejected_cap_is_a_failure() -> None:
    script = Script(server_info=capped(16), set_internal_state=ok([False]))
    with pytest.raises(ProbeFailed) as caught:
        await engine(script).set_live_cap(100000)
    assert caught.value.cause == "rejected"


async def test_the_cap_has_its_old_name_before_0_5_4() -> None:
    script = Script(get_server_info=capped(8, "0.5.2"), set_internal_state=ok([True]))
    assert await engine(script).set_live_cap(8) == 8
    posted = next(r for r in script.asked if r.method == "POST")
    assert json.loads(posted.content) == {"server_args": {"max_micro_batch_size": 8}}


@pytest.mark.parametrize("cap", [0, -1, True, 2.5, "8"])
async def test_a_cap_that_is_no_count_is_not_sent(cap: Any) -> None:
    script = Script()
    with pytest.raises(ValueError, match="whole number"):
        await engine(script).set_live_cap(cap)
    assert script.asked == []


async def test_the_key_is_sent_and_never_told() -> None:
    script = Script(v1__loads=httpx.Response(401))
    with pytest.raises(ProbeFailed) as caught:
        await engine(script, key="sk-secret").loads()
    assert script.asked[0].headers["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(caught.value)


async def test_a_throughput_of_zero_is_unknown_once_metrics_are_known_to_be_off() -> None:
    zero = {"loads": [{**LOADS["loads"][0], "gen_throughput": 0.0}], "version": "0.5.23"}
    script = Script(v1__loads=ok(zero))
    server = engine(script)
    with pytest.raises(ProbeFailed):
        await server.metrics()
    assert (await server.loads()).ranks[0].gen_throughput is None
