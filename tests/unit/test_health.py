"""The state machine of a server's health, case O13 among them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvctl.core.domain.servers.decode import DecodeState, fold_loads, fold_metrics
from kvctl.core.domain.servers.health import HealthInputs, assess
from kvctl.core.domain.servers.server import Failure, ServerState
from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading, RankLoad

CASES = Path(__file__).parents[1] / "data" / "cases"
BUSY = HealthInputs(
    is_process_alive=True,
    is_ready_seen=True,
    last_answer_at=100.0,
    running=8,
    queued=3,
    decode_at=100.0,
    progress_at=100.0,
    busy_since=50.0,
)
IDLE = replace(BUSY, running=0, queued=0, busy_since=None)


def state_of(
    inputs: HealthInputs, now: float = 100.0, previous: ServerState | None = None
) -> ServerState:
    return assess(inputs, previous, now)[0]


def _replay(name: str) -> list[tuple[float, ServerState, str]]:
    """Return time, state and reason of every row, through the same folds as a real server's."""
    decode = DecodeState()
    previous: ServerState | None = None
    seen: list[tuple[float, ServerState, str]] = []
    for row in json.loads((CASES / name).read_text()):
        at = float(row["t"])
        rank = RankLoad(0, None, row["running"], row["queue"], *[None] * 6)
        decode = fold_loads(decode, LoadsReading(at, at, "/v1/loads", "x", (rank,)), at)
        counters = {
            key.replace("realtime_tokens_total_", "realtime_tokens_total."): float(value)
            for key, value in row.items()
            if key.startswith("realtime_tokens_total")
        }
        decode = fold_metrics(decode, MetricsReading(at, counters, {}, {}), at)
        progress = decode.progress
        inputs = HealthInputs(
            is_process_alive=True,
            is_ready_seen=True,
            last_answer_at=at,
            running=row["running"],
            queued=row["queue"],
            decode_at=progress.decode_at,
            prefill_at=progress.prefill_at,
            progress_at=progress.progress_at,
            busy_since=progress.busy_since,
        )
        previous, reason = assess(inputs, previous, at)
        seen.append((at, previous, reason))
    return seen


def test_o13_a_stall_behind_a_healthy_answer_is_told_in_time_and_not_early() -> None:
    states = {at: state for at, state, _ in _replay("o13-health-200-stalled.json")}
    assert all(state is ServerState.DECODING for at, state in states.items() if 0 < at <= 60)
    assert all(state is not ServerState.STALLED for at, state in states.items() if at < 90)
    assert all(state is ServerState.STALLED for at, state in states.items() if at >= 90)


def test_o13_a_stall_says_what_was_seen() -> None:
    reasons = {at: reason for at, _, reason in _replay("o13-health-200-stalled.json")}
    assert reasons[120] == "no token for 60 s while 0 run, 9 wait"


def test_o13_a_long_prefill_is_busy_and_never_stalled_or_dead() -> None:
    states = [state for at, state, _ in _replay("o13-health-503-prefill.json") if at >= 10]
    assert set(states) == {ServerState.BUSY_PREFILL}


def test_a_start_is_starting_with_its_step_until_it_is_ready() -> None:
    inputs = HealthInputs(is_process_alive=True, startup="weights 3/8", probe_cause="refused")
    assert assess(inputs, None, 5.0) == (ServerState.STARTING, "weights 3/8")


def test_a_server_that_answers_while_its_first_request_is_computed_still_starts() -> None:
    warming = HealthInputs(
        is_process_alive=True,
        startup="first token",
        last_answer_at=100.0,
        running=0,
        queued=0,
        is_frozen=True,
        frozen_since=60.0,
    )
    assert state_of(warming) is ServerState.STARTING
    assert state_of(replace(warming, is_ready_seen=True)) is not ServerState.STARTING
    assert state_of(replace(warming, startup="")) is not ServerState.STARTING
    busy = replace(warming, progress_at=99.0, decode_at=99.0, running=1, is_frozen=False)
    assert state_of(busy) is ServerState.DECODING


def test_an_adopted_server_that_answers_is_ready_without_a_ready_line() -> None:
    assert state_of(replace(IDLE, is_ready_seen=False)) is ServerState.IDLE


def test_a_remote_server_without_an_answer_is_unreachable() -> None:
    assert state_of(HealthInputs(probe_cause="refused: x")) is ServerState.UNREACHABLE


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"failure": Failure("the port is already in use")}, ServerState.FAILED),
        ({"is_stop_asked": True}, ServerState.STOPPED),
        ({"is_draining": True}, ServerState.STOPPED),
        ({}, ServerState.FAILED),
    ],
)
def test_an_ended_process_failed_unless_it_was_told_to_stop(
    change: dict[str, Any], wanted: Any
) -> None:
    assert state_of(replace(BUSY, is_process_alive=False, **change)) is wanted


def test_a_failure_line_of_a_living_start_is_failed() -> None:
    inputs = HealthInputs(is_process_alive=True, failure=Failure("the port is already in use"))
    assert state_of(inputs) is ServerState.FAILED


