"""Starts and their ends out of recorded logs: steps, facts, first cause, advice (O11, O12)."""

import gzip
from pathlib import Path

import pytest

from kvctl.core.domain.logs.lines import LogRecord
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.servers.server import Failure, StageState
from kvctl.core.domain.servers.start_failure import cause_of, silent_end
from kvctl.core.domain.servers.startup import (
    StartupProgress,
    failure_of,
    fold_startup,
    launched,
    phases_of,
    stages_of,
)

DATA = Path(__file__).parents[1] / "data"


def records_of(name: str) -> list[LogRecord]:
    path = DATA / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = data.decode(errors="replace").split("\n")
    return [parse_line(line, number) for number, line in enumerate(lines, 1)]


def failure(name: str) -> Failure:
    found = failure_of(records_of(name))
    assert found is not None
    return found


def all_text(found: Failure) -> str:
    return " ".join([found.headline, *found.advice])


@pytest.mark.parametrize(
    ("name", "pool", "limit", "graphs"),
    [
        ("sglang-0.5.17/server.log.gz", 159277, 2488, StageState.DONE),
        ("sglang-0.5.23/server.log", 4096, 2048, StageState.SKIPPED),
    ],
)
def test_a_recorded_start_ends_ready_with_its_facts(
    name: str, pool: int, limit: int, graphs: StageState
) -> None:
    progress = fold_startup(launched(0.0), records_of(name), 60.0)
    assert progress.is_ready
    assert (progress.pool_tokens, progress.max_running) == (pool, limit)
    states = {stage.name: stage.state for stage in stages_of(progress)}
    assert states.pop("graphs") is graphs
    assert set(states.values()) == {StageState.DONE}
    assert failure_of(records_of(name)) is None


def test_the_memory_left_is_that_after_the_graphs() -> None:
    progress = fold_startup(launched(0.0), records_of("sglang-0.5.17/server.log.gz"), 1.0)
    assert (progress.available_gpu_memory_gb, progress.weights_gb) == (102.54, 14.97)


def test_every_step_of_a_recorded_start_is_seen_in_order() -> None:
    progress = launched(0.0)
    seen: list[str] = []
    for number, record in enumerate(records_of("sglang-0.5.17/server.log.gz")[:400]):
        progress = fold_startup(progress, [record], float(number))
        if progress.current is not None and progress.current not in seen[-1:]:
            seen.append(progress.current)
    assert seen == ["process", "weights", "kv_pool", "graphs", "warmup"]


def test_a_step_that_has_ended_is_not_ended_again_by_the_summary_line() -> None:
    progress = launched(0.0)
    for number, record in enumerate(records_of("sglang-0.5.17/server.log.gz")[:400]):
        progress = fold_startup(progress, [record], float(number))
    pool, graphs = progress.step("kv_pool"), progress.step("graphs")
    assert pool is not None and pool.ended_at is not None
    assert graphs is not None and graphs.began_at is not None
    assert pool.ended_at <= graphs.began_at


def test_weight_shards_are_shown_as_they_load() -> None:
    bar = "Loading safetensors checkpoint shards:  38% Completed | 3/8 [00:09<00:15,  3.1s/it]"
    lines = ["[2026-11-02 09:00:00 TP0] Load weight begin. avail mem=138.20 GB", bar]
    progress = fold_startup(launched(0.0), [parse_line(line) for line in lines], 1.0)
    assert progress.text == "weights 3/8"
    step = progress.step("weights")
    assert step is not None and step.ratio == 0.375 and not step.is_done


def test_weights_are_done_only_when_every_rank_has_loaded() -> None:
    lines = [
        "[2026-11-02 09:00:00 TP0] Load weight begin. avail mem=138.20 GB",
        "[2026-11-02 09:00:00 TP1] Load weight begin. avail mem=138.20 GB",
        "[2026-11-02 09:05:30 TP1] Load weight end. type=M, avail mem=70.00 GB",
        "[2026-11-02 09:06:30 TP0] Load weight end. type=M, avail mem=70.00 GB",
    ]
    done, progress = [], launched(0.0)
    for line in lines:
        progress = fold_startup(progress, [parse_line(line)], 1.0)
        step = progress.step("weights")
        done.append(step is not None and step.is_done)
    assert done == [False, False, False, True]


