"""No order or content of answers makes the figures raise or turns the unknown into a number."""

import math
from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.servers.decode import (
    DecodeState,
    decode_of,
    fold_break,
    fold_loads,
    fold_log,
    fold_metrics,
    fold_no_metrics,
)
from kvctl.core.domain.servers.health import HealthInputs, assess
from kvctl.core.domain.telemetry.loads import parse_v1_loads
from kvctl.core.probes.metrics_text import parse_metrics

number = st.one_of(
    st.none(), st.integers(-5, 10**7), st.floats(), st.text(max_size=3), st.booleans()
)
entry = st.dictionaries(
    st.sampled_from(
        ["dp_rank", "timestamp", "num_running_reqs", "num_waiting_reqs", "num_used_tokens",
         "max_total_num_tokens", "token_usage", "gen_throughput", "total_prefill_busy_us"]
    ),
    number,
)  # fmt: skip
metric = st.builds(
    lambda name, labels, value: f"sglang:{name}{labels} {value}",
    st.sampled_from(
        ["num_running_reqs", "token_usage", "realtime_tokens_total", "gen_throughput",
         "num_retracted_requests_total", "max_total_num_tokens"]
    ),
    st.sampled_from(["", '{mode="decode"}', '{dp_rank="1"}', '{pid="4"}', "{x"]),
    st.one_of(st.floats().map(repr), st.just("junk"), st.integers(0, 10**6).map(str)),
)  # fmt: skip
line = st.builds(
    lambda running, usage, rate, tags: (
        f"[2026-11-02 09:30:00{tags}] Decode batch, #running-req: {running}, #token: 5, "
        f"token usage: {usage}, gen throughput (token/s): {rate}, #queue-req: 0"
    ),
    st.one_of(st.integers(0, 5000), st.just("x")),
    st.one_of(st.floats(0, 1).map(lambda u: f"{u:.2f}"), st.just("")),
    st.one_of(st.floats(0, 1e5).map(lambda r: f"{r:.2f}"), st.just("nan")),
    st.sampled_from(["", " DP0", " DP1 TP4"]),
)
step: st.SearchStrategy[tuple[str, list[str] | list[dict[str, object]]]] = st.one_of(
    st.tuples(st.just("loads"), st.lists(entry, max_size=3)),
    st.tuples(st.just("metrics"), st.lists(metric, max_size=6)),
    st.tuples(st.just("log"), st.lists(line, max_size=4)),
    st.tuples(st.just("off"), st.just([])),
    st.tuples(st.just("break"), st.just([])),
)


def folded(state: DecodeState, kind: str, content: list[object], now: float) -> DecodeState:
    match kind:
        case "loads":
            reading = parse_v1_loads({"loads": content}, now, now, has_metrics=True)
            return state if reading is None else fold_loads(state, reading, now)
        case "metrics":
            return fold_metrics(state, parse_metrics("\n".join(map(str, content)), now), now)
        case "log":
            return fold_log(state, [parse_line(str(text)) for text in content], now)
        case "off":
            return fold_no_metrics(state, "off")
        case _:
            return fold_break(state)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), step), max_size=25))
def test_figures_are_finite_with_a_source_or_missing_with_a_reason(
    steps: list[tuple[float, tuple[str, list[object]]]],
) -> None:
    state, now = DecodeState(), 1000.0
    for wait, (kind, content) in steps:
        now += wait
        state = folded(state, kind, content, now)
        decode = decode_of(state, now)
        for field in fields(decode):
            figure = getattr(decode, field.name)
            if isinstance(figure, Figure):
                if figure.value is None:
                    assert figure.reason, field.name
                else:
                    assert math.isfinite(figure.value) and figure.source, field.name
                    assert figure.at is None or figure.at <= now + 1e-6, field.name


@given(
    st.builds(
        HealthInputs,
        is_process_alive=st.sampled_from([None, True, False]),
        is_ready_seen=st.booleans(),
        last_answer_at=st.none() | st.floats(0, 1000),
        probe_cause=st.none() | st.just("timeout"),
        running=st.none() | st.integers(0, 50),
        queued=st.none() | st.integers(0, 50),
        is_frozen=st.booleans(),
        frozen_since=st.none() | st.floats(0, 1000),
        is_ready=st.sampled_from([None, True, False]),
        is_paused_by_us=st.booleans(),
        decode_at=st.none() | st.floats(0, 1000),
        prefill_at=st.none() | st.floats(0, 1000),
        progress_at=st.none() | st.floats(0, 1000),
        busy_since=st.none() | st.floats(0, 1000),
    )
)
def test_no_state_is_stalled_within_thirty_seconds_of_a_token(inputs: HealthInputs) -> None:
    state, reason = assess(inputs, None, 1000.0)
    assert reason
    if inputs.progress_at is not None and inputs.progress_at > 970.0:
        assert state.value != "stalled"
