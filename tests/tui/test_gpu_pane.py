"""Pane 2 with many GPUs, marks, and how much one yes of the kill dialog ends."""

import re
from dataclasses import replace
from typing import Any

from kvctl.core.controller.commands import KillProcesses, Outcome
from kvctl.core.domain.gpus.cleanness import proven
from kvctl.core.domain.gpus.devices import GpuView, Holder, HolderKind
from kvctl.core.domain.snapshot import GpuSeries, Series, Snapshot
from kvctl.tui.present import kill, layout
from kvctl.tui.present.kill import KillState, Scope
from kvctl.tui.present.layout import Size
from kvctl.tui.present.view import View
from tests.fakes.feed import FakeFeed
from tests.tui import mission
from tests.tui.driving import driven

SMALL = Size(80, 24)


def gpus(count: int, kind: HolderKind, **changes: Any) -> GpuView:
    """So many devices, each with one holder."""
    devices = tuple(mission.device(i, 90.1, 0.97, 60, 400) for i in range(count))
    holders = tuple(
        mission.holder(i, 4_343_400 + i, kind, session=4_343_310, **changes) for i in range(count)
    )
    return proven(GpuView(devices, holders, at=mission.AT - 0.5), GpuView(), {})


def scene(view: GpuView, **changes: Any) -> Snapshot:
    return replace(mission.STEADY, gpus=view, **changes)


def drawn(snapshot: Snapshot, view: View, size: Size = SMALL) -> list[str]:
    return [line.text for line in layout.overview(snapshot, view, size, [])]


def test_sixteen_gpus_and_who_holds_each_fit_80_by_24_zoomed() -> None:
    for kind, word in ((HolderKind.RANK, "rank"), (HolderKind.LEFTOVER, "leftover")):
        text = drawn(scene(gpus(16, kind)), View(zoom=2))
        assert (len(text), {len(line) for line in text}) == (24, {80})
        for index in range(16):
            row = next(line for line in text if f"scheduler_TP{index} " in line)
            assert str(4_343_400 + index) in row and word in row and "90.1" in row


def test_the_age_of_an_old_utilisation_stands_whole_beside_it() -> None:
    snapshot = scene(gpus(8, HolderKind.RANK))
    later = replace(snapshot, at=snapshot.at + 14.0)
    rows = [line for line in drawn(later, View(), Size(120, 40)) if "90.1" in line]
    assert len(rows) == 8
    assert all(re.search(r" 97 1\ds +60 ", row) for row in rows), rows


def test_sixteen_gpus_fit_the_overview_of_80_by_24_with_what_holds_them() -> None:
    text = "\n".join(drawn(scene(gpus(16, HolderKind.RANK)), View()))
    assert "16 of 16 alike" in text and "16 ranks, nothing else" in text
    assert "B7" in text
    text = "\n".join(drawn(scene(gpus(16, HolderKind.LEFTOVER)), View()))
    assert "GPU 0–15" in text and "16 leftover, 90.1 GiB each" in text
    assert "B7" in text


def test_a_single_leftover_among_sixteen_stands_out_in_words() -> None:
    view = gpus(16, HolderKind.RANK)
    odd = replace(view.holders[9], kind=HolderKind.LEFTOVER, evidence="parent gone (now 1)")
    view = replace(view, holders=(*view.holders[:9], odd, *view.holders[10:]))
    text = "\n".join(drawn(scene(view), View()))
    assert "1 leftover: K" in text
    assert "GPU 9" in text and "leftover sglang::scheduler_TP9 pid 4343409" in text


def test_the_zoomed_pane_shows_ten_minutes_of_memory_and_utilisation() -> None:
    view = gpus(2, HolderKind.RANK)
    rising = Series(15.0, tuple(i / 40 for i in range(40)))
    flat = Series(15.0, (1.0,) * 40)
    snapshot = scene(view, gpu_series={"GPU-0": GpuSeries(rising, flat)})
    narrow, wide = drawn(snapshot, View(zoom=2)), drawn(snapshot, View(zoom=2), Size(120, 40))
    assert any("▁▂▃▄▅▆▇█" in line for line in narrow)
    assert any("████████████" in line and "▁" in line for line in wide)


def test_who_only_has_the_device_open_does_not_flood_the_pane() -> None:
    view = gpus(2, HolderKind.RANK)
    monitors = tuple(
        mission.holder(i, 77_000 + n, HolderKind.FOREIGN, memory_bytes=None, title="nvtop",
                       is_driver_listed=False)
        for i in range(2) for n in range(5)
    )  # fmt: skip
    snapshot = scene(replace(view, holders=(*view.holders, *monitors)))
    for view_of in (View(), View(zoom=2)):
        text = "\n".join(drawn(snapshot, view_of))
        assert "nvtop" not in text and "2 ranks, nothing else" in text


def test_who_has_it_open_is_shown_where_the_driver_names_nobody_for_used_memory() -> None:
    view = gpus(1, HolderKind.FOREIGN, is_driver_listed=False, title="python hidden.py")
    assert any("python hidden.py" in line for line in drawn(scene(view), View(zoom=2)))


def test_leftovers_without_a_gpu_are_rows_too() -> None:
    stray = mission.holder(0, 555, HolderKind.LEFTOVER, gpu_uuid="", title="sglang::detokenizer")
    view = replace(gpus(2, HolderKind.RANK), strays=(replace(stray, gpu_index=None),))
    row = next(line for line in drawn(scene(view), View(zoom=2)) if "detokenizer" in line)
    assert "no GPU" in row and "leftover" in row
    bare = GpuView(problem="no NVIDIA driver here", strays=view.strays, is_bare=True)
    text = "\n".join(drawn(scene(bare), View()))
    assert "no NVIDIA driver here" in text and "1 leftover process: 555" in text
    zoomed = "\n".join(drawn(scene(bare), View(zoom=2)))
    assert "no NVIDIA driver here" in zoomed and "leftover" in zoomed and "555" in zoomed


