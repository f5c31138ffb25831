"""What the ledger keeps of a launch: prediction, resolved flags, operating points; and plans."""

import os

import pytest
from tests.controller.test_picture import steady
from tests.fakes.launcher import Boot
from tests.fakes.rig import Rig, preset_text
from tests.fakes.sglang import FakeServer

from kvctl.core.controller.commands import CheckPreset, PlanPresets, StartServer, StopServer
from kvctl.core.domain.launches.launch import LaunchRecord
from kvctl.core.domain.launches.plan import Planned
from kvctl.core.servers.ledger import Ledger


def _resolve(server: FakeServer) -> None:
    server.flags["mem_fraction_static"] = 0.8


RESOLVED = Boot(ready=_resolve)
"""A launch that tells the fraction it took."""


def launches(rig: Rig) -> tuple[LaunchRecord, ...]:
    """What another process reads in the file."""
    return Ledger(rig.state_folder / "launches.jsonl").records()


def planned(rig: Rig, name: str) -> Planned:
    return next(one for one in rig.shot().plans if one.name == name)


async def test_a_launch_that_serves_is_kept_with_its_resolved_flags_and_its_step_times(
    rig: Rig,
) -> None:
    await rig.serving(boot=RESOLVED)
    await rig.advance(5)
    (launch,) = launches(rig)
    assert launch.model == "/models/tiny"
    assert launch.serving.mem_fraction == pytest.approx(0.8)
    assert launch.pool_tokens == 100_000
    steps = dict(launch.stages)
    assert set(steps) >= {"process", "weights", "first token"}
    assert all(seconds >= 0 for seconds in steps.values())


async def test_a_launch_holds_what_its_ranks_hold_on_each_gpu(rig: Rig) -> None:
    await rig.serving()
    await rig.advance(5)
    (launch,) = launches(rig)
    held = {
        str(h.gpu_index): h.memory_bytes
        for h in rig.shot().gpus.holders
        if h.server == "main" and h.memory_bytes
    }
    assert held
    assert dict(launch.gpus) == held


async def test_the_second_start_of_a_preset_was_predicted_by_the_first(rig: Rig) -> None:
    await rig.serving()
    await rig.advance(40)
    await rig.submit(StopServer())
    await rig.serving()
    await rig.advance(5)
    first, second = launches(rig)
    assert first.predicted is None  # nothing was known of a model that is not on this host
    assert second.predicted is not None
    assert second.predicted.expected == 100_000
    assert second.predicted_by == f"small ({first.id})"
    assert second.prediction_error == 0.0


async def test_what_one_kvctld_missed_the_next_one_keeps(rig: Rig) -> None:
    await rig.serving(boot=RESOLVED)
    await rig.again()
    await rig.advance(20)
    (launch,) = launches(rig)
    assert launch.serving.mem_fraction == pytest.approx(0.8)


async def test_steady_windows_are_kept_under_their_launch_and_survive_kvctld(rig: Rig) -> None:
    await steady(rig, 200)
    await rig.advance(70)
    await rig.kill()
    (launch,) = launches(rig)
    windows = [point for point in launch.points if point.steady]
    assert windows
    longest = max(windows, key=lambda point: point.window_s)
    assert longest.partition == "B1"
    assert longest.launch == launch.id
    assert longest.server == "main"
    assert longest.running == pytest.approx(4, abs=0.5)
    assert longest.completed is not None and longest.completed > 0
    assert longest.completed_per_s == pytest.approx(longest.completed / longest.window_s)
    await rig.begin()
    assert launch.points[-1] in rig.shot().operating_points


async def test_a_window_that_grows_is_one_window_in_the_ledger(rig: Rig) -> None:
    await steady(rig, 330)
    (launch,) = launches(rig)
    began = [point.began_wall for point in launch.points if point.steady]
    assert len(began) == len(set(began))


async def test_a_stop_closes_the_window(rig: Rig) -> None:
    await steady(rig, 150)
    await rig.submit(StopServer(cut_foreign=True))
    await rig.advance(2)
    (launch,) = launches(rig)
    assert launch.points
    assert launch.cause == "stopped"


