"""The named loads of the simulated host, each with its flags, lengths and prompts.

`mission` is the job that kvctl exists for, B1 to B7 at 159 K tokens. The other five each
reproduce one published operating point: the length law is the free parameter, the point the
check. Prompts follow from the scenario's seed, so a run can be written again bit for bit.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvctl.core.sim.answers import LengthLaw, ids_of_text

Flag = str | int | float | bool

BF16_159K: dict[str, Flag] = {"mem-fraction-static": 0.88, "schedule-conservativeness": 0.3}
BF16_116K: dict[str, Flag] = {"mem-fraction-static": 0.85, "schedule-conservativeness": 0.3}
FP8_376K: dict[str, Flag] = {
    "mem-fraction-static": 0.9,
    "kv-cache-dtype": "fp8_e4m3",
    "schedule-conservativeness": 0.3,
}


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition of a simulated dataset."""

    name: str
    prompts: int
    law: LengthLaw
    max_new_tokens: int
    weight: float = 1.0
    prompt_tokens: tuple[int, int] = (100, 400)
    """Shortest and longest prompt, ids."""


@dataclass(frozen=True, slots=True)
class PublishedPoint:
    """What was measured on the real host."""

    running: float
    queued: float
    token_usage: float | None
    """None where only "full" was noted."""
    generation_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, the launch it was seen under and, where there is one, its published point."""

    name: str
    description: str
    partitions: tuple[PartitionPlan, ...]
    flags: Mapping[str, Flag]
    """SGLang flags that make the pool, spelt out over the preset."""
    capacity_tokens: int
    """max_total_num_tokens that these flags give."""
    preset: str = "sim-hicache-bf16"
    """The shipped preset that the flags are added to."""
    slots: int = 150
    published: PublishedPoint | None = None
    window: tuple[float, float] = (1200.0, 6000.0)
    """Simulated seconds after the first request over which the point is measured."""
    seed: int = 1

    @property
    def laws(self) -> dict[str, LengthLaw]:
        """Return the length law of each prompt marker."""
        return {partition.name: partition.law for partition in self.partitions}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a simulated dataset."""

    id: str
    partition: str
    input_ids: list[int] = field(hash=False)


def prompts_of(scenario: Scenario, partition: PartitionPlan) -> Iterator[Prompt]:
    """Yield a partition's prompts; each begins with the marker that names its length law."""
    chance = random.Random(f"{scenario.name}/{partition.name}/{scenario.seed}")
    for number in range(partition.prompts):
        head = ids_of_text(f"[{partition.name}] {number:06d} ")
        length = chance.randint(*partition.prompt_tokens)
        filler = [32 + chance.getrandbits(6) for _ in range(length - len(head))]
        yield Prompt(f"{partition.name}-{number:06d}", partition.name, head + filler)


def _only_b2(prompts: int, law: LengthLaw) -> tuple[PartitionPlan, ...]:
    return (PartitionPlan("B2", prompts, law, max_new_tokens=law.most),)


def _short(name: str, prompts: int, mean: float) -> PartitionPlan:
    return PartitionPlan(name, prompts, LengthLaw(mean, 0.9, 6000), max_new_tokens=4096)


MISSION = Scenario(
    name="mission",
    description="B1 to B7 at 159 K tokens, bf16: B2 at 4.1 K tokens an answer meets the ceiling",
    partitions=(
        PartitionPlan("B1", 60, LengthLaw(900.0, 0.8, 4096), max_new_tokens=4096),
        PartitionPlan(
            "B2", 300, LengthLaw(4400.0, 0.95, 16_384), max_new_tokens=12_288, weight=40.0
        ),
        _short("B3", 90, 1500.0),
        _short("B4", 90, 1450.0),
        _short("B5", 90, 1600.0),
        _short("B6", 80, 1400.0),
        _short("B7", 80, 1550.0),
    ),
    flags=BF16_159K,
    capacity_tokens=159_277,
)

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        MISSION,
        Scenario(
            name="bf16-159k-steady-b2",
            description="published: 34-35 running, 115 queued, 606 tok/s at usage 0.92-0.94",
            partitions=_only_b2(1000, LengthLaw(5300.0, 1.0)),
            flags=BF16_159K,
            capacity_tokens=159_277,
            published=PublishedPoint(34.5, 115.0, 0.93, 606.0),
        ),
        Scenario(
            name="bf16-159k-later",
            description="published: 72 running, 79 queued, 930 tok/s at usage 0.96",
            partitions=_only_b2(2800, LengthLaw(2300.0, 0.9, 8192)),
            flags=BF16_159K,
            capacity_tokens=159_277,
            published=PublishedPoint(72.0, 79.0, 0.96, 930.0),
        ),
        Scenario(
            name="fp8-376k-burst",
            description="published: the first minutes, 150 running, 1444 tok/s, usage still rising",
            partitions=_only_b2(1500, LengthLaw(1700.0, 0.9, 8192)),
            flags=FP8_376K,
            preset="sim-hicache-fp8",
            capacity_tokens=376_029,
            published=PublishedPoint(150.0, 0.0, 0.62, 1444.0),
            window=(240.0, 480.0),
        ),
        Scenario(
            name="fp8-376k-steady",
            description="published: 140 running, 10 queued, 1351 tok/s at usage 0.93",
            partitions=_only_b2(3400, LengthLaw(2700.0, 1.0, 9600)),
            flags=FP8_376K,
            preset="sim-hicache-fp8",
            capacity_tokens=376_029,
            published=PublishedPoint(140.0, 10.0, 0.93, 1351.0),
        ),
        Scenario(
            name="bf16-116k-baseline",
            description="published: 35-50 running, the rest of 150 queued, 600-850 tok/s, full",
            partitions=_only_b2(1900, LengthLaw(2700.0, 1.0, 10_000)),
            flags=BF16_116K,
            preset="sim-baseline",
            capacity_tokens=116_000,
            published=PublishedPoint(42.5, 107.5, None, 725.0),
        ),
    )
}
