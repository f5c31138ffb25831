"""How true the expected end of a run is: 20 simulated runs with spread lengths.

    python -m tests.benchmarks.eta [--runs 20] [--seed 1]

Every 30 simulated seconds of a run its estimate is noted; when it has ended, how often the truth
lay inside the shown interval, and how far off the middle was. Writes results/eta.md.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.simulated_run import RunPlan, drive, plans

from kvctl.core.domain.runs.run import Run

LOOK_EVERY_S = 30.0
RESULT = Path(__file__).parent / "results" / "eta.md"


@dataclass(frozen=True, slots=True)
class Judged:
    """One run, and how its estimates did."""

    plan: RunPlan
    took_s: float
    known_from: float
    """Share of the run's time after which an end was shown; 1.0: never."""
    inside: float
    """Share of the looks after the first tenth at which the truth lay in the interval."""
    unknown: int
    """Looks after the first tenth at which nothing was shown."""
    half_way: float
    """Relative error at half of the time."""
    width: float
    """Median width of the interval over what was left, after the first tenth."""


def judge(plan: RunPlan, views: Sequence[Run], took_s: float) -> Judged:
    """Compare what a run showed with what became true."""
    looks = [((n + 1) * LOOK_EVERY_S, view) for n, view in enumerate(views)]
    known = [at / took_s for at, view in looks if view.remaining_s is not None]
    late = [(took_s - at, view) for at, view in looks if at > 0.1 * took_s]
    shown = [(left, view) for left, view in late if view.remaining_s is not None]
    inside = [_is_inside(left, view) for left, view in shown]
    half_left, half = min(late, key=lambda look: abs(look[0] - took_s / 2))
    widths = [_width(view) / left for left, view in shown if left > 0]
    return Judged(
        plan,
        took_s,
        min(known, default=1.0),
        sum(inside) / max(1, len(inside)),
        len(late) - len(shown),
        abs((half.remaining_s or 0.0) - half_left) / half_left,
        statistics.median(widths) if widths else 0.0,
    )


def _is_inside(left: float, view: Run) -> bool:
    low, high = view.remaining_low_s, view.remaining_high_s
    return low is not None and high is not None and low <= left <= high


def _width(view: Run) -> float:
    return (view.remaining_high_s or 0.0) - (view.remaining_low_s or 0.0)


async def measure(count: int, seed: int) -> list[Judged]:
    """Carry out the runs one after the other."""
    judged = []
    for plan in plans(count, seed):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            views, took = await drive(Path(folder), plan, LOOK_EVERY_S)
            judged.append(judge(plan, views, took))
            print(f"{line(judged[-1], len(judged))}   {time.monotonic() - began:.1f} s", flush=True)
    return judged


def line(one: Judged, number: int) -> str:
    """Return one row of the table."""
    plan = one.plan
    rows = sum(law.rows for law in plan.partitions)
    slots = "AUTO" if plan.slots is None else plan.slots
    return (
        f"| {number} | {len(plan.partitions)} | {rows:,} | {plan.capacity_tokens:,} | {slots} "
        f"| {plan.order} | {one.took_s / 60:.0f} min | {one.known_from:.0%} | {one.inside:.0%} "
        f"| {one.unknown} | {one.half_way:.1%} | {one.width:.0%} |"
    )


HEAD = """# When the run is done: estimate against truth

`python -m tests.benchmarks.eta --runs {runs} --seed {seed}`: the real driver and journal over
the simulated pool, one to seven partitions of lognormal lengths (mean 500 to 5,000 tokens, cv 0.4
to 1.2, cut at 4,096 to 12,288), a look every 30 simulated seconds.

After the first tenth of the time the truth lay inside the shown interval in {inside:.1%} of
{looks:,} looks (wanted: 80 %), and in {each:.1%} as the mean of the runs, short ones counting as
much as long ones; at half-way the middle was off by {half:.1%} in the median (wanted:
below 10 %), {worst:.1%} at the worst. "width" is the interval over what was left, median.

| run | parts | rows | pool | slots | order | took | shown from | inside | not shown | off | width |
| ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write results/eta.md")
    given = parser.parse_args()
    judged = asyncio.run(measure(given.runs, given.seed))
    each = statistics.mean(one.inside for one in judged)
    looks = [0.9 * one.took_s / LOOK_EVERY_S - one.unknown for one in judged]
    weighted = sum(one.inside * n for one, n in zip(judged, looks, strict=True)) / sum(looks)
    off = [one.half_way for one in judged]
    head = HEAD.format(
        runs=given.runs,
        seed=given.seed,
        inside=weighted,
        each=each,
        looks=round(sum(looks)),
        half=statistics.median(off),
        worst=max(off),
    )
    text = head + "".join(f"{line(one, n)}\n" for n, one in enumerate(judged, 1))
    print(text)
    if given.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
