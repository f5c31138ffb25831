"""When figures count as steady: recorded runs of a real server and made-up series."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from kvctl.core.domain.telemetry.steady import (
    LoadSample,
    Steadiness,
    fold_sample,
    fold_target,
    start_over,
)

DATA = Path(__file__).parents[1] / "data"


def fold(
    samples: Iterable[LoadSample], state: Steadiness | None = None, pool: int = 4096
) -> Steadiness:
    state = state or Steadiness()
    for sample in samples:
        state = fold_sample(state, sample, pool)
    return state


def level(
    start: float,
    end: float,
    running: float = 60.0,
    queued: float = 20.0,
    usage: float = 0.92,
) -> list[LoadSample]:
    return [LoadSample(t, running, queued, usage) for t in _seconds(start, end)]


def _seconds(start: float, end: float) -> list[float]:
    return [start + i for i in range(int(end - start))]


def test_a_level_load_is_steady_after_a_minute_and_not_before() -> None:
    assert fold(level(0, 50)).since is None
    steady = fold(level(0, 80))
    assert steady.since is not None and 50 <= steady.since <= 61


def test_steady_since_does_not_move_while_it_stays_steady() -> None:
    first = fold(level(0, 70))
    assert fold(level(70, 300), first).since == first.since


def test_a_burst_is_never_steady_however_slowly_usage_rises() -> None:
    rising = [LoadSample(t, 60, 20, 0.2 + 0.004 * t) for t in _seconds(0, 180)]
    state = Steadiness()
    for sample in rising:
        state = fold_sample(state, sample, 4096)
        assert state.since is None


def test_no_load_is_not_steady() -> None:
    assert fold(level(0, 120, running=0, queued=0, usage=0.0)).since is None


def test_a_gap_in_the_samples_ends_it() -> None:
    steady = fold(level(0, 70))
    assert fold(level(85, 90), steady).since is None


def test_too_few_samples_are_not_steady() -> None:
    sparse = [LoadSample(t * 6.0, 60, 20, 0.9) for t in range(30)]
    assert fold(sparse).since is None


def test_a_change_of_target_of_the_pool_or_a_break_starts_over() -> None:
    steady = fold(level(0, 70))
    assert fold_target(steady, 64).since is None
    assert fold_target(fold_target(steady, 64), 64) == fold_target(steady, 64)
    assert start_over(steady).since is None
    assert fold(level(70, 72), steady, pool=8192).since is None


def test_memory_stays_bounded_however_often_it_is_sampled() -> None:
    dense = [LoadSample(t / 50, 60, 20, 0.9) for t in range(10_000)]
    assert len(fold(dense).samples) <= 255


def test_the_recorded_runs_are_steady_at_their_plateau_and_never_while_they_ramp() -> None:
    path = DATA / "sglang-0.5.17" / "law.samples.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for phase in ("auto1", "fixed150", "fixed72", "auto2"):
        of_phase = [row for row in rows if row["ph"] == phase]
        begin, state, steady_at = of_phase[0]["t"], Steadiness(), []
        for row in of_phase:
            sample = LoadSample(row["t"], row["R"], row["Q"], row["U"])
            state = fold_sample(state, sample, 159277)
            if state.since is not None:
                steady_at.append(row["t"] - begin)
        assert min(steady_at) > 60, phase  # the ramp and the overshoot after it take 25 to 40 s
        assert min(steady_at) < 90, phase
