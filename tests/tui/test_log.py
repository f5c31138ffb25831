from dataclasses import replace
from pathlib import Path

import pytest

from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.logfile import KEPT_LINES, LogFile
from kvctl.tui.present import log
from kvctl.tui.present.text import width
from tests.fakes.feed import FakeFeed
from tests.tui import mission
from tests.tui.driving import driven

HOSTILE = Path(__file__).parents[1] / "data" / "cases" / "o17-hostile-text.log"
LINES = [
    "[TP0] Prefill batch, #new-seq: 1",
    "[TP0] Decode batch, #running-req: 38",
    "[TP0] Decode batch, #running-req: 39",
    '127.0.0.1 - "GET /v1/loads HTTP/1.1" 200 OK',
    "[TP3] torch.OutOfMemoryError: CUDA out of memory",
    '127.0.0.1 - "GET /health HTTP/1.1" 503 Service Unavailable',
]


@pytest.mark.parametrize(
    ("query", "count"), [("", 6), ("decode", 2), ("!decode", 4), ("!", 6), ("nothing", 0)]
)
def test_a_filter_keeps_matches_and_an_exclamation_mark_drops_them(query: str, count: int) -> None:
    assert len(log.kept(LINES, query)) == count


def test_decode_lines_are_one_moving_line_and_answered_polls_are_gone() -> None:
    assert log.folded(LINES) == [
        LINES[0],
        LINES[2] + "   (+1 decode lines)",
        LINES[4],
        LINES[5],
    ]


def test_the_first_error_is_found() -> None:
    assert log.first_error(LINES) == 4
    assert log.first_error(LINES[:3]) is None


def test_only_the_last_lines_of_a_large_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("".join(f"line {n:06d}\n" for n in range(100_000)))
    file = LogFile(str(path))
    while file.read_new():
        pass
    assert len(file.lines) == KEPT_LINES
    assert file.lines[-1] == "line 099999"


def test_what_is_appended_follows_and_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("one\ntw")
    file = LogFile(str(path))
    assert file.read_new()
    assert list(file.lines) == ["one"]
    with path.open("a") as handle:
        handle.write("o\n")
    assert file.read_new()
    assert list(file.lines) == ["one", "two"]
    assert not file.read_new()


def test_a_replaced_or_cut_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("old line\n")
    file = LogFile(str(path))
    file.read_new()
    path.unlink()
    path.write_text("new\n")
    assert file.read_new()
    assert file.lines[-1] == "new"
    path.write_text("x\n")
    assert file.read_new()
    assert file.lines[-1] == "x"


def test_a_missing_file_is_a_reason_and_not_a_crash(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "none.log"))
    assert file.read_new()
    assert "No such file" in file.problem
    assert not file.read_new()


def scene(path: Path) -> Snapshot:
    server = replace(mission.SERVER, log_path=str(path))
    return replace(mission.STEADY, servers=(server,))


async def test_the_log_page_follows_filters_and_leaves(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join(LINES) + "\n")
    async with driven(FakeFeed(scene(path))) as panel:
        await panel.press("l")
        await panel.shows("Log server.log ── 4 lines ── following", "OutOfMemoryError")
        with path.open("a") as handle:
            handle.write("The server is fired up\n")
        await panel.shows("fired up")
        await panel.press("slash", *"!memory", "enter")
        await panel.until(lambda: "OutOfMemoryError" not in panel.text)
        await panel.press("escape")
        await panel.shows("OutOfMemoryError")
        await panel.press("k")
        await panel.shows("standing still, f follows")
        await panel.press("l")
        await panel.shows("─1 Decode")


async def test_hostile_lines_are_shown_literally_in_their_columns(tmp_path: Path) -> None:
    async with driven(FakeFeed(scene(HOSTILE)), 140, 24) as panel:
        await panel.press("l")
        await panel.shows("[@click=app.quit]", "progress 99%")
        assert {width(line) for line in panel.text.split("\n")} == {140}


async def test_a_server_without_a_known_log_says_so() -> None:
    server = replace(mission.SERVER, log_path=None)
    async with driven(FakeFeed(replace(mission.STEADY, servers=(server,)))) as panel:
        await panel.press("l")
        await panel.shows("l: no log file is known for this server")
