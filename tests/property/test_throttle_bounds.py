"""The queue-hold law under any samples: bounded, never stuck, the same for the same input."""

from hypothesis import given
from hypothesis import strategies as st

from kvctl.core.domain.throttle.parameters import ServerSample, ThrottleParameters
from kvctl.core.domain.throttle.queue_hold import QueueHold

samples = st.lists(
    st.tuples(
        st.floats(0.01, 80.0),
        st.integers(0, 600),
        st.integers(0, 600),
        st.floats(0.0, 1.0),
        st.integers(0, 5),
        st.integers(0, 600),
    ),
    max_size=60,
)
Fed = list[tuple[float, int, int, float, int, int]]


def feed(law: QueueHold, fed: Fed) -> list[int]:
    at, retracted, allowed = 0.0, 0, []
    for step, running, queued, usage, more, in_flight in fed:
        at, retracted = at + step, retracted + more
        sample = ServerSample(at, running, queued, usage, retracted, 100_000, "one")
        allowed.append(law.observe(sample, in_flight))
    return allowed


@given(samples)
def test_the_target_stays_between_least_and_most(fed: Fed) -> None:
    law = QueueHold(ThrottleParameters(least=4, most=300))
    for allowed in feed(law, fed):
        assert allowed == 0 or 4 <= allowed <= 300


@given(samples, st.integers(1, 500))
def test_manual_is_the_operators_number_whatever_the_samples(fed: Fed, number: int) -> None:
    law = QueueHold(manual=number)
    assert set(feed(law, fed)) <= {number}


@given(samples)
def test_the_same_samples_give_the_same_targets(fed: Fed) -> None:
    assert feed(QueueHold(), fed) == feed(QueueHold(), fed)


@given(samples)
def test_after_any_history_a_starving_server_is_fed_within_minutes(fed: Fed) -> None:
    law = QueueHold()
    feed(law, fed)
    at = sum(step for step, *_ in fed)
    target = law.decide(at).target
    for _ in range(400):
        at += 1.0
        running = law.decide(at).allowed
        target = law.observe(ServerSample(at, running, 0, 0.1, 0, 100_000, "one"), running)
    assert target > 200
