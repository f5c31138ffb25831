"""A client that a throttle law, or a fixed number, lets send to the simulated pool.

Everything is exact and repeatable: the same seed gives every law the same rows in the same order.
"""

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from kvctl.core.domain.capacity.fit import fit, held_tokens
from kvctl.core.domain.throttle.parameters import ServerSample
from kvctl.core.domain.throttle.queue_hold import QueueHold
from kvctl.core.sim.model import Finished, PoolLimits, PoolRequest, StepLaw
from kvctl.core.sim.pool import Pool

FIT_USAGE = 0.93
STEP_S = 0.2
"""How often the client looks for ended requests."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal answer lengths, tokens."""

    mean: float
    cv: float
    most: int
    limit: int | None = None
    """max_new_tokens; None is the exact length of each row."""
    prompts: tuple[int, int] = (200, 200)

    def draw(self, source: random.Random) -> tuple[int, int]:
        """Return prompt and answer tokens of one row."""
        variance = math.log(1 + self.cv**2)
        drawn = source.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return source.randint(*self.prompts), min(self.most, max(16, int(drawn)))


LONG = Lengths(4600, 1.0, 16_384, 16_384)
CAP = Lengths(4000, 0.2, 4096, 4096)
SHORT = Lengths(1500, 0.9, 4096, 4096)
"""The three loads that the law was chosen by."""
H200 = StepLaw(5.11, 0.01206, 1.0, 0.0279, 38_000.0)
"""Fitted to 5,390 decode lines of one H200 with an 8B shape in bf16, mean error 1 %."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A server, its load and how well it is seen."""

    capacity: int
    loads: tuple[Lengths, ...]
    """Partitions of equal weight."""
    steps: StepLaw = field(default_factory=StepLaw)
    every_s: float = 1.0
    late_s: float = 0.3
    """Between the taking of a sample and its arrival."""
    later: tuple[Lengths, ...] = ()
    switch_s: float = math.inf
    """From then on only rows of `later` are sent."""


@dataclass(frozen=True, slots=True)
class Second:
    """The server once a second."""

    at: float
    allowed: int
    running: int
    queued: int
    usage: float
    decoded: int
    """Tokens since the start; so are the next two."""
    ended: int
    retracted: int

    @property
    def is_starved(self) -> bool:
        """Whether nothing waits although more than a quarter of the pool is free."""
        return self.queued == 0 and self.usage < 0.72