def test_devices_of_before_are_not_shown_as_if_they_were_of_now() -> None:
    view = replace(gpus(2, HolderKind.RANK), problem="the driver has not answered for 10 s")
    text = "\n".join(drawn(scene(view), View(zoom=2)))
    assert "has not answered" in text and "scheduler_TP0" not in text


# -- marks ------------------------------------------------------------------------------------


async def test_rows_marked_with_space_are_what_K_acts_on() -> None:
    feed = FakeFeed(scene(gpus(4, HolderKind.LEFTOVER)), answer=lambda _: Outcome(0, "gone"))
    async with driven(feed) as panel:
        await panel.press("2", "space", "j", "space", "K")
        await panel.shows("What happens ── 2 chosen")
        await panel.press("y")
        await panel.until(lambda: len(feed.submitted) == 1)
        command = feed.submitted[0]
        assert isinstance(command, KillProcesses)
        assert [t.pid for t in command.targets] == [4_343_400, 4_343_402]
        await panel.until(lambda: panel.app.view.marked == frozenset())


async def test_space_outside_the_gpu_pane_says_where_it_works() -> None:
    async with driven(FakeFeed(scene(gpus(2, HolderKind.RANK)))) as panel:
        await panel.press("space")
        await panel.shows("zoom the GPUs first (2)")


# -- how much one yes ends ---------------------------------------------------------------------


def pids(snapshot: Snapshot, scope: Scope, at: Holder) -> list[int]:
    state = KillState(at=kill.key_of(at), scope=scope)
    return sorted(holder.pid for holder in kill.targets(snapshot, state))


def test_a_scope_takes_the_process_its_launch_its_gpu_or_every_leftover() -> None:
    view = gpus(3, HolderKind.LEFTOVER, server=None)
    shared = mission.holder(0, 900, HolderKind.FOREIGN, server=None, session=900)
    other = mission.holder(2, 901, HolderKind.LEFTOVER, server=None, session=901)
    snapshot = scene(replace(view, holders=(*view.holders, shared, other)))
    at = view.holders[0]
    assert pids(snapshot, Scope.PROCESS, at) == [4_343_400]
    assert pids(snapshot, Scope.LAUNCH, at) == [4_343_400, 4_343_401, 4_343_402]
    assert pids(snapshot, Scope.GPU, at) == [900, 4_343_400]
    assert pids(snapshot, Scope.LEFTOVERS, at) == [901, 4_343_400, 4_343_401, 4_343_402]


async def test_m_chooses_the_launch_and_the_command_asks_for_its_group() -> None:
    feed = FakeFeed(scene(gpus(4, HolderKind.LEFTOVER)), answer=lambda _: Outcome(0, "gone"))
    async with driven(feed) as panel:
        await panel.press("K", "m")
        await panel.shows("(•) its launch", "and all else of the launch")
        await panel.press("y")
        await panel.until(lambda: len(feed.submitted) == 1)
        command = feed.submitted[0]
        assert isinstance(command, KillProcesses) and command.group
        assert len(command.targets) == 4


async def test_the_cursor_stays_on_its_process_when_others_end() -> None:
    first = scene(gpus(4, HolderKind.LEFTOVER))
    feed = FakeFeed(first, answer=lambda _: Outcome(0, "gone"))
    async with driven(feed) as panel:
        await panel.press("K", "j", "j")
        await panel.shows("─pid 4343402")
        later = replace(first, gpus=replace(first.gpus, holders=first.gpus.holders[1:]))
        panel.app.snapshot = later
        panel.app.repaint()
        await panel.shows("3 processes hold", "─pid 4343402")
        gone = replace(first, gpus=replace(first.gpus, holders=first.gpus.holders[3:]))
        panel.app.snapshot = gone
        panel.app.repaint()
        await panel.shows("It has ended meanwhile")
        await panel.press("y")
        await panel.shows("nothing is chosen")
        assert feed.submitted == []


def test_the_dialog_of_sixteen_fits_80_by_24_with_its_buttons() -> None:
    snapshot = scene(gpus(16, HolderKind.LEFTOVER))
    lines = [line.text for line in kill.dialog(snapshot, KillState(), 80, 24)]
    assert len(lines) <= 24 and any("[ Cancel ]" in line for line in lines)
    assert any("group" in line and "session 4343310" in line for line in lines)
    assert any("GPU 0 not clean" in line for line in lines)


def test_another_users_process_is_named_with_owner_and_container() -> None:
    view = gpus(1, HolderKind.FOREIGN, is_mine=False, user="ann", owner="docker 3f2a9c0d1e4b",
                container="3f2a9c0d1e4b")  # fmt: skip
    text = "\n".join(line.text for line in kill.dialog(scene(view), KillState(), 100, 40))
    assert "not yours: 4343400 of ann (docker 3f2a9c0d1e4b) in container 3f2a9c0d1e4b" in text


def test_what_kill_cannot_end_is_told_with_what_can_help() -> None:
    view = gpus(1, HolderKind.EXITING, state="D", evidence="uninterruptible (D)")
    text = "\n".join(line.text for line in kill.dialog(scene(view), KillState(), 100, 40))
    assert "KILL cannot work until the kernel lets go" in text
    assert "nvidia-smi --gpu-reset -i 0" in text
