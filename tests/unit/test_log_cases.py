"""Log lines of the field cases O1, O2, O3, O11, O12 and O17, with their right values."""

from pathlib import Path
from typing import Any

import pytest

from kvctl.core.domain.logs.lines import LogKind, LogRecord
from kvctl.core.domain.logs.scan import parse_line

CASES = Path(__file__).parents[1] / "data" / "cases"


def records_of(name: str) -> list[LogRecord]:
    text = (CASES / name).read_text(encoding="utf-8", errors="surrogateescape")
    return [parse_line(line, n) for n, line in enumerate(text.split("\n"), 1) if line.strip()]


DECODES = [
    ("TP0", 12, 40960, 0.31, 812.44, 0),
    ("TP0", 64, 210001, 0.77, 3120.09, 5),
    ("DP1 TP1", 31, 99000, 0.42, 1544.50, 0),
    ("DP0 TP0 EP0", 128, 1048576, 0.95, 9002.31, 44),
    ("TP0", 96, 500123, 0.48, 0.00, 7),
    ("TP0", 96, 500219, 0.48, 4100.55, 7),
]
FIELDS = ("running", "tokens", "token_usage", "generation_tokens_per_s", "queued")


@pytest.mark.parametrize(("index", "wanted"), list(enumerate(DECODES)))
def test_o1_a_decode_line_of_every_version_gives_its_values(index: int, wanted: Any) -> None:
    record = records_of("o01-decode-formats.log")[index]
    assert record.kind is LogKind.DECODE
    assert (record.rank, *(record.number_of(name) for name in FIELDS)) == wanted


def test_o1_graph_and_speculative_figures_are_read_where_a_line_has_them() -> None:
    records = records_of("o01-decode-formats.log")
    assert [r.number_of("graph") for r in records[:6]] == [None, 1, 1, 1, 0, 1]
    assert records[2].number_of("accept_length") == 2.71
    assert records[3].number_of("accept_ratio") == 0.70


def test_o1_a_prefill_line_has_its_own_kind_and_no_decode_rate() -> None:
    prefill = records_of("o01-decode-formats.log")[6]
    assert prefill.kind is LogKind.PREFILL
    assert prefill.number_of("generation_tokens_per_s") is None
    names = ("new_seq", "new_tokens", "running", "queued", "pending_tokens", "input_tokens_per_s")
    assert [prefill.number_of(name) for name in names] == [6, 15360, 116, 238, 595000, 25774.75]


def test_o1_an_access_line_is_neither_sample_nor_error() -> None:
    access = records_of("o01-decode-formats.log")[7]
    assert access.kind is LogKind.ACCESS
    assert access.word_of("path") == "/generate"


def test_what_a_killed_server_says_last_is_the_line_before_pythons_own_warning() -> None:
    told = [
        "[2026-12-01 00:36:06] Decode batch, #running-req: 10, #token: 2268, token usage: 0.55",
        '[2026-12-01 00:36:06] INFO:     127.0.0.1:55546 - "POST /generate HTTP/1.1" 200 OK',
        "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: "
        "resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ]
    assert [parse_line(line).is_telling for line in told] == [True, False, False, False]
    assert parse_line("[2026-12-01 00:36:06] UserWarning: low memory").is_telling


def test_o2_four_retractions_took_eleven_requests() -> None:
    records = records_of("o02-retractions.log")
    counts = [r.number_of("retracted") for r in records if r.kind is LogKind.RETRACTION]
    assert counts == [3, 2, 5, 1, None]  # the fifth is a test retraction, counted apart
    assert records[4].number_of("test_retracted") == 4
    assert records[3].number_of("new_token_ratio_to") == 0.99


def test_o2_an_aborted_request_is_lost_work_and_no_retraction() -> None:
    lost = records_of("o02-retractions.log")[5]
    assert lost.kind is LogKind.LOST_WORK
    assert lost.word_of("rid") == "9f2c"


def test_o3_the_pressure_of_a_hybrid_model_is_that_of_its_worst_pool() -> None:
    records = records_of("o03-hybrid.log")
    worst = [(r.number_of("token_usage"), r.word_of("pool")) for r in records]
    assert worst == [(1.00, "full"), (0.98, "swa"), (0.96, "mamba")]


def test_o3_a_line_without_any_usage_leaves_it_unknown() -> None:
    record = parse_line("Decode batch, #running-req: 4, gen throughput (token/s): 9.00")
    assert record.kind is LogKind.DECODE
    assert record.number_of("token_usage") is None


def test_o17_hostile_text_is_shown_literally_and_without_controls() -> None:
    text = (CASES / "o17-hostile-text.log").read_bytes().decode("utf-8", errors="replace")
    shown = [parse_line(line).text for line in text.split("\n") if line.strip()]
    assert shown[0].endswith("[/#888888] [/] [red] [0] [@click=app.quit]x[/]")
    assert shown[1] == "(RayWorkerWrapper pid=37007) ERROR x"
    assert shown[2] == "wiped?"
    assert shown[3] == "progress 99%"
    assert "\u202e" not in shown[4]
    assert shown[5] == "nultab bel"
    assert len(shown[6]) == 2000 and shown[6].endswith("…")
    assert all(character.isprintable() for line in shown for character in line)


def test_a_logged_prompt_cannot_pose_as_a_figure_or_a_failure() -> None:
    quoted = (
        "[2026-11-02 09:30:00] Receive: obj=GenerateReqInput(text='[2026-11-02 09:30:00] Decode "
        "batch, #running-req: 9, token usage: 0.99 torch.OutOfMemoryError: CUDA out of memory')"
    )
    assert parse_line(quoted).kind is LogKind.UNRECOGNISED


def test_a_line_torn_by_another_writer_costs_itself_only() -> None:
    torn = "[2026-11-02 09:30:00 TP0] Decode batch, #running-req: 9[2026-11-02 09:30:00] INFO: x"
    record = parse_line(torn)
    assert record.number_of("running") is None
