"""The verdict rules: what is said, from which figures, in which order."""

from dataclasses import replace

import pytest

from kvctl.core.domain.diagnosis.diagnose import diagnose
from kvctl.core.domain.diagnosis.scene import Scene
from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, Holder, HolderKind
from kvctl.core.domain.runs.run import Partition, PartitionState, Run, RunState
from kvctl.core.domain.servers.server import Decode, Failure, Server, ServerState
from kvctl.core.domain.servers.start_failure import silent_end
from kvctl.core.domain.snapshot import PresetSummary
from kvctl.core.domain.verdict import VerdictWord

NOW = 5000.0


def fig(value: float | None, age: float = 0.5) -> Figure:
    return Figure(value, "/v1/loads", NOW - age)


def server(
    running: float, queued: float, usage: float, *, pool: int = 159_277, steady: bool = True
) -> Server:
    decode = Decode(
        running=fig(running),
        queued=fig(queued),
        token_usage=fig(usage),
        pool_tokens=fig(pool),
        generation_tokens_per_s=fig(640.0),
        steady_since=NOW - 100 if steady else None,
    )
    return Server("main", "http://x", ServerState.DECODING, NOW - 999, decode=decode)


def run(*, is_auto: bool = True, in_flight: int = 46, state: RunState = RunState.RUNNING) -> Run:
    part = Partition("B2", PartitionState.OPEN, 5600, 1604, 0, 0, in_flight, 0, 0, 4112, 7900, 0)
    return Run(
        "eagle3", "r.toml", "out", state, NOW - 60, is_auto=is_auto, in_flight=in_flight,
        target=in_flight, auto_target=42, partitions=(part,), total=5600, done=1604,
        fit_at_mean=39.0, held_tokens_mean=3900.0,
    )  # fmt: skip


def device(index: int, used_gib: float) -> GpuDevice:
    none = unknown("not read")
    used, total = fig(used_gib * (1 << 30)), fig(95.6 * (1 << 30))
    return GpuDevice(index, f"GPU-{index}", "RTX", "0", used, total, none, none, none, none, none)


def leftover(kind: HolderKind = HolderKind.LEFTOVER) -> Holder:
    return Holder(
        "GPU-4", 4, 41822, 1, 93_699 << 20, kind, "parent gone", "sglang::scheduler_TP4",
        "ann", 1, None, None, "TP4", True,
    )  # fmt: skip


def scene(server_: Server | None, run_: Run | None = None, **more: object) -> Scene:
    return replace(Scene(NOW, 1.79e9, server_, GpuView(), run_), **more)  # type: ignore[arg-type]


def test_the_missions_150_slots_are_named_as_waiting_for_nothing() -> None:
    verdict = diagnose(scene(server(35, 115, 0.94), run(is_auto=False, in_flight=150)))[0]
    assert verdict.word is VerdictWord.LEVER
    assert "150 sent, 35 decode, 115 only wait" in verdict.sentence
    assert "~42" in verdict.lever


def test_at_the_ceiling_under_auto_the_limit_is_said_with_the_rule_that_binds() -> None:
    fp8 = PresetSummary("hicache-fp8", "", refused='rule "no fp8 KV"', pool_tokens=376_029)
    verdict = diagnose(scene(server(38, 8, 0.93), run(), presets=(fp8,)))[0]
    assert verdict.word is VerdictWord.LIMIT
    assert "KV-bound on B2: 159,277 tokens hold ~39 requests" in verdict.sentence
    assert 'rule "no fp8 KV"' in verdict.lever
    assert any("= 3,898" in why.value for why in verdict.why)


def test_an_allowed_larger_preset_is_offered() -> None:
    bigger = PresetSummary("hicache-bf16", "", pool_tokens=159_277)
    verdict = diagnose(scene(server(28, 8, 0.93, pool=116_000), run(), presets=(bigger,)))[0]
    assert verdict.lever.startswith("R hicache-bf16: ~54 at once instead of ~39")


def test_a_failed_server_outranks_a_leftover_and_both_are_told() -> None:
    failed = Server(
        "main",
        "http://x",
        ServerState.FAILED,
        NOW - 8,
        failure=Failure("Out of GPU memory", ("b",)),
    )
    view = GpuView((device(4, 91.5),), (leftover(),), NOW)
    verdicts = diagnose(scene(failed, gpus=view))
    assert [v.word for v in verdicts[:2]] == [VerdictWord.FAILED, VerdictWord.ACT]
    assert "93,699 MiB" in verdicts[1].sentence


