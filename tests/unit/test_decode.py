"""Figures of a server from its sources: the best source, the moment, and why one is unknown."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.logs.lines import LogRecord
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.servers.decode import (
    DecodeState,
    decode_of,
    fold_break,
    fold_info,
    fold_loads,
    fold_log,
    fold_metrics,
    fold_no_metrics,
    frozen_since,
)
from kvctl.core.domain.telemetry.loads import parse_v1_loads
from kvctl.core.domain.telemetry.metrics import Sample, merge_samples
from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading, RankLoad
from kvctl.core.domain.telemetry.server_info import parse_server_info

DATA = Path(__file__).parents[1] / "data"
OFF = "the server runs without --enable-metrics"


def rank(
    running: int | None = 8,
    queued: int | None = 3,
    *,
    dp: int = 0,
    usage: float | None = 0.5,
    taken: float | None = None,
    gen: float | None = None,
) -> RankLoad:
    return RankLoad(
        dp_rank=dp,
        taken_wall=taken,
        running=running,
        queued=queued,
        used_tokens=None if usage is None else int(usage * 4096),
        pool_tokens=4096,
        token_usage=usage,
        gen_throughput=gen,
        cache_hit_ratio=None,
        max_running=64,
    )


def loads(at: float, *ranks: RankLoad, wall: float | None = None) -> LoadsReading:
    return LoadsReading(at, at if wall is None else wall, "/v1/loads", "0.5.23", ranks)


def metrics(at: float, gauges: dict[str, float] | None = None, **counters: float) -> MetricsReading:
    named = {name.replace("__", "."): value for name, value in counters.items()}
    return MetricsReading(at=at, counters=named, gauges=gauges or {}, histograms={})


def decoded(at: float, tokens: float, **more: float) -> MetricsReading:
    return metrics(at, None, realtime_tokens_total__decode=tokens, **more)


def line(text: str) -> LogRecord:
    return parse_line(f"[2026-11-02 09:30:00] {text}")


def decode_line(rate: float, running: int = 8, tags: str = "") -> LogRecord:
    stamp = f"[2026-11-02 09:30:00{tags}]"
    return parse_line(
        f"{stamp} Decode batch, #running-req: {running}, #token: 100, token usage: 0.20, "
        f"gen throughput (token/s): {rate:.2f}, #queue-req: 0"
    )


def test_before_any_answer_every_figure_is_unknown_and_says_why() -> None:
    decode = decode_of(DecodeState(), 5.0)
    figures = [getattr(decode, f.name) for f in fields(decode)]
    unknown = [figure for figure in figures if isinstance(figure, Figure)]
    assert all(figure.value is None and figure.reason for figure in unknown)


def test_counts_add_over_ranks_and_the_worst_rank_is_named() -> None:
    state = fold_loads(
        DecodeState(), loads(10.0, rank(40, 31, usage=0.97), rank(2, 0, dp=1, usage=0.08)), 10.0
    )
    decode = decode_of(state, 10.0)
    assert (decode.running.value, decode.queued.value) == (42, 31)
    assert (decode.token_usage.value, decode.worst_rank) == (0.97, "DP0")
    assert (decode.pool_tokens.value, decode.max_running.value) == (8192, 128)
    assert decode.imbalance == "DP0 has 31 queued while DP1 runs 2"


def test_a_count_that_one_rank_does_not_tell_is_unknown_not_a_partial_sum() -> None:
    state = fold_loads(DecodeState(), loads(10.0, rank(40), rank(None, dp=1)), 10.0)
    assert decode_of(state, 10.0).running.value is None


def test_the_generation_rate_is_the_live_counters_growth_over_ten_seconds() -> None:
    state = DecodeState()
    for second in range(0, 31, 5):
        state = fold_metrics(state, decoded(second, second * 100.0 + (second > 15) * 900), second)
    figure = decode_of(state, 30.0).generation_tokens_per_s
    assert figure.value == 100.0
    assert (figure.source, figure.at) == ("realtime_tokens_total, 10 s", 30)


def test_o4_a_stale_gauge_does_not_outlive_the_counter() -> None:
    gauges = {"gen_throughput": 405.77, "num_running_reqs": 0.0}
    state = fold_metrics(DecodeState(), decoded(0.0, 1_040_000), 0.0)
    state = fold_metrics(state, replace(decoded(5.0, 1_041_990), gauges=gauges), 5.0)
    assert decode_of(state, 5.0).generation_tokens_per_s.value == 398
    for at in (10.0, 15.0):
        state = fold_metrics(state, replace(decoded(at, 1_041_990), gauges=gauges), at)
    assert decode_of(state, 15.0).generation_tokens_per_s.value == 0


def test_a_rate_never_reaches_over_a_restart() -> None:
    state = fold_metrics(DecodeState(), decoded(0.0, 1_000_000), 0.0)
    state = fold_metrics(state, decoded(5.0, 40), 5.0)
    assert not decode_of(state, 5.0).generation_tokens_per_s.known
    state = fold_metrics(state, decoded(10.0, 540), 10.0)
    assert decode_of(state, 10.0).generation_tokens_per_s.value == 100


def test_a_rate_of_old_counters_is_not_shown_as_now() -> None:
    state = fold_metrics(DecodeState(), decoded(0.0, 0), 0.0)
    state = fold_metrics(state, decoded(5.0, 500), 5.0)
    assert decode_of(state, 6.0).generation_tokens_per_s.value == 100
    late = decode_of(state, 25.0).generation_tokens_per_s
    assert late.value is None and "no /metrics answer for 20 s" in (late.reason or "")


def test_without_metrics_the_rate_comes_from_the_decode_lines() -> None:
    state = fold_no_metrics(DecodeState(), OFF)
    state = fold_loads(state, loads(1.0, rank()), 1.0)
    for second, rate in ((1.0, 5.0), (3.0, 800.0), (5.0, 400.0)):
        state = fold_log(state, [decode_line(rate)], second)
    figure = decode_of(state, 6.0).generation_tokens_per_s
    # The first line spans the time before; of the others the slow one lasted twice as long.
    assert figure.value == pytest.approx(16 / (8 / 800 + 8 / 400))
    assert figure.source == "log"


def test_decode_lines_of_pipeline_stages_are_copies_and_those_of_dp_ranks_add() -> None:
    state = fold_no_metrics(DecodeState(), OFF)
    for second in (1.0, 2.0):
        lines = [decode_line(100, tags=f" DP{dp} PP{pp}") for dp in (0, 1) for pp in (0, 1)]
        state = fold_log(state, lines, second)
    decode = decode_of(state, 3.0)
    assert decode.generation_tokens_per_s.value == pytest.approx(200)
    assert decode.running.value == 16


def test_old_decode_lines_are_unknown_and_not_zero() -> None:
    state = fold_no_metrics(DecodeState(), OFF)
    for second in (1.0, 3.0):
        state = fold_log(state, [decode_line(800)], second)
    figure = decode_of(state, 30.0).generation_tokens_per_s
    assert figure.value is None and (figure.reason or "").startswith(OFF)


def test_lines_from_before_the_log_was_followed_tell_nothing_of_now() -> None:
    backlog = [replace(decode_line(800), is_backlog=True)] * 3
    state = fold_log(fold_no_metrics(DecodeState(), OFF), backlog, 1.0)
    assert not decode_of(state, 1.0).generation_tokens_per_s.known
    assert decode_of(state, 20.0).retracted_total.value == 0


def test_an_idle_server_without_metrics_has_a_true_zero() -> None:
    state = fold_loads(fold_no_metrics(DecodeState(), OFF), loads(1.0, rank(0, 0, usage=0)), 1.0)
    figure = decode_of(state, 1.0).generation_tokens_per_s
    assert (figure.value, figure.source) == (0.0, "/v1/loads")


def test_a_busy_server_without_any_rate_is_unknown() -> None:
    state = fold_loads(fold_no_metrics(DecodeState(), OFF), loads(1.0, rank(8, 0)), 1.0)
    assert decode_of(state, 1.0).generation_tokens_per_s.value is None


def test_retractions_that_never_happened_are_zero_where_the_counters_are_there() -> None:
    state = fold_metrics(DecodeState(), decoded(0.0, 0), 0.0)
    state = fold_metrics(state, decoded(30.0, 100), 30.0)
    decode = decode_of(state, 30.0)
    assert (decode.retracted_per_min.value, decode.retracted_total.value) == (0, 0)


def test_the_first_retraction_counts_although_its_series_is_new() -> None:
    state = fold_metrics(DecodeState(), decoded(0.0, 0), 0.0)
    grown = decoded(
        30.0,
        100,
        num_retracted_requests_total=2,
        num_retracted_input_tokens_total=100,
        num_retracted_output_tokens_total=400,
    )
    decode = decode_of(fold_metrics(state, grown, 30.0), 30.0)
    assert decode.retracted_per_min.value == 4
    assert decode.recomputed_tokens_per_min.value == 1000


def test_without_metrics_retractions_are_counted_in_the_log() -> None:
    state = fold_log(fold_no_metrics(DecodeState(), OFF), [], 0.0)
    text = "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 500"
    state = fold_log(state, [line(text)], 30.0)
    decode = decode_of(state, 60.0)
    assert (decode.retracted_total.value, decode.retracted_per_min.value) == (3, 3)
    assert decode.recomputed_tokens_per_min.value == 500
    assert decode.retracted_per_min.source == "log"


def test_a_test_retraction_is_not_counted() -> None:
    state = fold_log(fold_no_metrics(DecodeState(), OFF), [], 0.0)
    state = fold_log(state, [line("Testing retraction. #retracted_reqs: 4")], 1.0)
    assert decode_of(state, 60.0).retracted_total.value == 0


def test_the_worst_pool_is_named_where_metrics_know_more_than_the_load_answer() -> None:
    state = fold_loads(DecodeState(), loads(1.0, rank(usage=0.3)), 1.0)
    gauges = {"token_usage": 0.96, "swa_token_usage": 0.1, "mamba_usage": 0.96}
    decode = decode_of(fold_metrics(state, metrics(1.0, gauges), 1.0), 1.0)
    assert (decode.token_usage.value, decode.worst_pool) == (0.96, "mamba")


def test_counts_that_stand_still_are_frozen_and_dated_when_they_were_true() -> None:
    state = DecodeState()
    for second in range(6):
        reading = loads(100.0 + second, rank(taken=50.0), wall=50.0 + second)
        state = fold_loads(state, reading, 100.0 + second)
    decode = decode_of(state, 105.0)
    assert decode.is_frozen
    assert decode.running.age_s(105.0) == 5.0
    assert frozen_since(state) == 100.0
    assert decode.generation_tokens_per_s.value is None


def test_counts_that_are_refreshed_are_not_frozen_however_late_once() -> None:
    state = fold_loads(DecodeState(), loads(100.0, rank(taken=50.0), wall=50.0), 100.0)
    state = fold_loads(state, loads(105.0, rank(taken=51.0), wall=55.0), 105.0)
    assert not state.is_frozen


def test_a_retract_pause_shows_the_emptied_gauges_and_not_the_old_answer() -> None:
    state = fold_loads(DecodeState(), loads(0.0, rank(6, 2, taken=0.0), wall=0.0), 0.0)
    gauges = {"num_running_reqs": 0.0, "num_queue_reqs": 8.0, "token_usage": 0.0}
    state = fold_metrics(state, metrics(4.0, gauges), 4.0)
    state = fold_loads(state, loads(5.0, rank(6, 2, taken=0.0), wall=5.0), 5.0)
    decode = decode_of(state, 5.0)
    assert (decode.running.value, decode.queued.value, decode.token_usage.value) == (0, 8, 0.0)


def test_no_rate_reaches_back_over_a_pause() -> None:
    state = fold_metrics(DecodeState(), decoded(0.0, 0), 0.0)
    state = fold_metrics(state, decoded(5.0, 5000), 5.0)
    state = fold_break(state)
    state = fold_metrics(state, decoded(10.0, 5000), 10.0)
    assert decode_of(state, 10.0).generation_tokens_per_s.value == 0


def test_steady_figures_need_a_minute_of_answers_and_end_with_a_break() -> None:
    state = DecodeState()
    for second in range(70):
        state = fold_loads(state, loads(second, rank(60, 20, usage=0.9)), float(second))
    assert decode_of(state, 69.0).steady_since is not None
    assert decode_of(fold_break(state), 69.0).steady_since is None


def test_pool_and_limit_come_from_server_info_where_no_answer_tells() -> None:
    body = json.loads((DATA / "sglang-0.5.23" / "server_info.json").read_text())
    parsed = parse_server_info(body, 1.0)
    assert parsed is not None
    info = replace(parsed, flags={"dp_size": 2})
    decode = decode_of(fold_info(DecodeState(), info), 2.0)
    assert (decode.pool_tokens.value, decode.max_running.value) == (8192, 4096)


def test_memory_is_bounded_over_a_day_of_answers() -> None:
    state = DecodeState()
    for second in range(3000):
        state = fold_metrics(state, decoded(second, second * 10.0), float(second))
        state = fold_loads(state, loads(second, rank()), float(second))
        state = fold_log(state, [decode_line(100)] * 3, float(second))
    assert len(state.window.readings) <= 63
    assert len(state.steadiness.samples) <= 63
    assert sum(len(x.rates) for x in state.log.decodes) <= 20


def _recorded_metrics() -> Iterator[tuple[float, MetricsReading]]:
    """Return the sweep's scrapes (changed series only) as whole readings, with their times."""
    path = DATA / "sglang-0.5.17" / "c1.0.scrapes.jsonl.gz"
    known: dict[str, float] = {}
    for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines()):
        known |= {k: float(v) for k, v in row["metrics"].items()}
        samples = [_sample(name, value) for name, value in known.items()]
        yield row["t"], merge_samples(samples, {}, row["t"])


