from dataclasses import replace
from pathlib import Path

import pytest

from kvctl.core.domain.events import Event
from kvctl.core.domain.gpus.devices import HolderKind
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.verdict import Verdict, VerdictWord
from kvctl.tui.actions import hints
from kvctl.tui.present import layout
from kvctl.tui.present.layout import Size
from kvctl.tui.present.line import Line
from kvctl.tui.present.view import View
from tests.tui import mission

FRAMES = Path(__file__).parent / "frames"
HOSTILE = Path(__file__).parents[1] / "data" / "cases" / "o17-hostile-text.log"
SCENES = {
    "steady": mission.STEADY,
    "starting": mission.STARTING,
    "failed": mission.FAILED,
    "nothing": mission.NOTHING,
    "leftover": mission.LEFTOVER_SCENE,
    "paused": mission.PAUSED,
    "stale": mission.STALE,
}
SIZES = [(120, 40), (80, 24), (200, 60), (60, 16), (40, 10), (20, 5), (112, 34), (111, 33),
         (80, 50), (140, 30), (72, 20), (48, 13), (36, 8), (300, 90), (7, 1), (1, 1)]  # fmt: skip


def drawn(snapshot: Snapshot, columns: int, rows: int, view: View | None = None) -> list[Line]:
    view = view or View(operator="mo")
    return layout.overview(snapshot, view, Size(columns, rows), hints(snapshot, view))


def text(snapshot: Snapshot, columns: int, rows: int, view: View | None = None) -> str:
    return "\n".join(line.text for line in drawn(snapshot, columns, rows, view))


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", SCENES)
def test_every_line_has_exactly_the_width_of_the_screen(name: str, size: tuple[int, int]) -> None:
    for zoom in (None, 1, 2, 3, 4, 5, 6):
        lines = drawn(SCENES[name], *size, View(zoom=zoom))
        assert len(lines) == size[1]
        assert {line.width for line in lines} == {size[0]}


@pytest.mark.parametrize(("columns", "rows"), [(120, 40), (80, 24), (60, 16), (40, 10)])
@pytest.mark.parametrize("name", SCENES)
def test_ascii_mode_draws_no_character_beyond_ascii(name: str, columns: int, rows: int) -> None:
    assert text(SCENES[name], columns, rows, View(is_ascii=True)).isascii()


