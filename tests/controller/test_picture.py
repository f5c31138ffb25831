"""The snapshot: what is joined, what is told as a verdict, history, windows, presets."""

from dataclasses import replace

import pytest
from tests.fakes.gpus import GIB
from tests.fakes.launcher import OOM
from tests.fakes.rig import Rig, preset_text
from tests.fakes.sglang import FakeServer

from kvctl.core.controller.commands import (
    PauseRun,
    RestartServer,
    ResumeRun,
    StartServer,
    StopServer,
    Throttle,
    WaitHow,
)
from kvctl.core.domain.snapshot import OperatingPoint
from kvctl.core.domain.verdict import VerdictWord
from kvctl.core.ports import ProbeFailed


async def steady(rig: Rig, seconds: float = 150) -> FakeServer:
    """A run whose counts stand still for so long."""
    started = await rig.serving()
    # Answers of unlike length: no sample then falls into a moment when all of them end.
    started.server.generator.length = lambda request: (
        150 + 37 * (request.input_ids or (0,))[0] % 100
    )
    await rig.submit_run(rig.run_file(rows=200, tokens=300))
    await rig.advance(seconds)
    return started.server


# -- joined -----------------------------------------------------------------------------------


async def test_effective_tokens_and_answer_time_come_from_the_journal(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=40, tokens=50))
    first = rig.server().decode
    assert first.effective_tokens_per_s.value is None and first.effective_tokens_per_s.reason
    assert first.answer_s.value is None and first.answer_s.reason == "nothing was completed yet"
    await rig.advance(30)
    decode = rig.server().decode
    assert decode.effective_tokens_per_s.value == pytest.approx(40, rel=0.25)
    assert decode.effective_tokens_per_s.source.startswith("journal")
    assert decode.answer_s.value == pytest.approx(5.0) and decode.answer_s.source == "journal"
    assert decode.generation_tokens_per_s.value == 40.0
    assert decode.generation_tokens_per_s.source == "/v1/loads"


async def test_requests_of_others_are_counted_with_and_without_a_run(rig: Rig) -> None:
    started = await rig.serving()
    started.server.others = 3
    await rig.advance(2)
    assert rig.server().foreign_requests.value == 3
    await rig.submit_run(rig.run_file(rows=40))
    await rig.advance(3)
    assert rig.server().foreign_requests.value == 3
    started.server.others = 0
    await rig.advance(2)
    assert rig.server().foreign_requests.value == 0
    await rig.submit(PauseRun(WaitHow.FREEZE))
    await rig.advance(10)
    figure = rig.server().foreign_requests
    assert figure.value is None and figure.reason == "counts are not of now"


async def test_an_answer_that_the_server_still_counts_is_not_anothers(rig: Rig) -> None:
    server = await rig.generating(rig.run_file(rows=400))
    await rig.advance(5)
    server.others = 1
    await rig.advance(1)
    assert rig.server().decode.running.value == 5
    assert rig.server().foreign_requests.value == 0
    assert (await rig.submit(RestartServer("large"))).is_done


async def test_the_first_server_is_the_one_that_kvctl_manages(rig: Rig) -> None:
    rig.finds_servers = True
    await rig.again()
    rig.local(30100)
    await rig.advance(12)
    await rig.serving()
    assert [s.name for s in rig.shot().servers] == ["main", "port-30100"]
    shot = rig.shot()
    assert shot.server is not None and shot.server.name == "main"


# -- verdicts ---------------------------------------------------------------------------------


async def test_a_worse_verdict_is_told_at_once_a_better_one_after_it_has_held(rig: Rig) -> None:
    await rig.advance(3)
    left = rig.leftover()
    await rig.advance(4)
    assert rig.shot().verdicts[0].word is VerdictWord.ACT
    (told,) = rig.events("verdict")
    assert told.startswith("ACT: GPU 0 is not clean: leftover")
    rig.processes.end(left.facts.identity)
    await rig.advance(4)
    assert rig.shot().verdicts[0].word is not VerdictWord.ACT
    assert len(rig.events("verdict")) == 1
    await rig.advance(8)
    assert len(rig.events("verdict")) == 2


