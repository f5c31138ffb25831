"""Keys pressed in the running panel: the command that is submitted and the words that are seen."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvctl.core.controller.commands import (
    AdoptServer,
    CancelStart,
    CheckPreset,
    Command,
    KillProcesses,
    NudgeThrottle,
    Outcome,
    PauseRun,
    RefreshNow,
    RestartServer,
    ResumeRun,
    RetryFailed,
    StartRun,
    StartServer,
    StopServer,
    Throttle,
    WaitHow,
)
from kvctl.core.domain.errors import DaemonUnreachable
from kvctl.core.domain.gpus.devices import HolderKind, ProcessIdentity
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.snapshot import Snapshot
from kvctl.tui.canvas import Canvas
from kvctl.tui.feed import FeedLost
from kvctl.tui.screens.overview import Overview
from tests.fakes.feed import FakeFeed
from tests.tui import mission
from tests.tui.driving import driven

CHECKED = Outcome(
    0,
    "preset baseline: may start",
    (),
    {
        "lines": [
            {"ok": "ok", "name": "rules", "text": "3 kept"},
            {"ok": "warn", "name": "host RAM", "text": "47 GB stay"},
        ],
        "diff": [{"flag": "mem-fraction-static", "now": "0.88", "after": "0.85"}],
    },
)
REFUSED = Outcome(
    4,
    "preset hicache-fp8: 1 of 1 checks failed",
    (),
    {"lines": [{"ok": "fail", "name": "rule", "text": "fp8 KV degrades this model"}]},
)


def answering(command: Command) -> Outcome:
    if isinstance(command, CheckPreset):
        return REFUSED if "fp8" in command.preset else CHECKED
    return Outcome(0, "it was done")


def feed_of(snapshot: Snapshot) -> FakeFeed:
    return FakeFeed(snapshot, answer=answering)


@pytest.mark.parametrize(
    ("snapshot", "key", "command"),
    [
        (mission.STEADY, "p", PauseRun(WaitHow.DRAIN)),
        (mission.PAUSED, "p", ResumeRun()),
        (mission.STEADY, "a", Throttle(46)),
        (replace(mission.STEADY, run=replace(mission.RUN, is_auto=False)), "a", Throttle(None)),
        (mission.STEADY, "plus", NudgeThrottle(4)),
        (mission.STEADY, "minus", NudgeThrottle(-4)),
        (mission.STEADY, "f5", RefreshNow()),
        (mission.STEADY, "ctrl+r", RefreshNow()),
    ],
)
async def test_a_key_that_needs_no_question_submits_at_once(
    snapshot: Snapshot, key: str, command: Command
) -> None:
    async with driven(feed_of(snapshot)) as panel:
        await panel.press(key)
        await panel.until(lambda: panel.feed.submitted == [command])


async def test_the_outcome_of_a_command_is_shown_as_it_is_written() -> None:
    feed = FakeFeed(mission.STEADY, answer=lambda command: Outcome(4, "no [red]way[/red]"))
    async with driven(feed) as panel:
        await panel.press("p")
        await panel.until(lambda: len(panel.app._notifications) == 1)
        shown = next(iter(panel.app._notifications))
        assert shown.message == "no [red]way[/red]"
        assert not shown.markup
        assert shown.title == "pause: refused"
        assert shown.severity == "error"


async def test_a_feed_that_raises_is_an_outcome_and_not_a_crash() -> None:
    def refuse(command: Command) -> Outcome:
        raise DaemonUnreachable("kvctld does not answer: kvctl daemon start")

    async with driven(FakeFeed(mission.STEADY, answer=refuse)) as panel:
        await panel.press("p")
        await panel.until(lambda: len(panel.app._notifications) == 1)
        assert "does not answer" in next(iter(panel.app._notifications)).message


async def test_every_key_answers_while_a_command_hangs() -> None:
    feed = feed_of(mission.STEADY)
    feed.is_hanging = True
    async with driven(feed) as panel:
        await panel.press("p", "p", "2")
        await panel.shows("─2 GPUs", "2 or Esc: back")
        await panel.press("2", "question_mark")
        await panel.shows("─Keys")


async def test_an_impossible_key_says_why_and_submits_nothing() -> None:
    async with driven(feed_of(mission.NOTHING)) as panel:
        await panel.press("p")
        await panel.shows("p: no run is open; s starts one")
        await panel.press("R")
        await panel.shows("R: no server runs here; S starts one")
        assert panel.feed.submitted == []


async def test_a_habit_of_other_tools_only_names_the_right_key() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("r")
        await panel.shows("R restarts, after asking")
        assert panel.feed.submitted == []


async def test_a_locked_panel_changes_nothing_and_says_how_to_unlock() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("L", "p")
        await panel.shows("READ-ONLY", "this panel is read-only; L unlocks it")
        await panel.press("K")
        assert isinstance(panel.app.screen, Overview)
        assert panel.feed.submitted == []


# restart


async def test_a_restart_shows_changes_and_checks_and_goes_on_yes() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("R", "up")
        await panel.shows("hicache-bf16 → baseline", "mem-fraction-static", "0.85",
                          "✓ rules: 3 kept", "! host RAM: 47 GB stay",
                          "(•) harvest", "46 in flight")  # fmt: skip
        await panel.press("m", "y")
        wanted = RestartServer("baseline", "hicache-bf16", WaitHow.DRAIN, False)
        await panel.until(lambda: panel.feed.submitted[-1] == wanted)


async def test_yes_is_dead_until_the_checks_have_answered() -> None:
    feed = feed_of(mission.STEADY)
    feed.is_hanging = True
    async with driven(feed) as panel:
        await panel.press("R", "y")
        await panel.shows("the checks have not answered yet")
        assert [type(command) for command in feed.submitted] == [CheckPreset]


async def test_yes_is_dead_for_a_moment_after_opening() -> None:
    async with driven(feed_of(mission.STEADY), grace_s=60.0) as panel:
        await panel.press("R")
        await panel.shows("✓ rules: 3 kept")
        await panel.press("y")
        await panel.shows("half a second after opening")
        assert [type(command) for command in panel.feed.submitted] == [CheckPreset]


async def test_a_preset_that_a_rule_refuses_cannot_be_started() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("R", "down")
        await panel.shows("✗ rule: fp8 KV degrades this model")
        await panel.press("y")
        await panel.shows("refused: preset hicache-fp8")
        assert {type(command) for command in panel.feed.submitted} == {CheckPreset}


async def test_enter_presses_cancel_when_the_dialog_opens() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("R")
        await panel.shows("✓ rules: 3 kept")
        await panel.press("enter")
        await panel.until(lambda: isinstance(panel.app.screen, Overview))
        assert [type(command) for command in panel.feed.submitted] == [CheckPreset]


async def test_requests_of_others_are_only_cut_after_they_were_agreed_to() -> None:
    server = replace(mission.SERVER, foreign_requests=mission.loads(31))
    async with driven(feed_of(replace(mission.STEADY, servers=(server,)))) as panel:
        await panel.press("R")
        await panel.shows("! 31 requests are not this run's: f agrees to cut them")
        await panel.press("y")
        await panel.shows("f agrees to that")
        await panel.press("f", "y")
        wanted = RestartServer("hicache-bf16", "hicache-bf16", WaitHow.HARVEST, True)
        await panel.until(lambda: panel.feed.submitted[-1] == wanted)


async def test_after_yes_the_stages_are_live_with_proof_and_leaving_stops_nothing() -> None:
    feed = feed_of(mission.STEADY)
    async with driven(feed) as panel:
        await panel.press("R")
        await panel.shows("✓ rules: 3 kept")
        feed.is_hanging = True
        await panel.press("y")
        feed.push(mission.STARTING)
        await panel.shows("step 6 of 10", "nothing sent since 10:01:02", "45 %",
                          "GPU 0 1 2 3 4 5 6 7 clean")  # fmt: skip
        await panel.press("escape")
        await panel.shows("─1 Start ── 6 of 10")
        assert not any(isinstance(command, CancelStart) for command in feed.submitted)


async def test_the_stages_say_how_it_ended_however_long_that_is() -> None:
    told = "hicache-bf16 at http://127.0.0.1:30000 serves after 10 m 21 s, " + 5 * "long, " + "yes"
    feed = FakeFeed(mission.STEADY, answer=lambda c: replace(answering(c), message=told))
    async with driven(feed) as panel:
        await panel.press("R")
        await panel.shows("✓ rules: 3 kept")
        await panel.press("y")
        await panel.shows("done: hicache-bf16 at", "yes", "Esc to the overview, or any of its keys")
        assert "X cancel this start" not in panel.text


async def test_once_a_start_is_over_the_keys_of_the_overview_work_in_its_dialog() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("R")
        await panel.shows("✓ rules: 3 kept")
        await panel.press("y")
        await panel.shows("done: ", "or any of its keys")
        await panel.press("p")
        await panel.until(lambda: panel.feed.submitted[-1] == PauseRun(WaitHow.DRAIN))
        assert "done: " not in panel.text


async def test_a_failed_start_offers_its_card_with_cause_and_evidence() -> None:
    async with driven(feed_of(mission.FAILED)) as panel:
        await panel.press("w")
        await panel.shows("FAILED ── hicache-bf16-95 ── at CUDA graphs ── after 9 m 12 s",
                          "Out of GPU memory while capturing CUDA graphs",
                          "4163  [14:28:09 TP3] torch.OutOfMemoryError",
                          "nothing lost: 12,434 answers and 44 partials")  # fmt: skip
        await panel.press("r")
        await panel.shows("Start ── ", "nothing has been touched yet", "✓ rules: 3 kept")


@pytest.mark.parametrize("keys", [("w", "b"), ("R", "y", "b"), ("b",)])
async def test_one_key_leads_from_a_failure_back_to_the_last_preset_that_worked(
    keys: tuple[str, ...],
) -> None:
    feed = feed_of(mission.FAILED)
    async with driven(feed) as panel:
        if keys[0] == "R":
            await panel.press("R")
            await panel.shows("✓ rules: 3 kept")
            await panel.press("y")
            await panel.shows("b back to hicache-bf16   w the card")
        elif keys[0] == "b":
            await panel.shows("w this card   l log   b back to hicache-bf16")
        else:
            await panel.press("w")
            await panel.shows("b    back to hicache-bf16, the last preset that worked")
        await panel.press("b")
        await panel.shows("Start ── back to hicache-bf16")
        assert panel.feed.submitted[-1] == StartServer("hicache-bf16", "hicache-bf16-95")


@pytest.mark.parametrize(
    ("scene", "told"),
    [
        (mission.STEADY, "b: no server has failed"),
        (
            replace(mission.FAILED, last_good_preset=None),
            "b: no preset has worked here before; S starts one",
        ),
        (
            replace(mission.FAILED, busy_command="restart with baseline"),
            "b: restart with baseline still cleans up; in a moment",
        ),
    ],
)
async def test_the_way_back_says_why_there_is_none(scene: Snapshot, told: str) -> None:
    async with driven(feed_of(scene)) as panel:
        await panel.press("b")
        await panel.shows(told)
        assert panel.feed.submitted == []


async def test_cancelling_a_start_asks_first() -> None:
    async with driven(feed_of(mission.STARTING)) as panel:
        await panel.press("X", "enter")
        await panel.until(lambda: isinstance(panel.app.screen, Overview))
        assert panel.feed.submitted == []
        await panel.press("X", "y")
        await panel.until(lambda: panel.feed.submitted == [CancelStart("hicache-bf16")])


async def test_stop_asks_how_the_run_waits_and_start_is_on_the_same_key() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("S")
        await panel.shows("Stop ── hicache-bf16", "(•) harvest")
        await panel.press("down", "down", "y")
        wanted = StopServer("hicache-bf16", WaitHow.ABANDON, False)
        await panel.until(lambda: panel.feed.submitted == [wanted])
    async with driven(feed_of(mission.NOTHING)) as panel:
        await panel.press("S")
        await panel.shows("Start ── baseline", "✓ rules: 3 kept")
        await panel.press("tab", "enter")
        await panel.until(lambda: panel.feed.submitted[-1] == StartServer("baseline"))


# kill


async def test_a_kill_shows_identity_owner_and_evidence_and_cancel_has_the_focus() -> None:
    async with driven(feed_of(mission.LEFTOVER_SCENE)) as panel:
        await panel.press("K")
        await panel.shows("41822", "93,699 MiB", "start 9041822", "mo (yours)", "none (1)",
                          "nothing starts it again", "leftover: parent gone")  # fmt: skip
        await panel.press("enter")
        await panel.until(lambda: isinstance(panel.app.screen, Overview))
        assert panel.feed.submitted == []


async def test_a_kill_sends_to_the_very_process_and_shows_the_proof() -> None:
    proof = Outcome(0, "41822 ended", ("GPU 4: 0 holders, 4 MiB: clean",))
    feed = FakeFeed(mission.LEFTOVER_SCENE, answer=lambda command: proof)
    async with driven(feed) as panel:
        await panel.press("K", "y")
        await panel.shows("GPU 4: 0 holders, 4 MiB: clean")
        assert feed.submitted == [
            KillProcesses((ProcessIdentity(41822, 9041822),), "TERM", 15.0, True, True)
        ]
        await panel.press("escape")
        await panel.until(lambda: isinstance(panel.app.screen, Overview))


async def test_the_third_button_kills_at_once() -> None:
    async with driven(feed_of(mission.LEFTOVER_SCENE)) as panel:
        await panel.press("K", "tab", "tab", "enter")
        await panel.until(lambda: len(panel.feed.submitted) == 1)
        command = panel.feed.submitted[0]
        assert isinstance(command, KillProcesses)
        assert (command.signal, command.escalate) == ("KILL", False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": HolderKind.INVISIBLE, "start_ticks": None}, "is not visible here"),
        (
            {"owner": "systemd sglang.service", "owner_restarts": True,
             "owner_command": "systemctl stop sglang"},
            "would start it again: systemctl stop sglang",
        ),
    ],
)  # fmt: skip
async def test_what_a_signal_cannot_reach_or_only_fights_is_never_signalled(
    changes: dict[str, Any], reason: str
) -> None:
    holder = replace(mission.LEFTOVER, **changes)
    gpus = replace(mission.LEFTOVER_GPUS, holders=(holder,))
    async with driven(feed_of(replace(mission.LEFTOVER_SCENE, gpus=gpus))) as panel:
        await panel.press("K")
        await panel.shows(reason)
        await panel.press("y")
        await panel.pilot.pause()
        assert panel.feed.submitted == []


async def test_a_process_that_is_not_ours_is_named_with_its_owner() -> None:
    holder = replace(mission.LEFTOVER, is_mine=False, user="ann", kind=HolderKind.FOREIGN)
    gpus = replace(mission.LEFTOVER_GPUS, holders=(holder,))
    async with driven(feed_of(replace(mission.LEFTOVER_SCENE, gpus=gpus))) as panel:
        await panel.press("K")
        await panel.shows("! not yours: 41822 of ann")


async def test_marked_processes_go_together() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("K", "space", "j", "space", "y")
        await panel.until(lambda: len(panel.feed.submitted) == 1)
        command = panel.feed.submitted[0]
        assert isinstance(command, KillProcesses)
        pids = [target.pid for target in command.targets]
        assert pids == [43400, 43401]


async def test_the_process_selected_in_the_gpu_pane_is_the_one_in_the_dialog() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("2", "j", "j", "K")
        await panel.shows("─pid 43402")


# run


async def test_pausing_further_names_the_cost_of_each_way() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("P")
        await panel.shows("(•) drain", "~4 m 55 s", "freeze", "harvest", "~88.4K")
        await panel.press("down", "y")
        await panel.until(lambda: panel.feed.submitted == [PauseRun(WaitHow.FREEZE)])


async def test_typed_slots_become_manual_and_auto_is_a_word() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("equals_sign", "x", "enter")
        await panel.shows("a number from 1 to", "AUTO would set 46")
        await panel.press("backspace", "5", "2", "enter")
        await panel.until(lambda: panel.feed.submitted == [Throttle(52)])
        await panel.press("equals_sign", *"auto", "enter")
        await panel.until(lambda: panel.feed.submitted[-1] == Throttle(None))


@pytest.mark.parametrize("keys", [("enter",), ("down", "enter")])
async def test_a_run_file_is_described_before_it_is_started(
    keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eagle3.toml").write_text(
        '[run]\nname = "eagle3"\n[[partition]]\nname = "B2"\n[[partition]]\nname = "B3"\n'
    )
    (tmp_path / "other.toml").write_text("[server]\n")
    async with driven(feed_of(mission.NOTHING)) as panel:
        await panel.press("s")
        await panel.shows("eagle3.toml  run eagle3: B2 B3, slots auto")
        assert "other.toml" not in panel.text
        await panel.press(*keys)
        await panel.until(lambda: panel.feed.submitted == [StartRun(str(tmp_path / "eagle3.toml"))])


async def test_of_two_run_files_one_has_to_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("eagle2", "eagle3"):
        (tmp_path / f"{name}.toml").write_text(f'[run]\nname = "{name}"\n')
    async with driven(feed_of(mission.NOTHING)) as panel:
        await panel.press("s")
        await panel.shows("eagle2.toml", "eagle3.toml")
        await panel.press("enter")
        await panel.shows("type a path, or choose with the arrows")
        assert panel.feed.submitted == []


async def test_a_broken_run_file_is_refused_in_the_dialog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text("[run\n")
    async with driven(feed_of(mission.NOTHING)) as panel:
        await panel.press("s", *"x.toml", "enter")
        await panel.shows("not valid TOML")
        assert panel.feed.submitted == []


async def test_a_server_is_adopted_by_url_or_pid_only() -> None:
    async with driven(feed_of(mission.NOTHING)) as panel:
        await panel.press("A", "x", "enter")
        await panel.shows("a URL such as http://127.0.0.1:30000, or a pid")
        await panel.press("backspace", "4", "2", "enter")
        await panel.until(lambda: panel.feed.submitted == [AdoptServer("42")])


# views


@pytest.mark.parametrize("number", ["1", "2", "3", "4", "5", "6"])
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_a_digit_zooms_its_pane_and_the_same_digit_comes_back(
    number: str, size: tuple[int, int]
) -> None:
    async with driven(feed_of(mission.STEADY), *size) as panel:
        await panel.press(number)
        await panel.shows(f"─{number} ", f"{number} or Esc: back")
        await panel.press(number)
        await panel.until(lambda: "or Esc: back" not in panel.text)


async def test_escape_comes_back_and_never_quits() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("3", "escape", "escape", "escape")
        await panel.shows("─1 Decode", "─6 Events")
        assert panel.app.is_running


async def test_the_next_note_is_shown_and_numbered() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.shows("1 of 2 notes")
        await panel.press("n")
        await panel.shows("NOTE   B3 to B7 are only scouted", "2 of 2 notes")


async def test_why_shows_the_arithmetic_and_its_sources() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("w")
        await panel.shows("159,277 × 0.95 / 3,898 = 39", "start-up line")
        await panel.press("w")
        await panel.until(lambda: isinstance(panel.app.screen, Overview))


async def test_why_lists_what_is_missing_and_why() -> None:
    async with driven(feed_of(mission.STALE)) as panel:
        await panel.press("w")
        await panel.shows("Missing figures", "retracted –", "needs --enable-metrics")


async def test_help_is_searchable_and_says_what_does_not_work_now() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("question_mark", *"cancel")
        await panel.shows("X", "Not now: no start or restart is in progress")


async def test_the_palette_runs_a_command_by_name() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("colon", *"retry-failed", "enter")
        await panel.until(lambda: panel.feed.submitted == [RetryFailed()])


async def test_the_display_can_stand_still_while_data_go_on() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("z")
        await panel.shows("HELD DISPLAY")
        panel.feed.push(mission.PAUSED)
        await panel.until(lambda: panel.app._latest is mission.PAUSED)
        assert "RUNNING" in panel.text
        await panel.press("z")
        await panel.shows("PAUSED")


async def test_a_lost_feed_is_said_and_the_next_snapshot_clears_it() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        panel.feed.push(FeedLost("kvctld restarting"))
        await panel.shows("kvctld restarting", "148,128 of 159,277")
        panel.feed.push(mission.PAUSED)
        await panel.until(lambda: "kvctld restarting" not in panel.text)


async def test_a_panel_without_a_first_snapshot_says_what_it_waits_for() -> None:
    async with driven(FakeFeed(FeedLost("kvctld does not answer"))) as panel:
        await panel.shows("kvctld does not answer", "The first readings are on their way.")


async def test_an_unchanged_host_repaints_nothing() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        canvas = panel.app.screen.query_one(Canvas)
        before = canvas.repainted_rows
        again = replace(mission.STEADY)
        panel.feed.push(again)
        await panel.until(lambda: panel.app.snapshot is again)
        assert canvas.repainted_rows == before


async def test_only_rows_that_changed_are_repainted() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        canvas = panel.app.screen.query_one(Canvas)
        before = canvas.repainted_rows
        later = replace(mission.STEADY, run=replace(mission.RUN, in_flight=45))
        panel.feed.push(later)
        await panel.until(lambda: panel.app.snapshot is later)
        assert 1 <= canvas.repainted_rows - before <= 3


async def test_a_flood_of_snapshots_ends_with_the_newest_and_draws_few() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        for number in range(300):
            run = replace(mission.RUN, in_flight=number, state=RunState.RUNNING)
            panel.feed.push(replace(mission.STEADY, run=run))
        await panel.shows("in flight 299")


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (40, 10), (200, 60)])
async def test_any_size_is_drawn_and_survives_dialogs(size: tuple[int, int]) -> None:
    async with driven(feed_of(mission.STEADY), *size) as panel:
        for key in ("R", "escape", "K", "escape", "question_mark", "escape", "w", "w", "colon"):
            await panel.press(key)
        assert panel.app.is_running


async def test_twenty_quick_resizes_leave_the_last_size_drawn() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        for number in range(20):
            await panel.pilot.resize_terminal(20 + 9 * number, 5 + 2 * number)
        await panel.until(lambda: len(panel.text.split("\n")) == 43)
        assert {len(line) for line in panel.text.split("\n")} == {191}


async def test_leaving_stops_nothing() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("q")
        await panel.until(lambda: not panel.app.is_running)
        assert panel.feed.submitted == []
        assert panel.app.return_value == 0


async def test_ctrl_c_says_how_to_leave_and_leaves_only_the_second_time() -> None:
    async with driven(feed_of(mission.STEADY)) as panel:
        await panel.press("ctrl+c")
        await panel.shows("q leaves; nothing stops")
        assert panel.app.is_running
        await panel.press("ctrl+c")
        await panel.until(lambda: not panel.app.is_running)
        assert panel.feed.submitted == []


async def test_a_feed_that_ends_is_asked_again() -> None:
    asked_twice = asyncio.Event()

    class Ending(FakeFeed):
        times = 0

        async def snapshots(self) -> AsyncIterator[Snapshot | FeedLost]:
            self.times += 1
            if self.times == 2:
                asked_twice.set()
            yield mission.STEADY

    async with driven(Ending(mission.STEADY)) as panel:
        await panel.shows("kvctld closed the connection")
        async with asyncio.timeout(5):
            await asked_twice.wait()
