"""Merging of /metrics by meaning, rates over resets, windows of histograms (cases O4 and O5)."""

import math

from kvctl.core.domain.telemetry.metrics import Sample, merge_samples
from kvctl.core.domain.telemetry.rates import increase, mean, percentile, rate, was_reset, window
from kvctl.core.domain.telemetry.readings import Histogram, MetricsReading


def reading(at: float, **counters: float) -> MetricsReading:
    return MetricsReading(at=at, counters=counters, gauges={}, histograms={})


def merged(*samples: Sample, **types: str) -> MetricsReading:
    named = {f"sglang:{name}": kind for name, kind in types.items()}
    return merge_samples(samples, named, at=1.0)


def sample(name: str, value: float, **labels: str) -> Sample:
    return Sample(f"sglang:{name}", labels, value)


def test_counts_add_over_dp_ranks_and_pressure_takes_the_worst() -> None:
    got = merged(
        sample("num_running_reqs", 40, dp_rank="0"),
        sample("num_running_reqs", 2, dp_rank="1"),
        sample("token_usage", 0.97, dp_rank="0"),
        sample("token_usage", 0.08, dp_rank="1"),
    )
    assert got.gauges == {"num_running_reqs": 42, "token_usage": 0.97}
    assert got.by_rank["DP1"] == {"running": 2, "token_usage": 0.08}


def test_copies_of_tensor_and_pipeline_ranks_are_never_added() -> None:
    copies = [
        sample("realtime_tokens_total", 100, dp_rank=dp, tp_rank=tp, pp_rank=pp, mode="decode")
        for dp in "01"
        for tp in "0123"
        for pp in "01"
    ]
    assert merged(*copies).counters == {"realtime_tokens_total.decode": 200}


def test_a_gauge_of_several_pids_is_not_believed() -> None:
    got = merged(
        sample("num_retracted_reqs", 3, pid="10", tp_rank="0"),
        sample("num_retracted_reqs", 5, pid="11", tp_rank="0"),
        sample("num_paused_reqs", 0, pid="11", tp_rank="0"),
    )
    assert got.gauges == {"num_paused_reqs": 0}


def test_nan_and_infinite_values_are_left_out() -> None:
    got = merged(sample("fwd_occupancy", math.nan), sample("gen_throughput", math.inf))
    assert got.gauges == {}


def test_a_total_beside_its_priorities_is_counted_once() -> None:
    got = merged(
        sample("num_queue_reqs", 9, priority=""),
        sample("num_queue_reqs", 4, priority="1"),
        sample("num_queue_reqs", 5, priority="2"),
    )
    assert got.gauges == {"num_queue_reqs": 9}


def test_a_counter_that_is_split_by_priority_adds_up() -> None:
    got = merged(
        sample("generation_tokens_total", 9, priority=""),
        sample("generation_tokens_total", 4, priority="1"),
    )
    assert got.counters == {"generation_tokens_total": 13}


def test_a_gauge_whose_name_ends_like_a_histogram_part_is_a_gauge() -> None:
    got = merged(sample("routing_key_all_req_count", 3), routing_key_all_req_count="gauge")
    assert got.gauges == {"routing_key_all_req_count": 3}


def test_both_prefixes_are_read_and_foreign_names_are_counted() -> None:
    samples = [
        Sample("sglang_num_running_reqs", {}, 7),
        Sample("sglang:num_queue_reqs", {}, 1),
        Sample("process_cpu_seconds_total", {}, 3),
    ]
    got = merge_samples(samples, {}, at=1.0)
    assert got.gauges == {"num_running_reqs": 7, "num_queue_reqs": 1}
    assert got.foreign_samples == 1


def test_histograms_add_over_label_sets_and_ranks() -> None:
    rows = [
        sample("queue_time_seconds_bucket", count, le=le, dp_rank=dp)
        for dp in "01"
        for le, count in (("1.0", 2), ("+Inf", 4))
    ]
    sums = [sample("queue_time_seconds_sum", 6.0, dp_rank=dp) for dp in "01"]
    got = merged(*rows, *sums, queue_time_seconds="histogram")
    assert got.histograms["queue_time_seconds"] == Histogram((1.0, math.inf), (4, 8), 12.0)
    assert got.counters == {} and got.gauges == {}


def test_an_infinite_sum_makes_the_mean_unknown_not_zero() -> None:
    got = merged(
        sample("e2e_request_latency_seconds_bucket", 4, le="+Inf"),
        sample("e2e_request_latency_seconds_sum", math.inf),
    )
    assert mean(got.histograms["e2e_request_latency_seconds"]) is None


def test_a_rate_is_growth_over_time_and_unknown_without_it() -> None:
    older, newer = reading(10.0, tokens=100.0), reading(15.0, tokens=600.0)
    assert rate(older, newer, "tokens") == 100.0
    assert rate(newer, newer, "tokens") is None
    assert rate(older, newer, "absent") is None


def test_a_counter_that_went_down_was_reset_and_counts_from_zero() -> None:
    older, newer = reading(10.0, tokens=1000.0), reading(15.0, tokens=50.0)
    assert was_reset(older, newer)
    assert increase(older, newer, "tokens") == 50.0


def test_a_percentile_is_of_the_window_and_not_of_the_lifetime() -> None:
    bounds = (1.0, 10.0, math.inf)
    older = Histogram(bounds, (1000.0, 1000.0, 1000.0), 500.0)
    newer = Histogram(bounds, (1000.0, 1010.0, 1010.0), 550.0)
    lately = window(older, newer)
    assert lately.counts[-1] == 10
    assert percentile(lately, 0.5) == 5.5
    assert mean(lately) == 5.0


def test_a_percentile_without_observations_is_unknown() -> None:
    empty = Histogram((1.0, math.inf), (0.0, 0.0), 0.0)
    assert percentile(empty, 0.5) is None and mean(empty) is None


def test_a_percentile_in_the_open_bucket_is_its_lower_bound() -> None:
    assert percentile(Histogram((1.0, math.inf), (0.0, 5.0), 50.0), 0.99) == 1.0
