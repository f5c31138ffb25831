"""The queue-hold law against the simulated pool: as good as the best fixed number, unasked.

Three of the nine (capacity, lengths) cases that the law was chosen by; half an hour each.
"""

import math
import random
from dataclasses import dataclass, field

import pytest

from kvctl.core.domain.ceiling import fit, held_tokens
from kvctl.core.domain.throttle import QueueHold, ServerSample
from kvctl.core.sim.model import Finished, PoolLimits, PoolRequest
from kvctl.core.sim.pool import Pool

PROMPT = 200
WARM_S, END_S = 600, 2400


@dataclass(frozen=True)
class Lengths:
    """Log-normal answer lengths."""

    mean: float
    cv: float
    limit: int

    def draw(self, source: random.Random) -> int:
        variance = math.log(1 + self.cv**2)
        drawn = source.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return max(1, int(drawn))


LONG, CAP, SHORT = Lengths(4600, 1.0, 16384), Lengths(4000, 0.2, 4096), Lengths(1500, 0.9, 4096)


@dataclass
class Client:
    """A client that keeps `allowed` requests in flight at a simulated pool."""

    capacity: int
    lengths: Lengths
    law: QueueHold | None = None
    allowed: int = 0
    in_flight: int = 0
    sent: int = 0
    totals: list[int] = field(default_factory=lambda: [0, 0, 0])
    queued: list[int] = field(default_factory=list)
    starved: list[bool] = field(default_factory=list)
    """Every second: nothing waits although a fifth of the pool is free."""

    def run(self) -> float:
        """Return generated tokens per second after the warm-up."""
        source = random.Random(1)
        pool = Pool(PoolLimits(self.capacity))
        before = 0
        for second in range(1, END_S + 1):
            if self.law is not None:
                self.allowed = self.law.decide(float(second)).allowed
            while self.in_flight < self.allowed:
                self._send(pool, source, float(second))
            for event in pool.advance(float(second)):
                if isinstance(event, Finished):
                    self._count(event.request.length)
            if self.law is not None:
                self._observe(self.law, pool, float(second))
            self.queued.append(len(pool.queue))
            self.starved.append(not pool.queue and pool.usage < 0.8)
            if second == WARM_S:
                before = pool.totals.decode_tokens
        return (pool.totals.decode_tokens - before) / (END_S - WARM_S)

    def _send(self, pool: Pool, source: random.Random, at: float) -> None:
        self.sent += 1
        self.in_flight += 1
        limit = self.lengths.limit
        pool.submit(PoolRequest(str(self.sent), PROMPT, limit, self.lengths.draw(source), at))

    def _count(self, length: int) -> None:
        self.in_flight -= 1
        self.totals = [self.totals[0] + 1, self.totals[1] + length, self.totals[2] + length**2]

    def _observe(self, law: QueueHold, pool: Pool, at: float) -> None:
        count, total, squares = self.totals
        if count >= 12:
            law.set_fit(fit(self.capacity, held_tokens(PROMPT, total, squares), 0.93))
        sample = ServerSample(
            at,
            len(pool.running),
            len(pool.queue),
            min(1.0, pool.usage),
            pool.totals.retracted_requests,
            self.capacity,
        )
        law.observe(sample, self.in_flight)


@pytest.mark.parametrize(
    ("capacity", "lengths", "best_fixed"),
    [(116_000, LONG, 64), (159_277, CAP, 100), (376_029, SHORT, 250)],
    ids=["116K long", "159K at the limit", "376K short"],
)
def test_auto_is_as_good_as_the_best_fixed_number_with_a_short_queue(
    capacity: int, lengths: Lengths, best_fixed: int
) -> None:
    auto = Client(capacity, lengths, law=QueueHold())
    fixed = Client(capacity, lengths, allowed=best_fixed)
    assert auto.run() >= 0.97 * fixed.run()
    after = auto.queued[WARM_S:]
    assert sum(after) / len(after) < 45


def test_a_fixed_150_starves_where_auto_does_not() -> None:
    auto = Client(376_029, SHORT, law=QueueHold())
    fixed = Client(376_029, SHORT, allowed=150)
    assert fixed.run() < 0.9 * auto.run()
    assert sum(fixed.starved[WARM_S:]) > 600
    assert sum(auto.starved[WARM_S:]) < 60