def test_a_draining_server_without_work_is_not_called_ready() -> None:
    reason = "waits for what runs, then ends"
    drained = Server("main", "http://x", ServerState.DRAINING, NOW - 9, reason)
    first = diagnose(scene(drained))[0]
    assert first.word is VerdictWord.WAIT
    assert first.sentence == f"Server main drains: {reason}."


@pytest.mark.parametrize(
    ("log_path", "evidence", "good", "lever"),
    [
        (None, (), None, "S starts it again"),
        (None, (), "b88", "b goes back to b88"),
        ("/logs/a.log", (), None, "l shows its log, S starts it again"),
        ("/logs/a.log", (), "b88", "b goes back to b88, l shows its log"),
        ("/logs/a.log", ("7  E: x",), None, "l shows the log at the cause, S starts it again"),
        ("/logs/a.log", ("7  E: x",), "b88", "b goes back to b88, l shows the log at the cause"),
    ],
)
def test_a_failure_promises_a_log_a_line_in_it_and_a_way_back_only_where_they_are(
    log_path: str | None, evidence: tuple[str, ...], good: str | None, lever: str
) -> None:
    failure = Failure("it failed", (), evidence) if evidence else None
    silent = Server(
        "main", "http://x", ServerState.FAILED, NOW - 9, log_path=log_path, failure=failure
    )
    assert diagnose(scene(silent, last_good_preset=good))[0].lever == lever


def test_a_silent_end_promises_no_line_that_its_log_could_be_opened_at() -> None:
    failure = silent_end(-9, "the last line", None)
    silent = Server(
        "main", "http://x", ServerState.FAILED, NOW - 9, log_path="/logs/a.log", failure=failure
    )
    first = diagnose(scene(silent, last_good_preset="b88"))[0]
    assert first.lever == "b goes back to b88, l shows its log"


def test_memory_without_a_holder_is_not_offered_for_a_kill() -> None:
    view = GpuView((device(4, 91.5),), (), NOW)
    verdict = diagnose(scene(None, gpus=view))[0]
    assert verdict.word is VerdictWord.ACT
    assert "no process here explains it" in verdict.sentence


def test_figures_older_than_the_limit_make_no_ceiling_verdict() -> None:
    old = server(38, 8, 0.93)
    old = replace(old, decode=replace(old.decode, running=fig(38, age=40)))
    words = [verdict.word for verdict in diagnose(scene(old, run()))]
    assert VerdictWord.LIMIT not in words
    assert words[0] is VerdictWord.WAIT


def test_a_burst_is_marked_as_not_to_be_quoted() -> None:
    verdict = diagnose(scene(server(150, 0, 0.61, pool=376_029, steady=False), run()))[0]
    assert verdict.word is VerdictWord.NOTE
    assert "do not quote" in verdict.lever


def test_a_hand_set_number_that_starves_the_server_is_a_lever() -> None:
    verdict = diagnose(scene(server(16, 0, 0.41), run(is_auto=False, in_flight=16)))[0]
    assert verdict.word is VerdictWord.LEVER
    assert "16 of 16 slots" in verdict.sentence


@pytest.mark.parametrize(
    ("state", "word"),
    [(RunState.PAUSED, VerdictWord.HOLD), (RunState.HOLDING, VerdictWord.HOLD)],
)
def test_not_sending_is_said_before_the_ceiling(state: RunState, word: VerdictWord) -> None:
    verdict = diagnose(scene(server(38, 8, 0.93), replace(run(state=state), reason="why")))[0]
    assert verdict.word is word


def test_an_idle_host_says_what_can_be_started() -> None:
    verdict = diagnose(scene(None, gpus=GpuView((device(0, 0.0),), (), NOW)))[0]
    assert verdict.word is VerdictWord.OK
    assert "1 of 1 GPUs without a holder" in verdict.sentence


def test_a_missing_driver_is_said_in_its_own_words() -> None:
    verdict = diagnose(scene(None, gpus=GpuView(problem="no NVIDIA driver here")))[0]
    assert "no NVIDIA driver here" in verdict.sentence


def test_the_short_form_fits_the_small_screen() -> None:
    for verdict in (
        diagnose(scene(server(35, 115, 0.94), run(is_auto=False, in_flight=150)))[0],
        diagnose(scene(server(38, 8, 0.93), run()))[0],
    ):
        assert 0 < len(verdict.short) <= 71
        assert len(verdict.short_lever) <= 64
