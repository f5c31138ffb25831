"""Sources beside each other: where they disagree beyond their windows it is said, else not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_decode import decode_line, decoded, loads, metrics, rank

from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.servers.decode import (
    DecodeState,
    decode_of,
    fold_loads,
    fold_log,
    fold_metrics,
)
from kvctl.core.domain.telemetry.agreement import Comparison
from kvctl.core.domain.telemetry.readings import LoadsReading


def told(state: DecodeState, now: float, figure: str) -> Comparison:
    return next(c for c in decode_of(state, now).sources if c.figure == figure)


def level(seconds: int = 40, *, rate: float = 800.0, log: float = 800.0) -> DecodeState:
    """A level load of 8 requests, with the counter at one rate and the log at another."""
    state = DecodeState()
    for at in range(seconds + 1):
        state = fold_loads(state, loads(float(at), rank(8, 3, gen=rate)), float(at))
        state = fold_log(state, [decode_line(log)], float(at))
        if at % 5 == 0:
            state = fold_metrics(state, decoded(float(at), at * rate), float(at))
    return state


def test_sources_that_agree_are_listed_with_the_shown_one_first_and_no_problem() -> None:
    found = told(level(), 40.0, "generation_tokens_per_s")
    assert [t.source for t in found.told] == ["realtime_tokens_total, 10 s", "/v1/loads", "log"]
    assert found.problem is None


def test_a_counter_that_tells_twice_the_log_of_the_same_seconds_is_a_disagreement() -> None:
    found = told(level(rate=800.0, log=400.0), 40.0, "generation_tokens_per_s")
    assert found.problem == "log says 400 tok/s (10 s), realtime_tokens_total, 10 s 800"


def test_rates_are_not_compared_while_the_load_changes() -> None:
    state = level(rate=800.0, log=400.0)
    for at in (41.0, 42.0):
        state = fold_loads(state, loads(at, rank(30, 3, gen=800.0)), at)
    assert told(state, 42.0, "generation_tokens_per_s").problem is None


def test_one_slow_step_does_not_make_loads_and_counter_disagree() -> None:
    state = fold_loads(level(), loads(41.0, rank(8, 3, gen=500.0)), 41.0)
    assert told(state, 41.0, "generation_tokens_per_s").problem is None


def test_a_decode_line_beside_other_counts_of_the_same_seconds_is_a_disagreement() -> None:
    state = fold_log(level(), [decode_line(800, running=40)], 40.4)
    found = told(state, 40.5, "running")
    assert found.problem == "log says 40 where the counts were 8 to 8 in the same 2.5 s"
    assert [(t.source, t.value) for t in found.told] == [("/v1/loads", 8), ("log", 40)]


def test_a_count_that_was_true_a_second_ago_is_no_disagreement() -> None:
    state = level()
    for at, running in ((41.0, 20), (42.0, 40)):
        state = fold_loads(state, loads(at, rank(running, 3)), at)
    state = fold_log(state, [decode_line(800, running=20)], 42.4)
    assert told(state, 42.5, "running").problem is None


def test_a_line_that_was_read_late_while_the_pool_fills_is_no_disagreement() -> None:
    state = level()
    for at, usage in ((41.0, 0.55), (42.0, 0.58), (43.0, 0.61)):
        state = fold_loads(state, loads(at, rank(8, 3, usage=usage)), at)
    late = decode_line(800)  # its usage is 0.20 in the helper: replaced here
    late = replace(late, fields=(*(f for f in late.fields if f[0] != "token_usage"),
                                 ("token_usage", 0.49)))  # fmt: skip
    state = fold_log(state, [late], 43.4)
    assert told(state, 43.5, "token_usage").problem is None


def test_a_gauge_may_be_as_old_as_its_refresh_but_not_a_number_of_never() -> None:
    state = level()
    old = fold_metrics(state, metrics(40.0, {"num_running_reqs": 8.0}), 40.0)
    for at in range(41, 50):
        old = fold_loads(old, loads(float(at), rank(60, 3)), float(at))
    assert told(old, 49.0, "running").problem is None
    never = fold_metrics(state, metrics(40.0, {"num_running_reqs": 99.0}), 40.0)
    assert "/metrics says 99" in (told(never, 41.0, "running").problem or "")


def test_frozen_counts_disagree_with_nothing() -> None:
    state = level()
    for at in (41.0, 45.0):
        state = fold_loads(state, loads(at, rank(8, 3, taken=40.0)), at)
    state = fold_log(state, [decode_line(800, running=40)], 45.0)
    assert decode_of(state, 45.0).is_frozen
    assert all(c.problem is None for c in decode_of(state, 45.0).sources if c.figure == "running")


def test_two_pool_sizes_are_a_disagreement() -> None:
    state = fold_metrics(level(), metrics(40.0, {"max_total_num_tokens": 8192.0}), 40.0)
    found = told(state, 40.0, "pool_tokens")
    assert found.problem == "/v1/loads says 4096; /metrics says 8192"


def test_usage_of_another_pool_is_not_laid_beside_the_one_of_the_loads() -> None:
    line = parse_line(
        "[2026-11-02 09:30:00] Decode batch, #running-req: 8, #full token: 100, full token usage: "
        "0.10, #swa token: 10, swa token usage: 0.98, gen throughput (token/s): 800.00, "
        "#queue-req: 0"
    )
    state = fold_log(level(), [line], 40.4)
    assert "token_usage" not in {c.figure for c in decode_of(state, 40.5).sources}


def test_lines_of_two_ranks_add_up_only_where_both_are_of_the_same_seconds() -> None:
    state = DecodeState()
    pair = rank(8, 0), rank(4, 0, dp=1)
    for at in range(30):
        state = fold_loads(state, loads(float(at), *pair), float(at))
    state = fold_log(state, [decode_line(800, 8, " DP0 TP0")], 29.0)
    assert "running" not in {c.figure for c in decode_of(state, 29.0).sources}
    state = fold_log(state, [decode_line(400, 4, " DP1 TP0")], 29.5)
    found = told(state, 29.5, "running")
    assert [t.value for t in found.told] == [12, 12] and found.problem is None


@given(
    running=st.lists(st.integers(0, 10_000), min_size=1, max_size=40),
    logged=st.lists(st.integers(0, 10_000), max_size=10),
    usage=st.one_of(st.none(), st.floats(0, 2)),
)
def test_no_input_makes_a_comparison_raise_or_invent_a_source(
    running: list[int], logged: list[int], usage: float | None
) -> None:
    state = DecodeState()
    for at, count in enumerate(running):
        reading = loads(float(at), replace(rank(count, 1), token_usage=usage))
        state = fold_loads(state, reading, float(at))
    state = fold_log(state, [decode_line(100, n) for n in logged], float(len(running)))
    for found in decode_of(state, float(len(running))).sources:
        assert len(found.told) > 1
        for source in found.told:
            if figure_is_count(found.figure) and source.source == "log":
                assert source.value in logged


def figure_is_count(name: str) -> bool:
    return name == "running"


@pytest.mark.parametrize("ranks", [(), (rank(None, None, usage=None),)])
def test_an_answer_without_counts_is_laid_beside_nothing(ranks: tuple[object, ...]) -> None:
    reading = LoadsReading(1.0, 1.0, "/v1/loads", None, ranks)  # type: ignore[arg-type]
    state = fold_log(fold_loads(DecodeState(), reading, 1.0), [decode_line(10)], 1.0)
    assert decode_of(state, 1.0).sources == ()
