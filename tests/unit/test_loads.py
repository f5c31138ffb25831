"""Load answers and /server_info of recorded and made-up servers, as typed readings."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvctl.core.domain.telemetry.loads import loads_of_info, parse_get_load, parse_v1_loads
from kvctl.core.domain.telemetry.readings import LoadsReading, ServerInfo
from kvctl.core.domain.telemetry.server_info import MASK, parse_server_info
from kvctl.core.domain.versions import is_at_least

DATA = Path(__file__).parents[1] / "data"


def body(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def v1(answer: Any, *, has_metrics: bool | None = True) -> LoadsReading:
    reading = parse_v1_loads(answer, at=10.0, wall=1.0, has_metrics=has_metrics)
    assert reading is not None
    return reading


def old(answer: Any) -> LoadsReading:
    reading = parse_get_load(answer, at=0.0, wall=5.0, version=None)
    assert reading is not None
    return reading


def info_of(answer: Any) -> ServerInfo:
    info = parse_server_info(answer, at=3.0)
    assert info is not None
    return info


GOLDEN = {
    "sglang-0.5.23/v1_loads_pressure.json": (6, 20, 3521, 4096, 0.8596, 981.43, "0.5.23"),
    "sglang-0.5.23/v1_loads_idle.json": (0, 0, 0, 4096, 0.0, 0.0, "0.5.23"),
    "sglang-0.5.17/busy.v1_loads.json": (44, 106, 148673, 159277, 0.9334, 4398.24, "0.5.17"),
}


@pytest.mark.parametrize(("name", "wanted"), GOLDEN.items(), ids=GOLDEN)
def test_a_recorded_answer_gives_its_counts(name: str, wanted: Any) -> None:
    reading = v1(body(name))
    (rank,) = reading.ranks
    got = (rank.running, rank.queued, rank.used_tokens, rank.pool_tokens, rank.token_usage)
    assert (*got, rank.gen_throughput, reading.version) == wanted


def test_the_fields_that_are_read_exist_in_the_newest_recording() -> None:
    entry = body("sglang-0.5.23/v1_loads_pressure.json")["loads"][0]
    assert {
        "timestamp",
        "dp_rank",
        "num_running_reqs",
        "num_waiting_reqs",
        "num_used_tokens",
        "max_total_num_tokens",
        "token_usage",
        "gen_throughput",
        "cache_hit_rate",
        "max_running_requests",
        "total_prefill_uncached_tokens",
    } <= entry.keys()


def test_the_answers_own_time_is_kept_beside_the_schedulers() -> None:
    reading = v1(body("sglang-0.5.23/live/v1_loads_paused_in_place.json"))
    taken = reading.ranks[0].taken_wall
    assert taken is not None and reading.wall - taken == pytest.approx(30.75, abs=0.01)


def test_a_throughput_of_zero_without_metrics_is_unknown_while_requests_run() -> None:
    answer = {"loads": [{"num_running_reqs": 8, "gen_throughput": 0.0, "cache_hit_rate": 0.0}]}
    assert v1(answer, has_metrics=False).ranks[0].gen_throughput is None
    assert v1(answer, has_metrics=None).ranks[0].gen_throughput is None
    assert v1(answer, has_metrics=True).ranks[0].gen_throughput == 0.0
    assert v1(answer, has_metrics=False).ranks[0].cache_hit_ratio is None


def test_missing_and_wrong_fields_are_unknown_and_never_zero() -> None:
    rank = v1({"loads": [{"num_running_reqs": "8", "num_waiting_reqs": True}]}).ranks[0]
    assert (rank.running, rank.queued, rank.token_usage, rank.pool_tokens) == (None,) * 4


@pytest.mark.parametrize("answer", [None, [], {}, "x", 3, {"loads": 3}, {"error": "Unauthorized"}])
def test_what_is_not_a_load_answer_is_none(answer: Any) -> None:
    assert parse_v1_loads(answer, 0.0, 0.0, has_metrics=None) is None


def test_get_load_counts_waiting_requests_apart_from_running_ones() -> None:
    reading = old(body("sglang-0.5.17/busy.get_load.json"))
    (rank,) = reading.ranks
    assert (rank.running, rank.queued) == (44, 106)
    assert rank.token_usage is None  # num_tokens includes queued prompts: not the pool's use


def test_get_load_with_contradicting_counts_is_unknown() -> None:
    answer = [{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 5}]
    assert old(answer).ranks[0].running is None


@pytest.mark.parametrize(
    ("name", "pool", "limit", "cap", "version"),
    [
        ("sglang-0.5.23/server_info.json", 4096, 2048, 2048, "0.5.23"),
        ("sglang-0.5.17/busy.server_info.json", 159277, 2488, 2488, "0.5.17"),
    ],
)
def test_server_info_gives_pool_limit_and_cap(
    name: str, pool: int, limit: int, cap: Any, version: Any
) -> None:
    info = info_of(body(name))
    assert (info.pool_tokens, info.max_running, info.live_cap) == (pool, limit, cap)
    assert info.version == version
    assert info.flags["enable_metrics"] is True
    assert "internal_states" not in info.flags and "version" not in info.flags


def test_secrets_in_server_info_are_masked() -> None:
    answer = {
        "api_key": "sk-1",
        "admin_api_key": None,
        "max_total_tokens": 5,
        "launch_command": "--api-key sk-1 --hf-token=abc --max-total-tokens 5",
    }
    info = info_of(answer)
    assert info.flags == {"api_key": MASK, "admin_api_key": None, "max_total_tokens": 5}
    assert info.launch_command == f"--api-key {MASK} --hf-token={MASK} --max-total-tokens 5"


def test_a_server_without_load_endpoints_tells_sizes_only() -> None:
    info = info_of(body("sglang-0.5.23/server_info.json"))
    (rank,) = loads_of_info(info, 1.0, 2.0).ranks
    assert (rank.pool_tokens, rank.running, rank.queued) == (4096, None, None)


@pytest.mark.parametrize(
    ("version", "answer"),
    [
        ("0.5.5", False),
        ("0.5.6", True),
        ("0.5.6.post1", True),
        ("0.5.6rc0", False),
        ("0.5.23", True),
        ("1.0", True),
        ("", False),
        (None, False),
        ("main", False),
    ],
)
def test_pause_modes_are_believed_from_0_5_6_on(version: Any, answer: Any) -> None:
    assert is_at_least(version, (0, 5, 6)) is answer
