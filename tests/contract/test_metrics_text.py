"""Recorded /metrics answers of real servers through the whole reader, one golden a file."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from kvctl.core.domain.telemetry.rates import rate
from kvctl.core.domain.telemetry.readings import MetricsReading
from kvctl.core.probes.metrics_text import parse_metrics

DATA = Path(__file__).parents[1] / "data"


def read(name: str, at: float = 0.0) -> MetricsReading:
    path = DATA / name
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return parse_metrics(text, at)


GOLDEN = {
    "sglang-0.5.23/metrics_idle.txt": (0, 0, 0.0, 7),
    "sglang-0.5.23/metrics_pressure.txt": (7, 19, 0.99, 7199),
    "sglang-0.5.23/metrics_paused_in_place.txt": (7, 19, 0.99, 7229),
    "sglang-0.5.23/metrics_paused_retract.txt": (0, 26, 0.0, 8331),
    "sglang-0.5.23/metrics_end.txt": (0, 0, 0.0, 9436),
    "sglang-0.5.17/c1.0.metrics.txt.gz": (0, 0, 0.0, 9),
}


@pytest.mark.parametrize(("name", "wanted"), GOLDEN.items(), ids=GOLDEN)
def test_a_recorded_answer_gives_its_load(name: str, wanted: Any) -> None:
    got = read(name)
    figures = (
        got.gauges["num_running_reqs"],
        got.gauges["num_queue_reqs"],
        got.gauges["token_usage"],
        got.counters.get("realtime_tokens_total.decode"),
    )
    assert figures == wanted
    assert got.bad_lines == 0
    assert "fwd_occupancy" not in got.gauges  # it is NaN while idle


def test_the_metric_names_that_are_relied_upon_exist_in_the_recording() -> None:
    got = read("sglang-0.5.23/metrics_end.txt")
    counters = {
        "realtime_tokens_total.decode",
        "realtime_tokens_total.prefill_compute",
        "realtime_tokens_total.prefill_cache",
        "num_retracted_requests_total",
        "num_retracted_input_tokens_total",
        "num_retracted_output_tokens_total",
        "generation_tokens_total",
    }
    assert counters <= got.counters.keys()
    histograms = {
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "queue_time_seconds",
    }
    assert histograms <= got.histograms.keys()
    gauges = {"max_total_num_tokens", "swa_token_usage", "mamba_usage", "spec_accept_length"}
    assert gauges <= got.gauges.keys()


def test_o4_busy_ranks_add_and_the_idle_gauge_is_belied_by_the_counter() -> None:
    busy = read("cases/o04-dp-busy.metrics", 0.0)
    after_5 = read("cases/o04-dp-idle-5s-later.metrics", 5.0)
    after_10 = read("cases/o04-dp-idle-10s-later.metrics", 10.0)
    assert busy.gauges["num_running_reqs"] == 42
    assert busy.gauges["num_queue_reqs"] == 31
    assert busy.gauges["gen_throughput"] == pytest.approx(405.77)
    assert busy.gauges["token_usage"] == 0.97
    assert rate(busy, after_5, "realtime_tokens_total.decode") == 398
    assert rate(after_5, after_10, "realtime_tokens_total.decode") == 0
    assert after_10.gauges["gen_throughput"] == pytest.approx(405.77)  # stale, as it says


def test_o5_odd_values_cost_themselves_only() -> None:
    got = read("cases/o05-odd-values.metrics")
    assert got.gauges == {
        "num_running_reqs": 7,
        "num_queue_reqs": 0,
        "token_usage": 0.012,
        "max_total_num_tokens": 1048576,
    }
    assert got.model_name == 'org/na"me, {x}\\y'
    assert got.bad_lines == 1


def test_an_answer_with_unknown_names_has_no_figures_but_says_so() -> None:
    got = parse_metrics("other_running 4\n", 0.0)
    assert got.gauges == {} and got.foreign_samples == 1