@dataclass(slots=True)
class ThrottledClient:
    """Keeps as many requests in flight as it is allowed to."""

    setting: Setting
    law: QueueHold | None = None
    fixed: int = 0
    seed: int = 1
    course: list[Second] = field(default_factory=list)
    _pool: Pool = field(init=False)
    _flights: dict[str, int] = field(default_factory=dict)
    """Request id -> partition."""
    _sums: list[list[float]] = field(default_factory=list)
    """By partition: answers, their tokens, the squares, prompt tokens."""
    _ended: int = 0
    _decoded: int = 0
    _recomputed: int = 0
    _late: deque[tuple[float, ServerSample]] = field(default_factory=deque)

    def run(self, until_s: float) -> list[Second]:
        """Return the course from an empty server on."""
        setting = self.setting
        self._pool = Pool(PoolLimits(setting.capacity), law=setting.steps)
        self._sums = [[0.0] * 4 for _ in setting.loads + setting.later]
        rows, numbers = self._rows(), count()
        taken_at = -math.inf
        for step in range(round(until_s / STEP_S) + 1):
            now = round(step * STEP_S, 6)
            self._collect(now)
            if self.law is not None and now - taken_at >= setting.every_s - 1e-6:
                self._late.append((now + setting.late_s, self._sample(now)))
                taken_at = now
            if self.law is not None and now == setting.switch_s:
                self.law.meet_other_load()
            self._observe(now)
            if now == int(now):
                self.course.append(self._second(now))
            while len(self._flights) < self.allowed(now):
                self._send(str(next(numbers)), *rows(now), now)
        return self.course

    def allowed(self, now: float) -> int:
        """Return how many may be in flight."""
        return self.fixed if self.law is None else self.law.decide(now).allowed

    def _rows(self) -> "_Rows":
        return _Rows(self.setting, random.Random(self.seed))

    def _send(self, rid: str, part: int, prompt: int, length: int, now: float) -> None:
        setting = self.setting
        limit = (setting.loads + setting.later)[part].limit or length
        self._flights[rid] = part
        self._pool.submit(PoolRequest(rid, prompt, limit, length, now))

    def _collect(self, now: float) -> None:
        for event in self._pool.advance(now):
            if isinstance(event, Finished):
                request = event.request
                sums = self._sums[self._flights.pop(request.rid)]
                tokens = request.settled_tokens
                for at, more in enumerate((1, tokens, tokens**2, request.prompt_tokens)):
                    sums[at] += more
                self._ended += tokens

    def _sample(self, now: float) -> ServerSample:
        pool = self._pool
        totals = pool.totals
        decoded, self._decoded = self._decoded, totals.decode_tokens
        again = totals.retracted_input_tokens + totals.retracted_output_tokens
        recomputed, self._recomputed = self._recomputed, again
        return ServerSample(
            now,
            len(pool.running),
            len(pool.queue),
            min(1.0, pool.usage),
            pool.totals.retracted_requests,
            self.setting.capacity,
            generated_per_s=(self._decoded - decoded) / self.setting.every_s,
            ended_total=totals.finished_requests,
            recompute_ratio=(again - recomputed)
            / self.setting.steps.prefill_tokens_per_s
            / self.setting.every_s,
        )

    def _observe(self, now: float) -> None:
        while self.law is not None and self._late and self._late[0][0] <= now:
            if (known := self._fit()) is not None:
                self.law.set_fit(known)
            self.law.observe(self._late.popleft()[1], len(self._flights), now)

    def _fit(self) -> float | None:
        """Return C u / k from the answers so far, as a run's steering does; None too early."""
        if sum(sums[0] for sums in self._sums) < len(self._flights):
            return None
        weights = list(self._flights.values())
        held = [(self._held(part), weights.count(part)) for part in set(weights)]
        known = [(k, weight) for k, weight in held if k is not None]
        total = sum(weight for _, weight in known)
        mean = sum(k * weight for k, weight in known) / total if total else None
        return fit(self.setting.capacity, mean, FIT_USAGE)

    def _held(self, part: int) -> float | None:
        answers, tokens, squares, prompts = self._sums[part]
        return held_tokens(prompts / answers, tokens, squares) if answers else None

    def _second(self, now: float) -> Second:
        pool, totals = self._pool, self._pool.totals
        allowed = self.fixed if self.law is None else self.law.decide(now).target
        return Second(
            at=now,
            allowed=allowed,
            running=len(pool.running),
            queued=len(pool.queue),
            usage=pool.usage,
            decoded=totals.decode_tokens,
            ended=self._ended,
            retracted=totals.retracted_requests,
        )


@dataclass(slots=True)
class _Rows:
    """Rows of the partitions in turn."""

    setting: Setting
    source: random.Random
    _turn: Iterator[int] = field(default_factory=count)

    def __call__(self, now: float) -> tuple[int, int, int]:
        """Return partition, prompt and answer tokens of the next row."""
        setting = self.setting
        is_later = now >= setting.switch_s
        loads = setting.later if is_later else setting.loads
        number = next(self._turn) % len(loads)
        part = number + (len(setting.loads) if is_later else 0)
        return part, *loads[number].draw(self.source)


def pace(course: Sequence[Second], begin: float, end: float) -> float:
    """Return the tokens a second generated in a window."""
    window = [second for second in course if begin <= second.at <= end]
    return (window[-1].decoded - window[0].decoded) / (window[-1].at - window[0].at)
