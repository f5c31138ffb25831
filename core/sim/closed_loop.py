"""An ideal client against the pool in one process: no HTTP, no waiting, exact figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvctl.core.sim.answers import answer_to
from kvctl.core.sim.model import Finished, PoolLimits, PoolRequest
from kvctl.core.sim.pool import Pool
from kvctl.core.sim.scenarios import PartitionPlan, Prompt, Scenario, prompts_of


@dataclass(frozen=True, slots=True)
class ClosedLoopResult:
    """Means over a window of simulated seconds."""

    window_s: float
    running: float
    queued: float
    token_usage: float
    peak_usage: float
    generation_tokens_per_s: float
    effective_tokens_per_s: float
    """Tokens of the requests that finished, over the window."""
    finished: int
    retracted: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool at one moment, with counters since the start."""

    at: float
    running: int
    queued: int
    usage: float
    decode_tokens: int
    finished: int
    finished_tokens: int
    retracted: int
    unsent: dict[str, int]
    """Prompts not sent yet, by partition."""


def in_weighted_order(scenario: Scenario) -> Iterator[tuple[PartitionPlan, Prompt]]:
    """Yield all prompts, partitions in weighted round robin over those that have some left."""
    plans = {plan.name: (plan, prompts_of(scenario, plan)) for plan in scenario.partitions}
    credit = dict.fromkeys(plans, 0.0)
    while plans:
        for name, (plan, _) in plans.items():
            credit[name] += plan.weight
        name = max(plans, key=credit.__getitem__)
        plan, prompts = plans[name]
        credit[name] -= sum(other.weight for other, _ in plans.values())
        prompt = next(prompts, None)
        if prompt is None:
            del plans[name], credit[name]
        else:
            yield plan, prompt


def run_closed_loop(scenario: Scenario, until_s: float | None = None) -> list[Sample]:
    """Keep `slots` requests in flight until the prompts, or the time, end; one sample a second."""
    pool = Pool(PoolLimits(scenario.capacity_tokens, conservativeness=_conservativeness(scenario)))
    laws = scenario.laws
    source = in_weighted_order(scenario)
    unsent = {plan.name: plan.prompts for plan in scenario.partitions}

    def send(at: float) -> None:
        plan, prompt = next(source, (None, None))
        if plan is None or prompt is None:
            return
        unsent[plan.name] -= 1
        stop_after = answer_to(prompt.input_ids, laws).left_tokens
        length = len(prompt.input_ids)
        pool.submit(PoolRequest(prompt.id, length, plan.max_new_tokens, stop_after, at))

    for _ in range(scenario.slots):
        send(0.0)
    samples: list[Sample] = []
    now = 0.0
    while (pool.running or pool.queue) and (until_s is None or now < until_s):
        now += 1.0
        for event in pool.advance(now):
            if isinstance(event, Finished):
                send(event.at)
        samples.append(_sample(pool, now, dict(unsent)))
    return samples


def measure(samples: Sequence[Sample], start_s: float, end_s: float) -> ClosedLoopResult:
    """Return the means over samples taken in that window."""
    window = [sample for sample in samples if start_s <= sample.at <= end_s]
    first, last = window[0], window[-1]
    seconds = last.at - first.at
    count = len(window)
    return ClosedLoopResult(
        window_s=seconds,
        running=sum(sample.running for sample in window) / count,
        queued=sum(sample.queued for sample in window) / count,
        token_usage=sum(sample.usage for sample in window) / count,
        peak_usage=max(sample.usage for sample in window),
        generation_tokens_per_s=(last.decode_tokens - first.decode_tokens) / seconds,
        effective_tokens_per_s=(last.finished_tokens - first.finished_tokens) / seconds,
        finished=last.finished - first.finished,
        retracted=last.retracted - first.retracted,
    )


def _conservativeness(scenario: Scenario) -> float:
    return float(scenario.flags.get("schedule-conservativeness", 1.0))


def _sample(pool: Pool, at: float, unsent: dict[str, int]) -> Sample:
    return Sample(
        at=at,
        running=len(pool.running),
        queued=len(pool.queue),
        usage=pool.usage,
        decode_tokens=pool.totals.decode_tokens,
        finished=pool.totals.finished_requests,
        finished_tokens=pool.totals.finished_output_tokens,
        retracted=pool.totals.retracted_requests,
        unsent=unsent,
    )