def _sample(name: str, value: float) -> Sample:
    name, _, labels = name.partition("{")
    pairs = [pair.split("=") for pair in labels.rstrip("}").split(",") if "=" in pair]
    return Sample(f"sglang:{name}", {k: v.strip('"') for k, v in pairs}, value)


def test_rates_of_a_recorded_sweep_agree_with_its_independent_totals() -> None:
    events = (DATA / "sglang-0.5.17" / "c1.0.events.jsonl").read_text().splitlines()
    points = [p for p in map(json.loads, events) if p["what"] == "POINT"]
    state = DecodeState()
    rates: dict[float, int | float | None] = {}
    for at, reading in _recorded_metrics():
        state = fold_metrics(state, reading, at)
        rates[at] = decode_of(state, at).generation_tokens_per_s.value
    for point in points[:3]:
        begin = point["t"] - point["seconds"]
        of_window = [r for t, r in rates.items() if begin + 10 < t <= point["t"] and r is not None]
        mean = sum(of_window) / len(of_window)
        assert mean == pytest.approx(point["decode_per_s"], rel=0.03), point["clients"]


def test_the_recorded_pause_freezes_its_counts() -> None:
    path = DATA / "sglang-0.5.23" / "v1_loads_samples.jsonl"
    frozen: dict[str, set[bool]] = {}
    state = DecodeState()
    for row in map(json.loads, path.read_text().splitlines()):
        reading = parse_v1_loads(row["loads"], row["t"], 0.0, has_metrics=True)
        assert reading is not None
        state = fold_loads(state, reading, row["t"])
        frozen.setdefault(row["tag"], set()).add(state.is_frozen)
    assert frozen["pressure"] == {False}
    assert any(True in seen for tag, seen in frozen.items() if "pause" in tag), frozen