async def test_a_verdict_that_flickers_is_told_once(rig: Rig) -> None:
    await rig.advance(3)
    for _ in range(4):
        left = rig.leftover()
        await rig.advance(4)
        rig.processes.end(left.facts.identity)
        await rig.advance(3)
    assert len(rig.events("verdict")) == 1


async def test_memory_that_no_process_explains_is_named_with_its_gpu(rig: Rig) -> None:
    rig.gpus.unexplained[1] = 9 * GIB
    await rig.advance(4)
    top = rig.shot().verdicts[0]
    assert top.word is VerdictWord.ACT and "GPU 1 holds 9.4 GiB" in top.sentence


async def test_a_failed_server_is_the_first_verdict(rig: Rig) -> None:
    started = await rig.serving()
    rig.world.write(started.launched.log_path, *OOM)
    rig.processes.end(started.launched.identity, status=1)
    await rig.advance(3)
    top = rig.shot().verdicts[0]
    assert top.word is VerdictWord.FAILED and "memory" in top.sentence


# -- history ----------------------------------------------------------------------------------


async def test_series_are_evenly_spaced_and_have_holes_where_nothing_was_known(rig: Rig) -> None:
    started = await rig.serving()
    started.server.others = 5
    await rig.advance(60)
    started.server.hang()
    await rig.advance(30)
    series = rig.shot().series["running"]
    assert series.step_s == 10.0
    assert series.values[-3:] == (None, None, None)
    assert set(series.values[1:-4]) == {5}
    started.server.go()
    await rig.advance(20)
    assert rig.shot().series["running"].values[-1] == 5


async def test_a_stopped_server_leaves_holes_not_zeros(rig: Rig) -> None:
    started = await rig.serving()
    started.server.others = 5
    await rig.advance(30)
    await rig.submit(StopServer(cut_foreign=True))
    await rig.advance(40)
    for name in ("running", "pool", "generation"):
        assert rig.shot().series[name].values[-1] is None, name


# -- operating points -------------------------------------------------------------------------


def points(rig: Rig, *, is_steady: bool) -> list[OperatingPoint]:
    return [p for p in rig.shot().operating_points if p.steady is is_steady]


async def test_burst_and_steady_windows_are_kept_apart(rig: Rig) -> None:
    await steady(rig)
    (burst,) = points(rig, is_steady=False)
    (level,) = points(rig, is_steady=True)
    assert (level.partition, level.preset) == ("B1", "small")
    assert 50 <= burst.window_s <= 75 and level.window_s >= 60
    assert level.running == pytest.approx(4) and level.queued == 0
    assert level.token_usage == pytest.approx(0.04)
    assert level.generation_tokens_per_s == pytest.approx(40)
    assert level.effective_tokens_per_s == pytest.approx(40, rel=0.25)


async def test_only_steady_figures_stand_behind_a_preset(rig: Rig) -> None:
    server = await steady(rig, 40)
    listed = {p.name: p for p in rig.shot().presets}
    assert listed["small"].generation_tokens_per_s is None
    await rig.advance(120)
    listed = {p.name: p for p in rig.shot().presets}
    assert listed["small"].generation_tokens_per_s == pytest.approx(40)
    assert listed["large"].generation_tokens_per_s is None
    assert server.is_up


async def test_a_change_of_slots_ends_the_steady_window(rig: Rig) -> None:
    await steady(rig)
    await rig.submit(Throttle(8))
    await rig.advance(5)
    assert rig.server().decode.steady_since is None
    before = points(rig, is_steady=True)
    await rig.advance(120)
    after = points(rig, is_steady=True)
    assert len(after) == len(before) + 1
    assert after[0] == before[0]
    assert after[-1].running == pytest.approx(8)


async def test_a_freeze_and_the_time_after_it_are_no_steady_window(rig: Rig) -> None:
    await steady(rig)
    await rig.submit(PauseRun(WaitHow.FREEZE))
    await rig.advance(60)
    kept = points(rig, is_steady=True)
    await rig.submit(ResumeRun())
    await rig.advance(20)
    assert rig.server().decode.steady_since is None
    assert points(rig, is_steady=True) == kept
    assert all(p.window_s < 120 for p in kept)


