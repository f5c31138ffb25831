"""The simulated scheduler keeps its books and does what SGLang does at the ceiling."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.core.sim.model import (
    DecodeTick,
    Finished,
    PoolLimits,
    PoolRequest,
    PrefillBatch,
    QueueFullError,
    Retracted,
    StepLaw,
)
from kvctl.core.sim.pool import Pool


def request(rid: str, prompt: int = 100, length: int = 500, most: int = 4096) -> PoolRequest:
    return PoolRequest(rid, prompt, most, length, arrived_at=0.0)


def crowded(capacity: int = 20_000, count: int = 40, seed: int = 7) -> Pool:
    chance = random.Random(seed)
    pool = Pool(PoolLimits(capacity, conservativeness=0.3))
    for number in range(count):
        length = chance.randint(500, 4000)
        pool.submit(request(f"r{number:03d}", chance.randint(50, 300), length))
    return pool


def finished(pool: Pool, until: float) -> dict[str, Finished]:
    ended = [event for event in pool.advance(until) if isinstance(event, Finished)]
    assert len({event.request.rid for event in ended}) == len(ended)
    return {event.request.rid: event for event in ended}


@pytest.mark.parametrize("seed", range(5))
def test_used_tokens_are_those_of_the_running_requests_at_every_moment(seed: int) -> None:
    pool = crowded(seed=seed)
    for second in range(1, 400):
        pool.advance(float(second))
        held = sum(r.prompt_tokens + pool.output_tokens(r) for r in pool.running.values())
        assert pool.used_tokens == held
        assert held <= pool.limits.capacity_tokens
        assert not {r.rid for r in pool.queue} & set(pool.running)


def test_every_request_ends_once_with_its_own_length_although_many_were_retracted() -> None:
    pool = crowded(count=120)
    wanted = {r.rid: r.length for r in pool.queue}
    ended = finished(pool, 1e6)
    assert pool.totals.retracted_requests >= 5
    assert {rid: e.request.settled_tokens for rid, e in ended.items()} == wanted
    assert pool.used_tokens == 0
    assert not pool.queue


def test_a_retraction_keeps_what_was_generated_and_takes_the_fewest_tokens_first() -> None:
    pool = Pool(PoolLimits(4_000, conservativeness=0.01))
    for number in range(3):
        pool.submit(request(f"r{number}", 100 + number, 3_000, most=3_000))
        pool.advance(pool.now + 2.0)
    before = {rid: pool.output_tokens(r) for rid, r in pool.running.items()}
    assert len(before) == 3
    shortest = min(before, key=before.__getitem__)
    retracted: list[Retracted] = []
    while not retracted:
        events = pool.advance(pool.now + 3.0)
        retracted = [event for event in events if isinstance(event, Retracted)]
    first = pool.queue[0]
    assert first.rid == shortest
    assert first.settled_tokens > before[shortest]
    assert first.retractions == 1
    assert retracted[0].tokens_gained == first.prompt_tokens + first.settled_tokens
    assert retracted[0].ratio_after > retracted[0].ratio_before


def test_a_retracted_request_goes_behind_those_that_wait() -> None:
    pool = crowded(count=60)
    while not pool.totals.retracted_requests:
        pool.advance(pool.now + 3.0)
    assert pool.queue[-1].retractions == 1
    assert pool.queue[0].retractions == 0


def test_admission_charges_prompt_and_at_most_4096_new_tokens() -> None:
    pool = Pool(PoolLimits(10_000))
    for number in range(3):
        pool.submit(request(f"r{number}", 100, 9_000, most=9_000))
    first = next(event for event in pool.advance(1.0) if isinstance(event, PrefillBatch))
    assert first.new_seqs == 2  # 2 x 4196 fit in 10,000, 3 do not
    assert first.queued == 1


def test_after_a_refusal_nobody_is_admitted_until_a_request_ends() -> None:
    pool = Pool(PoolLimits(5_000))
    pool.submit(request("long", 100, 400))
    pool.submit(request("big", 2_000, 400, most=2_500))
    pool.advance(1.0)
    assert pool.batch_full
    pool.submit(request("small", 10, 10, most=10))
    pool.advance(2.0)
    assert [r.rid for r in pool.running.values()] == ["long"]
    finished(pool, 60.0)
    assert pool.totals.finished_requests == 3


def test_the_live_cap_stops_admission_and_takes_nothing_away() -> None:
    pool = Pool(PoolLimits(100_000))
    for number in range(20):
        pool.submit(request(f"r{number}", 10, 100 + 40 * number))
    pool.advance(2.0)
    assert len(pool.running) == 20
    pool.live_cap = 8
    for number in range(20, 30):
        pool.submit(request(f"r{number}", 10, 100))
    fallen: list[int] = []
    while len(pool.running) > 8:
        pool.advance(pool.now + 3.0)
        fallen.append(len(pool.running))
    assert fallen == sorted(fallen, reverse=True)
    assert len(pool.queue) == 10


def test_a_full_queue_turns_a_request_away() -> None:
    pool = Pool(PoolLimits(3_000, max_queued=2))
    for number in range(2):
        pool.submit(request(f"r{number}", 100, 500))
    with pytest.raises(QueueFullError):
        pool.submit(request("r2", 100, 500))


def test_the_ratio_falls_to_a_seventh_in_600_steps_and_starts_again_when_idle() -> None:
    pool = Pool(PoolLimits(50_000))
    pool.submit(request("one", 10, 2_000))
    assert pool.new_token_ratio == pytest.approx(0.7)
    while pool.step < 600:
        pool.advance(pool.now + 0.3)
    assert pool.new_token_ratio == pytest.approx(0.098)
    pool.advance(pool.now + 600.0)
    assert pool.new_token_ratio == pytest.approx(0.7)


def test_a_pause_stops_tokens_and_retract_all_gives_every_token_back() -> None:
    pool = crowded(capacity=200_000, count=10)
    pool.advance(5.0)
    tokens = {rid: pool.output_tokens(r) for rid, r in pool.running.items()}
    assert len(tokens) == 10
    pool.paused = True
    assert not pool.retract_all()
    pool.advance(100.0)
    assert pool.used_tokens == 0
    assert {r.rid: r.settled_tokens for r in pool.queue} == tokens
    pool.paused = False
    assert len(finished(pool, 1e5)) == 10


def test_an_aborted_request_says_how_far_it_came() -> None:
    pool = crowded(capacity=200_000, count=3)
    pool.advance(10.0)
    taken = pool.abort("r001")
    assert taken is not None
    assert taken.settled_tokens > 100
    assert pool.abort("r001") is None
    assert set(finished(pool, 1e5)) == {"r000", "r002"}


def test_a_tick_comes_every_40_steps_and_counts_the_tokens_since_the_last() -> None:
    pool = Pool(PoolLimits(100_000))
    for number in range(10):
        pool.submit(request(f"r{number}", 10, 1_000))
    ticks = [event for event in pool.advance(30.0) if isinstance(event, DecodeTick)]
    assert len(ticks) == pool.step // 40
    step_s = (ticks[3].at - ticks[2].at) / 40
    assert ticks[3].tokens_per_s == pytest.approx(10 / step_s)


def test_the_same_requests_give_the_same_events_however_time_is_cut() -> None:
    whole = crowded().advance(900.0)
    pool = crowded()
    parts = [event for second in range(900) for event in pool.advance(second + 1.0)]
    assert [type(event) for event in parts] == [type(event) for event in whole]
    assert [event.at for event in parts] == pytest.approx([event.at for event in whole])


@given(
    requests=st.integers(1, 300),
    tokens=st.integers(0, 400_000),
    seconds=st.floats(0.0, 5_000.0),
)
@settings(max_examples=200, deadline=None)
def test_steps_within_is_the_most_that_fit(requests: int, tokens: int, seconds: float) -> None:
    law = StepLaw()
    steps = law.steps_within(requests, tokens, seconds)
    assert law.decode_s(requests, tokens, steps) <= seconds or steps == 0
    assert law.decode_s(requests, tokens, steps + 1) > seconds


def test_an_hour_of_150_slots_is_simulated_in_few_turns() -> None:
    pool = Pool(PoolLimits(159_277, conservativeness=0.3))
    for number in range(150):
        pool.submit(request(f"r{number}", 250, 1_500))
    turns = 0
    while pool.now < 3_600.0:
        for event in pool.advance(pool.now + 3.0):
            turns += 1
            if isinstance(event, Finished):
                pool.submit(request(f"{event.request.rid}'", 250, 1_500))
    # Work is counted, not timed: many steps are taken at once.
    assert turns < pool.totals.decode_steps / 4