def test_a_failed_start_marks_the_step_it_failed_in() -> None:
    lines = ["[2026-11-02 09:00:00] Load weight begin. avail mem=138.20 GB"]
    progress = fold_startup(launched(0.0), [parse_line(line) for line in lines], 1.0)
    stages = {s.name: s for s in stages_of(progress, failed="no memory")}
    assert stages["weights"].state is StageState.FAILED
    assert stages["weights"].detail == "no memory"
    assert stages["graphs"].state is StageState.TODO


def test_nothing_is_known_of_a_start_without_lines() -> None:
    assert StartupProgress().current is None and StartupProgress().text == ""


def test_o11_no_room_for_the_pool_advises_to_raise_the_fraction() -> None:
    found = failure("cases/o11-start-oom.log")
    assert "raise mem-fraction-static (now 0.8)" in found.advice
    assert "lower" not in all_text(found)
    assert "tp-size up" in all_text(found)


def test_o11_out_of_memory_while_serving_advises_to_lower_it() -> None:
    found = failure("cases/o11-run-oom.log")
    assert "lower mem-fraction-static" in all_text(found)
    assert "raise" not in all_text(found)
    assert found.stage is None and found.after_s == 2409


def test_o11_a_peer_that_closed_the_connection_is_no_lack_of_memory() -> None:
    found = failure("cases/o11-graph-not-oom.log")
    assert "Connection closed by peer" in found.headline
    assert "not a lack of memory" in all_text(found)
    assert "mem-fraction" not in all_text(found)
    assert "other ranks" in all_text(found)


@pytest.mark.parametrize("name", ["start-oom", "run-oom", "graph-not-oom"])
def test_o11_the_sigquit_is_never_the_cause(name: str) -> None:
    cause = cause_of(records_of(f"cases/o11-{name}.log"))
    assert cause is not None and cause.kind != "sigquit"


def test_o12_a_slow_rank_is_named_and_not_called_out_of_memory() -> None:
    found = failure("cases/o12-slow-load.log")
    assert found.headline == "rank 0 was still loading when the barrier ran out after 8 min"
    assert "slow storage or a dead rank" in all_text(found)
    assert found.stage == "weights"
    progress = fold_startup(launched(0.0), records_of("cases/o12-slow-load.log"), 1.0)
    assert phases_of(progress) == ("TP0: weights begun", "TP1: weights done")


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("start_wrong_flag", "bad_flag", "--mem-fraction-statik 0.8"),
        ("start_ambiguous_flag", "bad_flag", "--disable-c could match"),
        ("start_wrong_choice", "bad_flag", "invalid choice: 'nonsense'"),
        ("start_wrong_type", "bad_flag", "invalid int value: 'two'"),
        ("start_model_missing", "model_missing", "/nonexistent/model"),
        ("start_pool_too_small", "pool_too_small", "too small for a single request"),
        ("start_port_in_use", "port_in_use", "already in use"),
        ("start_killed_main_12s", "parent_gone", "main process was killed"),
        ("crash_bad_token_id", "exception", "IndexError: index out of range in self"),
        ("watchdog_kill_in_place_pause", "watchdog", "paused in place"),
        ("sigquit", "sigquit", "does not say why"),
    ],
)
def test_a_recorded_end_has_its_cause_and_evidence(name: str, kind: str, told: str) -> None:
    records = records_of(f"sglang-0.5.23/live/{name}.log")
    cause = cause_of(records)
    assert cause is not None and cause.kind == kind
    found = failure(f"sglang-0.5.23/live/{name}.log")
    assert told in all_text(found)
    number = cause.record.number
    assert any(line.startswith(f"{number}  ") for line in found.evidence)


def test_a_surviving_rank_that_lost_its_peer_tells_of_the_rank_that_died() -> None:
    found = failure("sglang-0.5.17/gpu/tp2_scheduler_killed.log")
    assert found.headline == "a rank ended without a word: TP0 lost its connection to it"
    assert "killed from outside" in all_text(found)


