"""The preset pane: what a preset still needs, why it is refused, and `e`."""

from collections.abc import Callable
from dataclasses import replace

from kvctl.core.controller.commands import Command, Outcome, OwnPreset, ValidatePreset
from kvctl.core.domain.snapshot import PresetSummary
from kvctl.tui.present import presets
from kvctl.tui.present.view import View
from tests.fakes.feed import FakeFeed
from tests.tui import mission
from tests.tui.driving import driven

NEEDY = PresetSummary("cpu-tiny", "the tests' engine", needs=("KVCTL_ENGINE_PYTHON",))
SCENE = replace(mission.STEADY, presets=(NEEDY, *mission.PRESETS))


def drawn(columns: int, zoom: int | None = None) -> str:
    lines = presets.body(SCENE, View(zoom=zoom), columns, 30)
    return "\n".join(line.text for line in lines)


def answers(path: str, outcome: Outcome) -> Callable[[Command], Outcome]:
    def answer(command: Command) -> Outcome:
        return Outcome(0, "copied", data={"path": path}) if command == owned else outcome

    owned = OwnPreset("baseline")
    return answer


def test_a_preset_without_a_variable_is_shown_with_what_it_needs_and_what_to_do() -> None:
    for columns in (78, 118):
        text = drawn(columns)
        assert "cpu-tiny" in text and "cannot be read" not in text
        assert "needs $KVCTL_ENGINE_PYTHON: e writes it" in text
    assert "or set it and restart kvctld" in drawn(118)


def test_the_rule_that_refuses_a_preset_stands_in_the_list() -> None:
    assert 'refused: rule "no fp8 KV": degrades the model' in drawn(78)


def test_what_cannot_be_started_comes_last() -> None:
    names = [preset.name for preset in presets.in_order(SCENE)]
    assert names == ["baseline", "hicache-bf16", "hicache-fp8", "cpu-tiny"]


async def test_e_works_in_the_preset_pane_only() -> None:
    feed = FakeFeed(mission.STEADY)
    async with driven(feed) as panel:
        await panel.press("e")
        await panel.shows("zoom the presets first (5)")
        assert feed.submitted == []


async def test_a_locked_panel_edits_nothing() -> None:
    feed = FakeFeed(mission.STEADY)
    async with driven(feed) as panel:
        await panel.press("5", "L", "e")
        await panel.shows("read-only")
        assert feed.submitted == []


async def test_where_the_terminal_cannot_be_lent_the_file_is_named() -> None:
    feed = FakeFeed(mission.STEADY, answer=answers("/c/presets/baseline.toml", Outcome(0, "")))
    async with driven(feed, editor="vi") as panel:
        await panel.press("5", "e")
        await panel.shows("edit /c/presets/baseline.toml")
        assert feed.submitted == [OwnPreset("baseline")]
        assert ValidatePreset("baseline") not in feed.submitted


async def test_a_copy_that_fails_is_said() -> None:
    feed = FakeFeed(mission.STEADY, answer=lambda command: Outcome(1, "the disk is full"))
    async with driven(feed, editor="vi") as panel:
        await panel.press("5", "e")
        await panel.until(lambda: bool(panel.app._notifications))
        assert [n.message for n in panel.app._notifications] == ["the disk is full"]