def test_lines_of_unknown_shape_are_counted_and_nothing_is_guessed_from_them() -> None:
    odd = [line("Decode batch: running=99 usage=0.9"), line("hello"), decode_line(100.0)]
    state = fold_log(DecodeState(), odd, 1.0)
    decode = decode_of(state, 1.0)
    assert (decode.log_lines, decode.unrecognised_lines) == (3, 2)
    assert decode.running.value == 8


def test_an_exposition_under_other_names_is_told_and_is_no_zero() -> None:
    reading = merge_samples([Sample("vllm:num_requests", {}, 3.0)], {}, 1.0)
    decode = decode_of(fold_metrics(DecodeState(), reading, 1.0), 1.0)
    assert decode.retracted_per_min.value is None
    assert "names that are not SGLang's" in (decode.retracted_per_min.reason or "")


def test_a_bad_line_of_metrics_is_counted() -> None:
    reading = replace(decoded(1.0, 5.0), bad_lines=3)
    assert decode_of(fold_metrics(DecodeState(), reading, 1.0), 1.0).bad_metric_lines == 3


@pytest.mark.parametrize("tokens", [(500, 500, 500, 500), (500, 530, 530, 530)])
def test_a_frozen_engines_counters_are_neither_a_zero_nor_a_rate_of_now(
    tokens: tuple[int, ...],
) -> None:
    state = DecodeState()
    for at, count in zip((0.0, 4.0, 8.0, 12.0), tokens, strict=True):
        state = fold_loads(state, loads(at, rank(8, 3, taken=0.0)), at)
        state = fold_metrics(state, decoded(at, count), at)
    decode = decode_of(state, 12.0)
    assert decode.is_frozen
    for figure in (decode.generation_tokens_per_s, decode.prefill_tokens_per_s):
        assert figure.value is None and figure.reason == "no new counts for 12 s"
