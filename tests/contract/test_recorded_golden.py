"""Every recording of real servers, read by kvctl and beside it by plain regular expressions.

Truth is what the recordings' own drivers counted (RESULT and POINT rows) or what a simple scan of
the same bytes finds; kvctl's readers must say the same, and nothing where nothing is said.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from kvctl.core.domain.logs.lines import LogKind, LogRecord
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.runs.progress import RateWindow
from kvctl.core.domain.servers.decode import DecodeState, decode_of, fold_log, fold_metrics
from kvctl.core.domain.telemetry.balance import Balance, Moment, contradiction, fold_moment
from kvctl.core.domain.telemetry.loads import parse_get_load, parse_v1_loads
from kvctl.core.domain.telemetry.metrics import Sample, merge_samples
from kvctl.core.domain.telemetry.server_info import parse_server_info
from kvctl.core.probes.metrics_text import parse_metrics

DATA = Path(__file__).parents[1] / "data"
GPU = DATA / "sglang-0.5.17"
LOGS = {
    "bf16": GPU / "server.log.gz",
    "c1.0": GPU / "sweep.server.log.gz",
    **{name: GPU / "logs" / f"{name}.log.gz" for name in ("fp8", "smoke", "law", "c0.3", "c1.5")},
    "cpu": DATA / "sglang-0.5.23" / "server.log",
}
RETRACTED = {"bf16": 205, "fp8": 53, "c1.5": 90, "c0.3": 96, "smoke": 0}
"""num_retracted_requests_total at the end of the load (bf16: 194 of them in its 192 s window)."""


def text_of(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()


@lru_cache(maxsize=2)
def lines_of(name: str) -> tuple[str, ...]:
    return tuple(text_of(LOGS[name]).split("\n"))


@lru_cache(maxsize=2)
def records_of(name: str) -> tuple[LogRecord, ...]:
    return tuple(parse_line(line) for line in lines_of(name) if line.strip())


def numbers(lines: tuple[str, ...], message: str, pattern: str) -> list[float]:
    """Return what a regular expression finds in the lines whose message begins so."""
    begins = re.compile(rf"^\[[^\]]*\] {message}")
    found = [re.search(pattern, line) for line in lines if begins.match(line)]
    return [float(match[1]) for match in found if match]


# -- logs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOGS)
def test_decode_and_prefill_lines_of_a_recorded_log_give_what_a_plain_scan_finds(name: str) -> None:
    lines, records = lines_of(name), records_of(name)
    for kind, message, fields in (
        (LogKind.DECODE, "Decode batch", {
            "running": r"#running-req: (\d+)", "queued": r"#queue-req: (\d+)",
            "tokens": r"#token: (\d+)", "token_usage": r", token usage: ([\d.]+)",
            "generation_tokens_per_s": r"gen throughput \(token/s\): ([\d.]+)"}),
        (LogKind.PREFILL, "Prefill batch", {
            "new_seq": r"#new-seq: (\d+)", "new_tokens": r"#new-token: (\d+)",
            "cached_tokens": r"#cached-token: (\d+)", "queued": r"#queue-req: (\d+)"}),
    ):  # fmt: skip
        of_kind = [record for record in records if record.kind is kind]
        for field, pattern in fields.items():
            wanted = numbers(lines, message, pattern)
            assert [record.number_of(field) for record in of_kind] == wanted, field
            assert wanted or name == "smoke"


@pytest.mark.parametrize("name", LOGS)
def test_retractions_of_a_recorded_log_are_those_of_a_plain_scan_and_of_the_counter(
    name: str,
) -> None:
    events = [record for record in records_of(name) if record.kind is LogKind.RETRACTION]
    counted = sum(record.number_of("retracted") or 0 for record in events)
    assert counted == sum(numbers(lines_of(name), "KV cache pool is full", r"_reqs: (\d+)"))
    assert counted == RETRACTED.get(name, counted)
    gained = [record.number_of("tokens_gained") for record in events]
    assert gained == numbers(lines_of(name), "KV cache pool is full", r"_gained: (\d+)")


@pytest.mark.parametrize("name", LOGS)
def test_a_recorded_server_that_ran_well_has_no_failure_and_its_start_is_recognised(
    name: str,
) -> None:
    records = records_of(name)
    kinds = Counter(record.kind for record in records)
    assert kinds[LogKind.READY] == 1 and kinds[LogKind.STAGE] >= 5
    assert kinds[LogKind.LOST_WORK] == 0
    # The one error of a start that works: an optional package of one recording's host.
    failures = {r.word_of("class") for r in records if r.kind is LogKind.FAILURE}
    assert failures <= {"exception", "health_check"}
    # Every line that begins like SGLang's work is recognised as such.
    for record in records:
        if re.search(r"\] (Decode|Prefill) batch|Retract requests", record.text):
            assert record.kind is not LogKind.UNRECOGNISED, record.text


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_the_logs_rate_over_a_whole_run_is_the_counters(name: str) -> None:
    result = _result(name)
    rates = [
        (record.number_of("running") or 0, record.number_of("generation_tokens_per_s") or 0)
        for record in takewhile(_is_before_a_pause, records_of(name))
        if record.kind is LogKind.DECODE
    ]
    # Lines span the same number of iterations: slow ones took longer and weigh more.
    known = [(running, rate) for running, rate in rates if rate > 0 and running > 10]
    mean = sum(r for r, _ in known) / sum(r / rate for r, rate in known)
    assert mean == pytest.approx(result["decode_per_s"], rel=0.05)


def _is_before_a_pause(record: LogRecord) -> bool:
    return record.word_of("path") not in ("/pause_generation", "/abort_request")


def _result(name: str) -> dict[str, Any]:
    if name == "fp8":  # of its events file
        return {"decode_per_s": 8761.2, "seconds": 102.2, "completed": 170}
    rows = map(json.loads, text_of(GPU / "bf16.events.jsonl.gz").splitlines())
    return next(row for row in rows if row["what"] == "RESULT")


# -- answers --------------------------------------------------------------------------------------


ANSWERS = sorted((GPU / "answers").glob("*.json.gz"))


def body_of(path: Path) -> Any:
    return json.loads(text_of(path))


@pytest.mark.parametrize("path", [p for p in ANSWERS if "v1_loads" in p.name], ids=lambda p: p.name)
def test_a_recorded_load_answer_is_read_field_by_field(path: Path) -> None:
    body = body_of(path)
    reading = parse_v1_loads(body, 1.0, 1.0, has_metrics=True)
    assert reading is not None and reading.version == body["version"]
    for entry, rank in zip(body["loads"], reading.ranks, strict=True):
        assert rank.running == entry["num_running_reqs"]
        assert rank.queued == entry["num_waiting_reqs"]
        assert rank.used_tokens == entry["num_used_tokens"]
        assert rank.pool_tokens == entry["max_total_num_tokens"]
        assert rank.token_usage == entry["token_usage"]
        assert rank.taken_wall == entry["timestamp"]
        assert rank.prefilled_tokens == entry["total_prefill_uncached_tokens"]
        assert rank.prefill_busy_s == pytest.approx(entry["total_prefill_busy_us"] / 1e6)
        assert (rank.gen_throughput or 0) == entry["gen_throughput"]


@pytest.mark.parametrize("path", [p for p in ANSWERS if "get_load" in p.name], ids=lambda p: p.name)
def test_a_recorded_old_load_answer_gives_running_without_the_waiting(path: Path) -> None:
    body = body_of(path)
    reading = parse_get_load(body, 1.0, 1.0, "0.5.17")
    assert reading is not None
    for entry, rank in zip(body, reading.ranks, strict=True):
        assert rank.running == entry["num_reqs"] - entry["num_waiting_reqs"]
        assert rank.queued == entry["num_waiting_reqs"]
        assert rank.used_tokens is None  # its tokens include prompts that only wait


INFOS = [path for path in ANSWERS if "server_info" in path.name]


@pytest.mark.parametrize("path", INFOS, ids=lambda p: p.name)
def test_a_recorded_server_info_gives_pool_limit_and_cap(path: Path) -> None:
    body = body_of(path)
    info = parse_server_info(body, 1.0)
    assert info is not None and info.version == body["version"] == "0.5.17"
    assert info.pool_tokens == body["max_total_num_tokens"]
    state = body["internal_states"][0]
    assert info.max_running == state["effective_max_running_requests_per_dp"]
    assert info.live_cap == state["pp_max_micro_batch_size"]
    assert info.last_gen_throughput == state["last_gen_throughput"]
    assert all(state[name] == value for name, value in info.live_flags.items())


@pytest.mark.parametrize("run", ["bf16", "fp8", "c0.3", "c1.5"])
def test_every_recorded_row_of_loads_gives_its_counts(run: str) -> None:
    rows = 0
    for row in map(json.loads, text_of(GPU / "scrapes" / f"{run}.jsonl.gz").splitlines()):
        if not row.get("loads"):
            continue
        rows += 1
        reading = parse_v1_loads({"loads": row["loads"]}, row["t"], row["t"], has_metrics=True)
        assert reading is not None
        wanted = [(e["num_running_reqs"], e["num_waiting_reqs"]) for e in row["loads"]]
        assert [(r.running, r.queued) for r in reading.ranks] == wanted
    assert rows >= 9


# -- metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smoke.metrics.txt.gz", "c1.0.metrics.txt.gz"])
def test_a_recorded_exposition_has_no_bad_line_and_every_plain_counter(name: str) -> None:
    text = text_of(GPU / name)
    got = parse_metrics(text, 1.0)
    assert got.bad_lines == 0
    sums: dict[str, float] = {}
    for metric, value in re.findall(r"^sglang:(\w+_total)(?:\{.*\})? (\S+)$", text, re.M):
        sums[metric] = sums.get(metric, 0.0) + float(value)
    for metric, value in sums.items():
        parts = [v for k, v in got.counters.items() if k.split(".")[0] == metric]
        assert sum(parts) == pytest.approx(value), metric


def _readings(run: str) -> Iterator[tuple[float, Any]]:
    """Return the scrapes (changed series only) as whole readings, with their times."""
    known: dict[str, float] = {}
    for row in map(json.loads, text_of(GPU / "scrapes" / f"{run}.jsonl.gz").splitlines()):
        known |= {k: float(v) for k, v in (row.get("metrics") or {}).items()}
        samples = []
        for name, value in known.items():
            bare, _, labels = name.partition("{")
            pairs = [pair.split("=") for pair in labels.rstrip("}").split(",") if "=" in pair]
            named = {key: label.strip('"') for key, label in pairs}
            samples.append(Sample(f"sglang:{bare}", named, value))
        yield row["t"], merge_samples(samples, {}, row["t"])


@pytest.mark.parametrize("run", ["c1.5", "c0.3"])
def test_rates_and_retractions_of_a_recorded_run_agree_with_its_totals(run: str) -> None:
    events = (GPU / "c1.5-c0.3.events.jsonl").read_text().splitlines()
    point = next(p for p in map(json.loads, events) if p.get("tag") == run and p["what"] == "POINT")
    begin, end = point["t"] - point["seconds"], point["t"]
    state = DecodeState()
    totals: dict[float, float] = {}
    rates: dict[int, float] = {}
    for at, reading in _readings(run):
        state = fold_metrics(state, reading, at)
        decode = decode_of(state, at)
        if begin + 9 < at <= end and decode.generation_tokens_per_s.value is not None:
            # One window of ten seconds after the other, so that each second counts once.
            rates.setdefault(round((at - begin) / 10), decode.generation_tokens_per_s.value)
        if decode.retracted_total.value is not None:
            totals[at] = decode.retracted_total.value
    assert sum(rates.values()) / len(rates) == pytest.approx(point["decode_per_s"], rel=0.04)
    before = [v for at, v in totals.items() if at <= begin]
    grown = max(v for at, v in totals.items() if at <= end + 4) - (before[-1] if before else 0)
    assert grown == pytest.approx(point["num_retracted_requests_total"], abs=2)


# -- effective ------------------------------------------------------------------------------------


def test_effective_tokens_of_a_recorded_run_are_those_its_clients_got() -> None:
    result = _result("bf16")
    end = result["t"]
    begin = end - result["seconds"]
    rows = [json.loads(line) for line in text_of(GPU / "bf16.requests.jsonl.gz").splitlines()]
    window = RateWindow()
    ended = sorted((row["t1"], row["got"]) for row in rows if row["fin"] == "length")
    for at, tokens in ended:
        if at <= end:
            window.add(at, tokens)
    rate = window.rate(end, begin)
    assert rate.answers == result["completed"]
    assert rate.tokens_per_s == pytest.approx(
        result["out_tokens_of_completed"] / result["seconds"], rel=0.001
    )


def test_a_real_run_never_seems_to_complete_more_than_it_generates() -> None:
    result = _result("bf16")
    begin, end = result["t"] - result["seconds"], result["t"]
    rows = [json.loads(line) for line in text_of(GPU / "bf16.requests.jsonl.gz").splitlines()]
    ended = sorted((row["t1"], row["got"]) for row in rows if row["fin"] == "length")
    balance: Balance | None = None
    for second in range(int(begin) + 30, int(end)):
        tokens = sum(got for at, got in ended if at <= second)
        moment = Moment(float(second), result["decode_per_s"], tokens, 0.0)
        balance = fold_moment(balance, moment)
        assert balance is not None
        in_flight = replace(balance, first=replace(balance.first, in_flight_tokens=150 * 3500.0))
        assert contradiction(in_flight) is None


def test_a_log_alone_never_shows_a_rate_that_no_line_could_mean() -> None:
    state, shown, told = DecodeState(), [], []
    for number, record in enumerate(records_of("fp8")):
        at = number / 20
        state = fold_log(state, [record], at)
        rate = record.number_of("generation_tokens_per_s")
        if rate is not None:
            told.append(rate)
        value = decode_of(state, at).generation_tokens_per_s.value
        if value is not None:
            shown.append(value)
    assert shown and min(shown) >= 0 and max(shown) <= max(told)
