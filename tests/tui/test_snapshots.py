"""The screens as pictures, looked at once and held since: `--snapshot-update` after a change."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from kvctl.core.controller.commands import CheckPreset, Command, Outcome
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.app import PanelApp
from kvctl.tui.feed import FeedLost
from tests.fakes.feed import FakeFeed
from tests.tui import mission
from tests.tui.driving import Driven

SnapCompare = Callable[..., bool]
SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (200, 60)
SCENES = {
    "steady": mission.STEADY,
    "starting": mission.STARTING,
    "failed": mission.FAILED,
    "nothing": mission.NOTHING,
    "leftover": mission.LEFTOVER_SCENE,
    "paused": mission.PAUSED,
    "stale": mission.STALE,
}
CHECKED = Outcome(
    0,
    "preset hicache-bf16: may start",
    (),
    {
        "lines": [
            {"ok": "ok", "name": "rules", "text": "3 kept"},
            {"ok": "ok", "name": "flags", "text": "15 known to 0.5.10"},
            {"ok": "ok", "name": "GPUs", "text": "8 of 8 present"},
            {"ok": "ok", "name": "model", "text": "64 shards, 595 GB"},
            {"ok": "ok", "name": "port", "text": "30000 ours, free after stop"},
            {"ok": "warn", "name": "host RAM", "text": "431 GB free, hicache takes 384 GB"},
        ],
        "diff": [
            {"flag": "mem-fraction-static", "now": "0.85", "after": "0.88"},
            {"flag": "hicache-size", "now": "–", "after": "48"},
            {"flag": "NCCL_MIN_NCHANNELS", "now": "–", "after": "8", "kind": "env"},
        ],
        "same": 11,
    },
)


def answer(command: Command) -> Outcome:
    return CHECKED if isinstance(command, CheckPreset) else Outcome(0, "done")


def panel_of(snapshot: Snapshot) -> PanelApp:
    return PanelApp(FakeFeed(snapshot, answer=answer), grace_s=0.0, operator="mo")


def after(
    *keys: str, words: tuple[str, ...] = (), item: FeedLost | None = None
) -> Callable[[Pilot[int]], Awaitable[None]]:
    """Wait for the snapshot, press keys, push an item, wait for words."""

    async def run(pilot: Pilot[int]) -> None:
        app = pilot.app
        assert isinstance(app, PanelApp) and isinstance(app.feed, FakeFeed)
        panel = Driven(app, pilot, app.feed)
        await panel.until(lambda: app.snapshot is panel.feed.first)
        await panel.press(*keys)
        if item is not None:
            panel.feed.push(item)
        await panel.shows(*words)

    return run


@pytest.mark.parametrize("size", [SMALL, MIDDLE], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", SCENES)
def test_the_overview_looks_as_it_was_approved(
    name: str, size: tuple[int, int], snap_compare: SnapCompare
) -> None:
    app = panel_of(SCENES[name])
    assert snap_compare(app, terminal_size=size, run_before=after())


@pytest.mark.parametrize("name", ["steady", "starting", "leftover"])
def test_the_overview_on_a_large_screen_looks_as_it_was_approved(
    name: str, snap_compare: SnapCompare
) -> None:
    app = panel_of(SCENES[name])
    assert snap_compare(app, terminal_size=LARGE, run_before=after())


@pytest.mark.parametrize("size", [SMALL, MIDDLE], ids=lambda s: f"{s[0]}x{s[1]}")
def test_a_lost_feed_looks_as_it_was_approved(
    size: tuple[int, int], snap_compare: SnapCompare
) -> None:
    run = after(item=FeedLost("kvctld restarting"), words=("kvctld restarting",))
    assert snap_compare(panel_of(mission.STEADY), terminal_size=size, run_before=run)


@pytest.mark.parametrize("size", [SMALL, MIDDLE], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize(
    ("name", "scene", "keys", "words"),
    [
        ("restart", mission.STEADY, ("R",), ("✓ rules: 3 kept",)),
        ("stages", mission.STARTING, ("w",), ("step 6 of 10",)),
        ("card", mission.FAILED, ("w",), ("State now",)),
        ("kill", mission.LEFTOVER_SCENE, ("K",), ("parent gone",)),
        ("pause", mission.STEADY, ("P",), ("harvest",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_dialog_looks_as_it_was_approved(
    name: str,
    scene: Snapshot,
    keys: tuple[str, ...],
    words: tuple[str, ...],
    size: tuple[int, int],
    snap_compare: SnapCompare,
) -> None:
    run = after(*keys, words=words)
    assert snap_compare(panel_of(scene), terminal_size=size, run_before=run)


def test_ascii_mode_looks_as_it_was_approved(snap_compare: SnapCompare) -> None:
    app = PanelApp(FakeFeed(mission.STEADY), is_ascii=True, operator="mo")
    assert snap_compare(app, terminal_size=SMALL, run_before=after())


def test_a_simulated_host_with_two_operators_looks_as_it_was_approved(
    snap_compare: SnapCompare,
) -> None:
    snapshot = replace(mission.STEADY, is_simulated=True, operators=("mo", "ann"))
    assert snap_compare(panel_of(snapshot), terminal_size=MIDDLE, run_before=after())
