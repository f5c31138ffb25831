"""A whole run in one process: the real driver and journal, the simulated pool, a manual clock.

Hours of a run take seconds. Nothing is faked but time and the network: requests go to the
simulated scheduler's pool directly, and its figures come back once a second as from a server.
"""

import asyncio
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kvctl.core.clock import ManualClock
from kvctl.core.controller.runs.steering import FIT_USAGE
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.throttle.parameters import ServerSample
from kvctl.core.domain.throttle.queue_hold import QueueHold
from kvctl.core.ports import GenerateReply, GenerateRequest
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.sim.model import Finished, PoolLimits, PoolRequest
from kvctl.core.sim.pool import Pool

T = TypeVar("T")
PROMPT_TOKENS = 200


async def inline(work: Callable[[], T], /) -> T:
    """Blocking work at once: the manual clock decides the order of everything."""
    return work()


@dataclass(frozen=True, slots=True)
class PartitionLaw:
    """Lognormal answer lengths of one partition."""

    rows: int
    mean: float
    cv: float
    limit: int

    def draw(self, source: random.Random) -> int:
        """Return the length of one answer before the limit cuts it, tokens."""
        spread = math.log1p(self.cv**2)
        return max(2, round(source.lognormvariate(math.log(self.mean) - spread / 2, spread**0.5)))


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One simulated run."""

    partitions: tuple[PartitionLaw, ...]
    capacity_tokens: int
    slots: int | None
    """None: AUTO."""
    order: str
    seed: int


@dataclass(slots=True)
class PoolServer:
    """A server that is the pool itself; implements `kvctl.core.ports.Generator`."""

    pool: Pool
    clock: ManualClock
    lengths: dict[int, int]
    """Answer length by the first id of the prompt."""
    url: str = "http://pool:1"
    _waiting: "dict[str, asyncio.Future[str]]" = field(default_factory=dict)

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        """Let the pool make an answer of the row's length."""
        ids = list(request.input_ids or ())
        limit = int(str(request.sampling["max_new_tokens"]))
        one = PoolRequest(
            request.rid, len(ids), limit, self.lengths[ids[0]], self.clock.monotonic()
        )
        self.pool.submit(one)
        done = self._waiting[request.rid] = asyncio.get_running_loop().create_future()
        reason = await done
        output = tuple([7] * one.settled_tokens)
        meta = {"prompt_tokens": len(ids)}
        return GenerateReply(200, None, output, {"type": reason}, meta, None)

    def pump(self) -> None:
        """Bring the pool to the present and end what has finished."""
        for event in self.pool.advance(self.clock.monotonic()):
            if isinstance(event, Finished):
                self._waiting.pop(event.request.rid).set_result(event.reason)

    async def abort(self, rid: str) -> None:
        """Nothing is aborted here."""

    async def is_alive(self) -> bool:
        """It always is."""
        return True

    async def close(self) -> None:
        """Nothing is open."""


def write_run(folder: Path, plan: RunPlan) -> tuple[Path, dict[int, int]]:
    """Write inputs and run file; return the file and each answer's length by first prompt id."""
    source, lengths = random.Random(plan.seed), {}
    slots = '"auto"' if plan.slots is None else plan.slots
    text = f'[run]\nname = "eta"\noutput = "out"\nconcurrency = {slots}\norder = "{plan.order}"\n'
    text += 'on_ceiling = "notify"\nscout = 12\n'
    for number, law in enumerate(plan.partitions, 1):
        with (folder / f"B{number}.jsonl").open("w") as lines:
            for row in range(law.rows):
                first = number * 100_000 + row
                lengths[first] = law.draw(source)
                ids = [first, *[5] * (PROMPT_TOKENS - 1)]
                print(json.dumps({"id": f"r{row}", "input_ids": ids}), file=lines)
        text += f'[[partition]]\nname = "B{number}"\ninput = "B{number}.jsonl"\n'
        text += f"sampling = {{ max_new_tokens = {law.limit} }}\n"
    path = folder / "run.toml"
    path.write_text(text)
    return path, lengths


async def drive(folder: Path, plan: RunPlan, look_every_s: float) -> tuple[list[Run], float]:
    """Carry a run to its end; return what it showed and how many seconds it took.

    The times of the views are their `state_since` plus nothing: `seen_at` of each is its index
    times `look_every_s`.
    """
    path, lengths = write_run(folder, plan)
    clock = ManualClock()
    pool = Pool(PoolLimits(plan.capacity_tokens), now=clock.monotonic())
    server = PoolServer(pool, clock, lengths)
    driver = RunDriver(load_run(path), clock, [lambda: server], offload=inline)
    await driver.open()
    law, began, views = QueueHold(manual=plan.slots), clock.monotonic(), list[Run]()
    driver.start()
    while not driver.gate.is_finished:
        await clock.advance(1.0)
        server.pump()
        _observe(driver, pool, law, clock.monotonic(), plan.capacity_tokens)
        if (clock.monotonic() - began) % look_every_s == 0:
            view = driver.view(clock.monotonic())
            views.append(view)
            if view.fit_at_mean is not None:
                law.set_fit(FIT_USAGE * view.fit_at_mean)
    took = clock.monotonic() - began
    closing = asyncio.ensure_future(driver.close())
    while not closing.done():
        await clock.advance(0.1)
    await closing
    return views, took


def _observe(driver: RunDriver, pool: Pool, law: QueueHold, now: float, capacity: int) -> None:
    """Tell law and driver what a server's answer would tell, as the controller does."""
    driver.held = (float(pool.used_tokens), float(len(pool.running)))
    driver.pool_tokens = capacity
    driver.generation_tokens_per_s = pool.gen_tokens_per_s or None
    sample = ServerSample(
        now,
        len(pool.running),
        len(pool.queue),
        min(1.0, pool.usage),
        pool.totals.retracted_requests,
        capacity,
    )
    law.observe(sample, driver.in_flight())
    decision = law.decide(now)
    driver.set_target(decision.target, is_held=decision.is_held, note=decision.reason)


def plans(count: int, seed: int) -> Iterator[RunPlan]:
    """Yield runs of one to seven partitions with spread lengths, pools and slots."""
    draw = random.Random(seed)
    for number in range(count):
        capacity = draw.choice((60_000, 116_000, 159_277, 376_029))
        laws = tuple(
            PartitionLaw(
                rows=draw.randrange(200, 700),
                mean=math.exp(draw.uniform(math.log(500), math.log(5000))),
                cv=draw.uniform(0.4, 1.2),
                limit=draw.choice((4096, 8192, 12_288)),
            )
            for _ in range(draw.choice((1, 2, 3, 7)))
        )
        slots = draw.choice((None, None, 48, 150))
        order = draw.choice(("longest", "longest", "weights", "file"))
        yield RunPlan(laws, capacity, slots, order, seed * 1000 + number)
