"""The simulated server under the loads that real ones were recorded under, minute by minute.

`python -m tests.benchmarks.replay` prints the figures. The step law comes from one recording and
is used for all; nothing is fitted to a minute.
"""

from itertools import pairwise

import pytest
from tests.fakes.replayed import (
    FITTED_ON,
    RECORDINGS,
    Recording,
    compare,
    lines_of,
    plain_steps,
    replay,
    rows_of,
    step_law,
)

from kvctl.core.sim.model import DecodeTick, PoolLimits, PoolRequest
from kvctl.core.sim.pool import Pool

BOUND = 0.10
CPU = PoolLimits(4096, prefill_tokens=4096, log_interval=40)
CPU_USAGE = 0.03
"""Of 4096 tokens. The pauses fell anywhere between two lines, 40 steps of 5 requests apart."""
LINES_TO_THE_PAUSE = 40


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_running_usage_and_speed_are_within_a_tenth_in_every_recorded_minute(
    recording: Recording,
) -> None:
    for window in compare(recording, replay(recording)):
        real, simulated = window.recorded, window.simulated
        assert simulated.running == pytest.approx(real.running, rel=BOUND)
        assert simulated.usage == pytest.approx(real.usage, rel=BOUND)
        assert simulated.tokens_per_s == pytest.approx(real.tokens_per_s, rel=BOUND)


def test_the_windows_are_24_minutes_in_all_and_none_is_shorter_than_40_s() -> None:
    assert sum(recording.cuts[-1] for recording in RECORDINGS) > 24 * 60
    assert min(end - begin for r in RECORDINGS for begin, end in pairwise(r.cuts)) >= 40


@pytest.mark.parametrize(
    "recording",
    [recording for recording in RECORDINGS if recording.name != FITTED_ON],
    ids=lambda recording: recording.name,
)
def test_the_step_law_of_one_recording_gives_the_steps_of_every_other(recording: Recording) -> None:
    law = step_law(recording)
    errors = [
        1000.0 * law.decode_s(int(running), round(1000 * ktokens), 1) / step_ms - 1.0
        for running, ktokens, step_ms in plain_steps(lines_of(recording.name, recording.capacity))
    ]
    assert len(errors) > 100
    assert abs(sum(errors) / len(errors)) < 0.05


def test_a_crowded_cpu_server_admits_and_retracts_as_many_at_the_same_steps() -> None:
    """Line by line, by decode steps and not by time: running the same, usage within 0.03.

    The speed of this recording is left out, and so are its minutes. The host was busy: the same
    batch of 4 requests made 235 to 901 tok/s within 8 s, which no law of its size can follow.
    """
    recorded, simulated = lines_of("cpu", CPU.capacity_tokens), lines_on_cpu()
    assert [line.running for line in simulated] == [line.running for line in recorded]
    for ours, real in zip(simulated, recorded, strict=True):
        assert ours.usage == pytest.approx(real.usage, abs=CPU_USAGE)


def lines_on_cpu() -> list[DecodeTick]:
    """30 requests on a pool of 4 at a time; a pause that retracts; three lines after it."""
    pool = Pool(CPU)
    for number, row in enumerate(rows_of("cpu")):
        pool.advance(row.at)
        length = row.new_tokens
        pool.submit(PoolRequest(str(number), row.prompt_tokens, length, length, row.at))
    before = next_lines(pool, LINES_TO_THE_PAUSE)
    pool.retract_all()
    return before + next_lines(pool, 3)


def next_lines(pool: Pool, count: int) -> list[DecodeTick]:
    lines: list[DecodeTick] = []
    now = pool.now
    while len(lines) < count:
        now += 0.1
        lines += [event for event in pool.advance(now) if isinstance(event, DecodeTick)]
    return lines
