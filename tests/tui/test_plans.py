"""What a restart would bring, in the presets pane and in the restart dialog, before it is asked."""

from dataclasses import replace

import pytest

from kvctl.core.controller.commands import Outcome
from kvctl.core.domain.launches.plan import Planned
from kvctl.tui.present import presets, restart
from kvctl.tui.present.check import Check, read_check
from kvctl.tui.present.restart import RestartState
from kvctl.tui.present.view import View
from tests.fakes.plans import MEASURED, SCENE, planned
from tests.tui.mission import STEADY

PLANS = tuple(planned(replace(SCENE, launches=(MEASURED,))).values())
PLANNED = replace(STEADY, plans=PLANS)


def body(columns: int = 118, view: View | None = None) -> str:
    lines = presets.body(PLANNED, view or View(), columns, 20)
    assert {line.width for line in lines} == {columns}
    return "\n".join(line.text for line in lines)


def row(name: str, columns: int = 118) -> str:
    return next(line for line in body(columns).splitlines() if name in line)


def test_a_preset_that_was_never_launched_has_a_predicted_pool_with_its_interval() -> None:
    assert "~159K ±1%" in row("hicache-bf16")
    assert "~72" in row("hicache-bf16")


def test_of_a_preset_whose_very_launch_was_seen_the_real_pool_is_shown() -> None:
    assert "116 K" in row("baseline") or "116,000" in row("baseline")


def test_where_a_name_has_no_room_the_interval_gives_it_up() -> None:
    assert "hicache-bf16" in row("hicache-bf16", 58)
    assert "~159K " in row("hicache-bf16", 58)
    assert "±" not in row("hicache-bf16", 58)


def test_a_rate_that_was_never_measured_is_marked_as_expected() -> None:
    snapshot = replace(PLANNED, presets=tuple(
        replace(p, generation_tokens_per_s=None, is_running=False) for p in PLANNED.presets
    ))  # fmt: skip
    lines = presets.body(snapshot, View(), 118, 20)
    line = next(line.text for line in lines if "hicache-bf16" in line.text)
    assert "~930" in line


def test_the_cursor_tells_what_the_figures_rest_on() -> None:
    shown = body(view=View(zoom=5, cursor=1))
    assert "calibrated by baseline (server-1): 116,000 tokens" in shown
    assert "rates from 2 steady windows of baseline" in shown
    assert "calibrated by" not in body()


@pytest.mark.parametrize("columns", [58, 78, 118, 198])
def test_the_pane_has_its_width_at_every_size(columns: int) -> None:
    body(columns, View(zoom=5, cursor=1))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"fits": False}, "does not fit into GPU memory"),
        (
            {"host_fits": False, "host_available_bytes": 300e9},
            "hicache takes 357.6 GiB of host memory, 279.4 GiB are free",
        ),
        ({"calibrated_by": None}, "not calibrated: assumptions alone"),
    ],
)
def test_what_speaks_against_a_preset_is_said(changes: dict[str, object], told: str) -> None:
    one: Planned = replace(PLANS[1], **changes)  # type: ignore[arg-type]
    assert told in " ".join(presets.reasons(one))


def test_the_restart_dialog_lists_the_same_pools_before_a_check_has_answered() -> None:
    lines = restart.preflight(PLANNED, RestartState(is_start=False), 100, 40)
    shown = "\n".join(line.text for line in lines)
    assert "~159K" in shown
    assert "refused" in shown


def test_the_dialog_says_which_launch_calibrated_the_pool() -> None:
    state = RestartState(is_start=False, chosen=1)
    state.check = Check("hicache-bf16", 0, "", calibrated="KV pool ~159K, calibrated by baseline")
    shown = "\n".join(line.text for line in restart.preflight(PLANNED, state, 100, 40))
    assert "What it brings" in shown
    assert "KV pool ~159K, calibrated by baseline" in shown


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, ""),
        (
            {"predicted_tokens": 4096, "predicted_ratio": 0.0},
            "KV pool 4,096: max-total-tokens says so, and memory is expected to hold it",
        ),
        (
            {"predicted_tokens": 168_600, "predicted_ratio": 0.24},
            "KV pool ~169K ±24%, not calibrated yet: assumptions alone",
        ),
        (
            {"predicted_tokens": 159_277, "predicted_ratio": 0.0, "calibrated_by": "baseline"},
            "KV pool ~159K, calibrated by baseline",
        ),
    ],
)
def test_the_dialog_says_how_sure_the_pool_is(data: dict[str, object], told: str) -> None:
    assert read_check("b88", Outcome(0, "", data=data)).calibrated == told
