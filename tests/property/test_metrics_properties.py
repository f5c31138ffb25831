"""No text makes the metrics reader raise or invent a number; rates are never negative."""

import math

from hypothesis import given
from hypothesis import strategies as st

from kvctl.core.domain.telemetry.rates import percentile, rate
from kvctl.core.domain.telemetry.readings import Histogram, MetricsReading
from kvctl.core.probes.metrics_text import parse_metrics

PIECES = st.sampled_from(
    [
        "sglang:num_running_reqs",
        "sglang_token_usage",
        "{",
        "}",
        'dp_rank="0"',
        ",",
        " ",
        "7",
        "NaN",
        "+Inf",
        "1e999",
        "\n",
        "# TYPE sglang:x counter\n",
        '"',
        "\\",
        "_bucket",
        'le="1.0"',
        "{}",
        "-1",
        "sglang:x_total",
        "# HELP",
        "# TYPE",
        "# EOF",
        "\x00",
        "é",
        "1_0",
    ]
)
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=25).map("".join))


@given(TEXTS)
def test_any_text_gives_finite_figures(text: str) -> None:
    got = parse_metrics(text, 1.0)
    values = [*got.gauges.values(), *got.counters.values()]
    assert all(math.isfinite(value) for value in values)


@given(TEXTS)
def test_garbage_around_a_good_line_does_not_lose_it(text: str) -> None:
    got = parse_metrics(f"{text}\nsglang:num_grammar_queue_reqs 7\n{text}\n", 1.0)
    assert got.gauges["num_grammar_queue_reqs"] >= 7 or "grammar" in text


COUNTS = st.floats(min_value=0, max_value=1e12)


@given(COUNTS, COUNTS, st.floats(min_value=0.001, max_value=1e6))
def test_a_rate_is_never_negative(before: float, after: float, elapsed: float) -> None:
    older = MetricsReading(0.0, {"x": before}, {}, {})
    newer = MetricsReading(elapsed, {"x": after}, {}, {})
    grown = rate(older, newer, "x")
    assert grown is not None and grown >= 0


@given(st.lists(COUNTS, min_size=3, max_size=3), st.floats(min_value=0, max_value=1))
def test_a_percentile_lies_within_the_bounds(counts: list[float], ratio: float) -> None:
    histogram = Histogram((1.0, 10.0, math.inf), tuple(sorted(counts)), 1.0)
    value = percentile(histogram, ratio)
    assert value is None or 0.0 <= value <= 10.0