@pytest.mark.parametrize(
    "told",
    [
        "pair.cc:538] Read error [127.0.0.1]:38112: Connection reset by peer",  # two H200, 0.5.17
        "pair.cc:510] writev [127.0.0.1]:38112: Broken pipe",
        "pair.cc:547] Connection closed by peer [127.0.0.1]:14214",
        "pair.cc:547] Socket closed [127.0.0.1]:14214",
    ],
)
def test_a_lost_peer_is_told_however_the_socket_ended(told: str) -> None:
    lines = [
        "[2026-11-30 21:49:22 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        f"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/{told}",
        "[2026-11-30 21:49:22] SIGQUIT received. signum=None, frame=None. It usually means one "
        "child failed.",
    ]
    found = failure_of([parse_line(line) for line in lines])
    assert found is not None
    assert found.headline == "a rank ended without a word: TP0 lost its connection to it"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-9, "was killed (SIGKILL: by hand or for lack of memory); its log names no cause"),
        (-11, "was killed (SIGSEGV); its log names no cause"),
        (-200, "ended (exit status -200); its log names no cause"),
        (3, "ended (exit status 3); its log names no cause"),
        (None, "ended; its log names no cause: killed, by hand or for lack of memory"),
    ],
)
def test_an_end_without_a_word_is_named_by_its_signal(code: int | None, told: str) -> None:
    found = silent_end(code, "the last line", None)
    assert found.headline == f"The server {told}"
    assert found.evidence == ("the last line",) and found.is_silent
    assert not found.advice  # the verdict names the keys that there are


@pytest.mark.parametrize(
    "name", ["sigterm_drain", "sigterm_while_paused", "sigterm_force_shutdown"]
)
def test_a_stop_that_was_asked_for_is_no_failure(name: str) -> None:
    assert failure_of(records_of(f"sglang-0.5.23/live/{name}.log")) is None


def test_a_pause_that_was_continued_is_not_blamed_for_a_watchdog() -> None:
    access = '[2026-11-29 12:09:51] INFO:     127.0.0.1:1 - "POST /{} HTTP/1.1" 200 OK'
    watchdog = "[2026-11-29 12:10:18] Scheduler watchdog timeout (self.watchdog_timeout=20.0, "
    lines = [access.format(path) for path in ("pause_generation", "continue_generation")]
    records = [parse_line(line) for line in [*lines, watchdog + "self.soft=False)"]]
    told = failure_of(records)
    assert told is not None and "paused" not in all_text(told)
    still_paused = failure_of([records[0], records[2]])
    assert still_paused is not None and "paused in place" in all_text(still_paused)


def test_a_warning_that_nothing_followed_is_no_failure() -> None:
    lines = ["Health check failed. Server couldn't get a response from detokenizer for last 20 s"]
    assert failure_of([parse_line(line) for line in lines]) is None


def test_an_exception_that_the_server_survived_is_no_failure() -> None:
    lines = [
        "ModuleNotFoundError: No module named 'openai_harmony'",
        "[2026-11-02 09:00:00] The server is fired up and ready to roll!",
    ]
    assert failure_of([parse_line(line) for line in lines]) is None


def test_a_scheduler_killed_while_it_loads_is_the_cause_not_the_pipe_it_leaves() -> None:
    lines = [
        "[2026-11-30 00:11:23] Load weight begin. avail mem=20.38 GB",
        "    raise EOFError",
        "EOFError",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code "
        "is -9 (SIGKILL), a common cause is the OS OOM killer.",
    ]
    told = failure_of([parse_line(line) for line in lines])
    assert told is not None and "was killed from outside" in told.headline
    older = failure_of([parse_line(line) for line in [lines[2], "Exit code: 1"]])
    assert older is not None and "EOFError" not in older.headline


def test_the_first_rank_to_fail_is_the_cause_and_not_its_victims() -> None:
    lines = [
        "[2026-11-02 09:40:09 TP3] Scheduler hit an exception: Traceback (most recent call last):",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.30 GiB.",
        "[2026-11-02 09:40:19 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:29, remote process exited",
        "[2026-11-02 09:40:20] SIGQUIT received. signum=None, frame=None.",
    ]
    cause = cause_of([parse_line(line, number) for number, line in enumerate(lines, 1)])
    assert cause is not None and (cause.kind, cause.record.number) == ("oom_start", 2)
