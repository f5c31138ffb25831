from dataclasses import replace

import pytest

from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.actions import ACTIONS, Danger, action_for, hints
from kvctl.tui.conditions import step_of
from kvctl.tui.deeds import Deeds
from kvctl.tui.keytable import markdown
from kvctl.tui.present import footer
from kvctl.tui.present.view import View
from tests.tui import mission


def test_no_key_has_two_meanings() -> None:
    keys = [key for action in ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("key", ["ctrl+s", "ctrl+q", "ctrl+a", "ctrl+b"])
def test_keys_of_the_terminal_and_its_multiplexer_are_never_bound(key: str) -> None:
    assert action_for(key) is None


def test_no_alt_key_and_no_lone_function_key_is_needed() -> None:
    for action in ACTIONS:
        assert not any(key.startswith("alt+") for key in action.keys)
        plain = [key for key in action.keys if not (key[0] == "f" and key[1:].isdigit())]
        assert plain or not action.keys


def test_every_upper_case_letter_that_changes_the_host_asks() -> None:
    for action in ACTIONS:
        letters = [key for key in action.keys if len(key) == 1 and key.isupper()]
        if letters and action.changes_host:
            assert action.danger is Danger.ASKS
            assert action.make is None


def test_what_a_lower_case_key_submits_at_once_the_same_key_undoes() -> None:
    for action in ACTIONS:
        if action.make is not None and action.changes_host and action.keys:
            assert action.danger is Danger.UNDONE


def test_every_action_is_a_command_or_something_the_panel_does() -> None:
    for action in ACTIONS:
        assert action.make is not None or callable(getattr(Deeds, action.name))
        assert action.help.endswith(".")


@pytest.mark.parametrize(
    "scene", [mission.STEADY, mission.NOTHING, mission.STARTING, mission.FAILED]
)
def test_the_footer_offers_only_what_works_now(scene: Snapshot) -> None:
    shown = {hint.key for hint in hints(scene, View())}
    for action in ACTIONS:
        if action.why_not(scene, View()):
            assert action.shown not in shown


def test_a_locked_panel_offers_nothing_that_changes_the_host() -> None:
    shown = {hint.key for hint in hints(mission.STEADY, View(is_locked=True))}
    assert shown.isdisjoint({"p", "+ -", "a", "R", "S", "K"})
    assert {"l", "w", "?", "q"} <= shown


def line_of(scene: Snapshot, columns: int) -> str:
    return footer.line(hints(scene, View()), columns).text.strip()


def test_the_footer_of_a_wide_screen_names_every_group() -> None:
    assert line_of(mission.STEADY, 120) == (
        "p pause  + - slots  a manual │ R restart  S stop  K kill │ l log  c compare  w why"
        " │ : ? all keys │ q leave, all go on"
    )


def test_the_footer_of_a_narrow_screen_keeps_the_way_out() -> None:
    assert line_of(mission.STEADY, 40).endswith("q")
    assert "? keys" in line_of(mission.STEADY, 40)


def test_while_a_server_starts_the_footer_offers_stages_log_and_cancel() -> None:
    assert line_of(mission.STARTING, 80) == (
        "w stages  l log  X cancel start  p hold after ready  1-6 zoom  ? keys  q leave"
    )


@pytest.mark.parametrize(("target", "step"), [(1, 1), (15, 1), (16, 4), (128, 4), (129, 8)])
def test_slots_move_in_steps_that_suit_their_number(target: int, step: int) -> None:
    assert step_of(replace(mission.RUN, target=target)) == step


def test_the_key_table_names_every_action_once() -> None:
    table = markdown()
    for action in ACTIONS:
        assert table.count(f" {action.help} ") == 1