async def test_what_a_start_has_told_is_in_the_plans_at_once(rig: Rig) -> None:
    """The overview would show the running server's pool as an estimate until the next look."""
    await rig.serving(boot=RESOLVED)
    await rig.advance(4)
    assert planned(rig, "small").measured_tokens == 100_000


async def test_presets_are_planned_without_being_asked_for(rig: Rig) -> None:
    await rig.serving()
    await rig.advance(40)
    assert {one.name for one in rig.shot().plans} == {"small", "large", "fp8", "elsewhere"}
    assert planned(rig, "small").measured_tokens == 100_000
    assert planned(rig, "large").pool is None
    assert "no such folder" in planned(rig, "large").reason
    assert (
        planned(rig, "fp8").refused
        == "rule on kv-cache-dtype: fp8 KV degrades this model noticeably"
    )


async def test_a_plan_that_is_asked_for_has_the_lengths_of_the_open_run(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=40, tokens=50))
    await rig.advance(30)
    outcome = await rig.submit(PlanPresets(("small",)))
    (small,) = outcome.data["presets"]
    (part,) = small["parts"]
    assert (part["name"], part["mean_tokens"]) == ("B1", 50)
    assert part["plain"] == pytest.approx(100_000 / 50, rel=0.1)
    given = await rig.submit(PlanPresets(("small",), lengths=(2000.0, 500.0)))
    names = [part["name"] for part in given.data["presets"][0]["parts"]]
    assert names == ["2,000 tokens", "500 tokens"]


async def test_a_plan_for_a_run_file_counts_its_answers_on_disk(rig: Rig) -> None:
    path = rig.run_file(rows=40, tokens=50)
    await rig.generating(path)
    await rig.advance(30)
    done = rig.run().done
    await rig.again()  # the next kvctld has not opened the run yet
    outcome = await rig.submit(PlanPresets(("small",), run=path))
    (part,) = outcome.data["presets"][0]["parts"]
    assert done > 0
    assert part["mean_tokens"] == 50


async def test_an_unknown_preset_or_run_is_one_clear_line(rig: Rig) -> None:
    outcome = await rig.submit(PlanPresets(("nobody",)))
    assert outcome.exit_status == 2
    assert "there is no preset nobody; there are: elsewhere, fp8, large, small" in outcome.message
    outcome = await rig.submit(PlanPresets((), run=str(rig.folder / "none.toml")))
    assert outcome.exit_status == 2
    assert "none.toml" in outcome.message
    assert rig.events("failed") == []


async def test_a_check_says_what_the_preset_would_bring_and_what_that_rests_on(rig: Rig) -> None:
    await rig.serving()
    await rig.advance(15)
    outcome = await rig.submit(CheckPreset("small"))
    (launch,) = launches(rig)
    assert outcome.data["predicted_tokens"] == 100_000
    assert outcome.data["calibrated_by"] == f"small ({launch.id})"


async def test_two_servers_have_windows_of_their_own(rig: Rig) -> None:
    await rig.serving()
    rig.write_preset("second", preset_text("gpus = [1]\n", port=19))
    await rig.submit(StartServer("second", server="b"))
    servers = 'servers = ["main", "b"]'
    await rig.submit_run(rig.run_file(rows=200, tokens=300, concurrency=8, run=servers))
    await rig.advance(150)
    points = rig.shot().operating_points
    assert {point.server for point in points} == {"main", "b"}
    # What the run completes is not this or that server's.
    assert all(point.effective_tokens_per_s is None for point in points)
    assert all(point.generation_tokens_per_s for point in points)


async def test_a_ledger_that_cannot_be_written_is_told_once(rig: Rig) -> None:
    os.mkdir(rig.state_folder / "launches.jsonl")
    await steady(rig, 200)
    told = rig.events("ledger")
    assert told
    assert len(told) <= 3  # a start tells it itself, twice