async def test_a_window_too_short_to_say_anything_is_no_point(rig: Rig) -> None:
    await rig.generating(rig.run_file(rows=4, tokens=50))
    await rig.advance(30)
    assert rig.shot().operating_points == ()


# -- presets ----------------------------------------------------------------------------------


async def test_presets_say_what_refuses_them_and_what_is_wrong_with_them(rig: Rig) -> None:
    rig.write_preset("broken", "[launch\n")
    rig.write_preset("circle", 'extends = "circle"\n')
    await rig.advance(6)
    listed = {p.name: p for p in rig.shot().presets}
    assert listed["fp8"].refused is not None
    assert "fp8 KV degrades this model noticeably" in listed["fp8"].refused
    assert listed["small"].refused is None and listed["small"].problem is None
    assert listed["broken"].problem and listed["circle"].problem


async def test_a_preset_shows_the_pool_of_its_last_launch_and_whether_it_runs(rig: Rig) -> None:
    listed = {p.name: p for p in rig.shot().presets}
    assert listed["small"].pool_tokens is None and not listed["small"].is_running
    await rig.serving()
    await rig.advance(6)
    listed = {p.name: p for p in rig.shot().presets}
    assert listed["small"].pool_tokens == 100_000 and listed["small"].is_running
    assert not listed["large"].is_running
    await rig.submit(StopServer())
    await rig.again()
    await rig.advance(6)
    listed = {p.name: p for p in rig.shot().presets}
    assert listed["small"].pool_tokens == 100_000 and not listed["small"].is_running


# -- frozen and unknown -----------------------------------------------------------------------


async def test_no_figure_of_a_snapshot_is_missing_without_a_reason(rig: Rig) -> None:
    rig.write_preset("second", preset_text("gpus = [1]\n", port=19))
    await rig.generating(rig.run_file(rows=40))
    await rig.submit(StartServer("second", server="b"))
    rig.remote("http://far:1").failing["loads"] = ProbeFailed("timeout", "no answer")
    for seconds in (0, 1, 30, 100):
        await rig.advance(seconds)
        for server in rig.shot().servers:
            figures = [server.foreign_requests]
            figures += [
                value
                for name in server.decode.__dataclass_fields__
                if hasattr(value := getattr(server.decode, name), "known")
            ]
            assert len(figures) > 20
            assert all(f.known or f.reason for f in figures)


async def test_frozen_counts_carry_the_moment_at_which_they_were_true(rig: Rig) -> None:
    started = await rig.serving()
    started.server.others = 4
    await rig.advance(10)
    started.server.hang()
    await rig.advance(40)
    shot, decode = rig.shot(), rig.server().decode
    assert decode.is_frozen
    for figure in (decode.running, decode.queued, decode.token_usage):
        assert figure.age_s(shot.at) == pytest.approx(40, abs=1.5)
    assert decode.generation_tokens_per_s.value is None
    assert decode.generation_tokens_per_s.reason is not None
    assert decode.steady_since is None


async def test_completions_steadily_above_what_is_generated_are_unknown_with_the_reason(
    rig: Rig,
) -> None:
    server = await steady(rig, 130)
    decode = rig.server().decode
    assert decode.steady_since is not None and decode.effective_tokens_per_s.known
    assert decode.completed_in_window and decode.effective_window_s
    per_s = decode.completed_in_window / decode.effective_window_s
    assert decode.completed_per_s.value == pytest.approx(per_s)
    told = server.counts()[0]
    server.ranks = (replace(told, gen_throughput=0.5),)  # it says so, while answers go on
    await rig.advance(400)
    decode, run = rig.server().decode, rig.run()
    assert decode.steady_since is not None
    for figure in (decode.effective_tokens_per_s, run.effective_tokens_per_s):
        assert figure.value is None
        assert "tok/s completed but" in (figure.reason or "")


async def test_the_history_survives_a_kvctld_that_was_killed(rig: Rig) -> None:
    await rig.serving()
    await rig.advance(60)
    before = rig.shot().series["pool"].values
    await rig.again()
    after = rig.shot().series["pool"].values
    assert len(after) >= len(before) - 1 and after[:4] == before[:4]
    await rig.advance(20)
    assert len(rig.shot().series["pool"].values) >= len(before) + 1