def test_a_failure_line_of_a_server_that_makes_tokens_is_not_its_end() -> None:
    assert state_of(replace(BUSY, failure=Failure("a request failed"))) is ServerState.DECODING


def test_a_stop_is_stopping_and_a_drain_is_draining() -> None:
    assert state_of(replace(BUSY, is_stop_asked=True)) is ServerState.STOPPING
    state, reason = assess(replace(BUSY, is_draining=True), None, 100.0)
    assert state is ServerState.DRAINING and "11 requests left" in reason


def test_our_own_pause_is_paused_and_never_stalled() -> None:
    paused = replace(BUSY, is_paused_by_us=True, is_frozen=True, frozen_since=100.0)
    assert state_of(paused, now=10_000.0) is ServerState.PAUSED


def test_decoding_beside_prefill_is_decoding() -> None:
    assert state_of(replace(BUSY, prefill_at=100.0)) is ServerState.DECODING


def test_a_late_answer_is_not_death_while_tokens_are_made() -> None:
    late = replace(BUSY, probe_cause="timeout", progress_at=128.0, decode_at=128.0)
    assert state_of(late, now=130.0) is ServerState.DECODING


def test_one_missed_answer_is_not_unreachable() -> None:
    assert state_of(replace(IDLE, probe_cause="timeout"), now=105.0) is ServerState.IDLE


def test_an_old_answer_is_not_told_as_one_of_now() -> None:
    _, reason = assess(replace(IDLE, probe_cause="timeout"), ServerState.IDLE, 105.0)
    assert reason.endswith("last answer 5 s ago")


def test_no_answer_and_no_token_is_unreachable_and_says_for_how_long() -> None:
    state, reason = assess(replace(BUSY, probe_cause="refused: x"), ServerState.DECODING, 130.0)
    assert (state, reason) == (ServerState.UNREACHABLE, "no answer for 30 s: refused: x")


def test_no_old_state_is_shown_as_live_within_five_seconds_of_a_freeze() -> None:
    frozen = replace(BUSY, is_frozen=True, frozen_since=100.0)
    state, reason = assess(frozen, ServerState.DECODING, 105.0)
    assert state is ServerState.DECODING and reason.startswith("no progress for 5 s")


def test_a_freeze_that_lasts_is_stalled() -> None:
    frozen = replace(BUSY, is_frozen=True, frozen_since=100.0)
    assert state_of(frozen, 129.0, ServerState.DECODING) is ServerState.DECODING
    assert state_of(frozen, 130.0, ServerState.DECODING) is ServerState.STALLED


def test_an_idle_server_that_freezes_is_judged_from_the_freeze_on() -> None:
    frozen = replace(IDLE, is_frozen=True, frozen_since=5000.0, progress_at=100.0)
    assert state_of(frozen, 5010.0, ServerState.IDLE) is ServerState.IDLE
    assert state_of(frozen, 5050.0, ServerState.IDLE) is ServerState.STALLED


def test_a_request_after_a_long_idle_time_is_not_stalled_at_once() -> None:
    woken = replace(BUSY, progress_at=100.0, decode_at=100.0, busy_since=5000.0)
    assert state_of(woken, 5001.0, ServerState.IDLE) is not ServerState.STALLED
    assert state_of(woken, 5030.0, ServerState.DECODING) is ServerState.STALLED


def test_the_time_without_a_token_that_counts_as_a_stall_can_be_chosen() -> None:
    slow = replace(BUSY, stall_after_s=90.0)
    assert state_of(slow, now=189.0) is not ServerState.STALLED
    assert state_of(slow, now=190.0) is ServerState.STALLED


def test_a_freeze_says_whether_another_paused_it_or_it_hangs_where_ready_tells() -> None:
    frozen = replace(BUSY, is_frozen=True, frozen_since=100.0)
    said = {
        told: assess(replace(frozen, is_ready=told), ServerState.DECODING, 140.0)[1]
        for told in (None, True, False)
    }
    assert said[None].endswith("hung, or paused by another")
    assert said[True].endswith("40 s: hung")
    assert said[False].endswith("paused by another: /ready refuses")


def test_a_long_prefill_whose_counts_stand_still_is_not_stalled_while_its_tokens_move() -> None:
    frozen = replace(BUSY, is_frozen=True, frozen_since=100.0, progress_at=395.0, prefill_at=395.0)
    assert state_of(frozen, 400.0, ServerState.BUSY_PREFILL) is ServerState.BUSY_PREFILL


def test_a_stall_ends_with_the_next_token() -> None:
    moving = replace(BUSY, progress_at=150.0, decode_at=150.0)
    assert state_of(moving, 150.0, ServerState.STALLED) is ServerState.DECODING


def test_a_version_without_counts_is_never_called_stalled() -> None:
    blind = replace(BUSY, running=None, queued=None, busy_since=None)
    assert state_of(blind, now=5000.0) is ServerState.IDLE