@pytest.mark.parametrize("scene", ["steady", "starting", "leftover", "failed"])
@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_the_overview_is_the_frame_of_the_file_to_the_column(
    scene: str, size: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    shown = text(SCENES[scene], *size) + "\n"
    path = FRAMES / f"{scene}-{size[0]}x{size[1]}.txt"
    if request.config.getoption("--snapshot-update", default=False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, "utf-8")
    assert shown == path.read_text("utf-8")


def test_the_mission_agrees_with_itself_at_both_sizes() -> None:
    for columns, rows in ((120, 40), (80, 24)):
        shown = text(mission.STEADY, columns, rows)
        for words in ("148,128 of 159,277", "~39 fit at 4.1K", "waits ~51 s", "13,664 of 88,000",
                      "7 h 14 m", "Wed 22:45", "slots AUTO  46, in flight  46"):  # fmt: skip
            assert words in shown


def test_nothing_falls_off_the_small_screen_all_partitions_and_panes_are_there() -> None:
    shown = text(mission.STEADY, 80, 24)
    for words in ("─1 Decode", "─2 GPUs", "─3 Run", "─6 Events", "B1", "B7", "LIMIT", "p pause"):
        assert words in shown


def test_a_gpu_that_differs_stands_alone_with_what_holds_it() -> None:
    shown = text(mission.LEFTOVER_SCENE, 80, 24)
    assert "7 of 8 alike ── 1 leftover: K" in shown
    assert "GPU 4  91.5 GiB  leftover sglang::scheduler_TP4 pid 41822, yours, parent gone" in shown


def test_finished_and_scouted_partitions_give_way_before_the_open_one() -> None:
    shown = text(mission.LEFTOVER_SCENE, 80, 20)
    assert " B2 " in shown
    assert " B1 " not in shown
    assert "1 more done, " in shown


def test_a_lost_feed_keeps_the_last_figures_and_says_so_in_the_header() -> None:
    shown = text(mission.STEADY, 120, 40, View(lost="kvctld restarting"))
    assert " kvctld restarting  12:26:00" in shown.split("\n")[0]
    assert "148,128 of 159,277" in shown


@pytest.mark.parametrize("columns", [80, 120])
def test_a_simulated_host_says_so_before_the_clock(columns: int) -> None:
    snapshot = replace(mission.STEADY, is_simulated=True)
    assert "SIMULATED" in text(snapshot, columns, 40).split("\n")[0]


def test_a_second_operator_is_named_and_oneself_is_not() -> None:
    snapshot = replace(mission.STEADY, operators=("mo", "ann"))
    first = text(snapshot, 120, 40).split("\n")[0]
    assert "2nd operator: ann" in first
    assert "mo" not in first


def test_old_figures_show_their_age_and_fresh_ones_their_unit() -> None:
    shown = text(mission.STALE, 120, 40)
    assert "generation    640 23 s" in shown
    assert "effective     631 tok/s" in shown


def test_a_missing_figure_says_why() -> None:
    shown = text(mission.STALE, 120, 40)
    assert "retracted       –" in shown
    assert "needs --enable-metr" in shown


def test_no_gpu_says_why_instead_of_zero() -> None:
    shown = text(mission.NOTHING, 80, 24)
    assert "No NVIDIA driver answers here" in shown
    assert "GiB" not in shown


def test_the_smallest_screen_is_one_true_line() -> None:
    assert text(mission.STEADY, 25, 1).startswith("LIMIT 38+8 640 t/s 15 %")
    assert text(mission.STEADY, 20, 1).startswith("LIMIT 38+8 640 15 %")


def test_the_verdict_is_cut_visibly_and_never_pushes_its_key_away() -> None:
    long = Verdict(VerdictWord.ACT, "word " * 80, "lever " * 40)
    shown = text(replace(mission.STEADY, verdicts=(long,)), 80, 24).split("\n")
    assert "…" in shown[3]
    assert shown[3].rstrip().endswith("w why")


def hostile_snapshot() -> Snapshot:
    lines = HOSTILE.read_bytes().decode("utf-8", "replace").split("\n")
    evil = "".join(lines[:6])
    holder = mission.holder(4, 41822, HolderKind.LEFTOVER, title=evil, evidence=evil, user=evil)
    server = replace(mission.SERVER, model=evil, preset=lines[0], last_log_line=evil, url=evil)
    part = replace(mission.PARTITIONS[1], name=lines[4])
    run = replace(mission.RUN, name=lines[4], partitions=(part, *mission.PARTITIONS[2:]))
    return replace(
        mission.STEADY,
        host=lines[0][:30],
        gpus=replace(mission.LEFTOVER_GPUS, holders=(holder,)),
        servers=(server,),
        run=run,
        verdicts=tuple(Verdict(VerdictWord.ACT, line, evil) for line in lines if line),
        presets=(replace(mission.PRESETS[0], name=evil, refused=evil),),
        events=tuple(Event(0.0, mission.WALL, line[:20], line) for line in lines),
    )


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_hostile_names_never_move_a_column(size: tuple[int, int]) -> None:
    snapshot = hostile_snapshot()
    for zoom in (None, 1, 2, 3, 4, 5, 6):
        for note in range(len(snapshot.verdicts)):
            lines = drawn(snapshot, *size, View(zoom=zoom, note=note))
            assert {line.width for line in lines} == {size[0]}
            assert not any("\x1b" in line.text or "\r" in line.text for line in lines)


def test_hostile_markup_is_shown_as_it_is() -> None:
    assert "[/#888888] [/] [red] [0] [@click=app.quit]x[/]" in text(hostile_snapshot(), 200, 60)
