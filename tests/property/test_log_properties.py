"""No line makes the log parser raise, invent a number or let a control character through."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from kvctl.core.domain.logs.lines import LogKind
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.servers.startup import StartupProgress, failure_of, fold_startup

WORDS = st.sampled_from(
    [
        "[2026-11-02 09:30:00 TP0] ",
        "Decode batch, ",
        "Prefill batch. ",
        "#running-req: ",
        "8, ",
        "token usage: ",
        "0.5",
        "#token: ",
        "nan",
        "inf",
        "-1",
        "%",
        "\r",
        "\x1b[31m",
        "Capture ",
        "graph end",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [",
        "server_args=",
        "KV cache pool is full. Retract requests. #retracted_reqs: ",
        "#new_token_ratio: 0.1 -> ",
        "torch.OutOfMemoryError: ",
        "max_total_num_tokens=",
        "99999999999999999999999",
        "1e999",
    ]
)
LINES = st.one_of(st.text(), st.lists(WORDS | st.text(max_size=4), max_size=20).map("".join))


@given(LINES)
def test_any_line_parses_to_finite_numbers_and_harmless_text(line: str) -> None:
    record = parse_line(line)
    assert all(math.isfinite(value) for _, value in record.fields)
    assert len(record.text) <= 2000
    assert record.text.isprintable()


@given(LINES)
def test_a_batch_line_has_only_numbers_that_stand_in_it(line: str) -> None:
    record = parse_line(line)
    if record.kind in (LogKind.DECODE, LogKind.PREFILL):
        digits = [float(n) for n in re.findall(r"\d+(?:\.\d+)?", record.text)]
        for name, value in record.fields:
            shown = {value, value * 100, -value}
            assert name == "graph" or any(math.isclose(d, s) for d in digits for s in shown)


@given(st.lists(LINES, max_size=30))
def test_any_log_folds_into_a_start_and_a_judgement(lines: list[str]) -> None:
    records = [parse_line(line, number) for number, line in enumerate(lines, 1)]
    fold_startup(StartupProgress(), records, 1.0)
    failure_of(records)


@given(st.text())
def test_cleaning_twice_changes_nothing(line: str) -> None:
    once = parse_line(line).text
    assert parse_line(once).text == once
