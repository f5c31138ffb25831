"""The why page says what each source tells, where they disagree and what could not be read."""

from dataclasses import replace

from kvctl.core.cli.render import server_lines
from kvctl.core.documents.server import server_document
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.telemetry.agreement import Comparison, Told
from kvctl.tui.present import decode as pane
from kvctl.tui.present.header import one_line
from kvctl.tui.present.line import Line
from kvctl.tui.present.pages import why_lines
from kvctl.tui.present.view import View
from tests.tui.mission import STEADY

AT = STEADY.at
COMPARED = (
    Comparison("running", (Told("/v1/loads", 44, AT), Told("log", 43, AT))),
    Comparison(
        "generation_tokens_per_s",
        (Told("realtime_tokens_total, 10 s", 800, AT, "10 s"), Told("log", 400, AT, "10 s")),
        "log says 400 tok/s (10 s), realtime_tokens_total, 10 s 800",
    ),
)


def shown() -> Snapshot:
    assert STEADY.server is not None
    decode = replace(
        STEADY.server.decode,
        sources=COMPARED,
        log_lines=1200,
        unrecognised_lines=3,
        imbalance="DP0 has 31 queued while DP1 runs 2",
        worst_rank="DP0",
    )
    return replace(STEADY, servers=(replace(STEADY.server, decode=decode),))


def texts(lines: list[Line]) -> list[str]:
    return ["".join(cell.text for cell in line.cells) for line in lines]


def test_the_why_page_lists_sources_disagreements_first() -> None:
    lines = texts(why_lines(shown(), View(), 100))
    begin = next(n for n, line in enumerate(lines) if line.startswith(" Sources"))
    page = "\n".join(lines[begin:])
    assert page.index("generation: disagree") < page.index("running")
    assert "log says 400 tok/s" in page and "3 of 1,200 lines" in page
    assert "DP0 has 31 queued while DP1 runs 2" in page


def test_without_sources_the_page_is_as_it_was() -> None:
    assert not any("Sources" in line for line in texts(why_lines(STEADY, View(), 100)))


def test_the_decode_pane_names_the_worst_rank_and_the_imbalance() -> None:
    page = "\n".join(texts(pane.body(shown(), View(), 110, 20)))
    assert "DP0 fullest" in page and "DP0 has 31 queued while DP1 runs 2" in page


def test_replicas_are_told_in_the_header_and_in_the_status_text() -> None:
    assert STEADY.server is not None
    replicas = replace(STEADY.server, tp_size=1, dp_size=2)
    snapshot = replace(STEADY, servers=(replicas,))
    assert " tp1 dp2 " in "".join(texts([one_line(snapshot, View(), 160)]))
    assert any("TP 1  DP 2" in line for line in server_lines(replicas))
    assert not any("DP" in line for line in server_lines(STEADY.server))


def test_the_status_document_has_every_source_with_its_age_and_window() -> None:
    snapshot = shown()
    assert snapshot.server is not None
    document = server_document(snapshot.server, AT + 2)
    told = {entry["figure"]: entry for entry in document["sources"]}
    generation = told["generation_tokens_per_s"]
    assert generation["problem"] and generation["told"][1] == {
        "source": "log", "value": 400, "age_s": 2.0, "over": "10 s",
    }  # fmt: skip
    assert told["running"]["problem"] is None
