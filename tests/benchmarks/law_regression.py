"""The throttle law in simulation, held to its bounds: `python -m tests.benchmarks.law_regression`.

Nine (capacity, lengths) cases against fixed numbers, telemetry 5 s late, another partition, slow
prefill with the retraction probe, and the cold start of one H200. Prints the tables of
results/law.md; exit status 1 if a bound is missed. `--seeds 1` for a short look. Deterministic: it
counts simulated tokens and measures no time of this host.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import fmean

from tests.fakes.throttled import (
    CAP,
    H200,
    LONG,
    SHORT,
    Lengths,
    Second,
    Setting,
    ThrottledClient,
    pace,
)

from kvctl.core.domain.throttle.queue_hold import QueueHold
from kvctl.core.sim.model import StepLaw

CAPACITIES = (116_000, 159_277, 376_029)
LOADS = {"LONG": LONG, "CAP": CAP, "SHORT": SHORT}
FIXED = (36, 48, 64, 100, 150, 200, 250, 320)
SETTLE_S, END_S = 300, 4800
"""The nine cases: their window is from the one to the other."""
SLOW = StepLaw(prefill_tokens_per_s=800.0)
SLOW_FIXED = {116_000: (44, 56, 64, 90), 159_277: (48, 56, 64, 90), 376_029: (120, 135, 150, 200)}
SLOW_SETTLE_S, SLOW_END_S = 5400, 16_200
"""A trial of fewer slots begins after an hour and takes half of one."""
SWITCH_S = 1800
MIXED = tuple(Lengths(mean, 0.6, 6000, prompts=(400, 600)) for mean in (1000.0, 2000.0, 3000.0))
COLD_S, HEAD_S = 105, 25
COLD_FIXED = (72, 88, 100, 150)


@dataclass(frozen=True, slots=True)
class Job:
    """One simulated client."""

    setting: Setting
    fixed: int | None
    """None is AUTO."""
    seed: int
    begin_s: int
    end_s: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over a job's window."""

    generated: float
    completed: float
    queued: float
    slots: float
    retracted: float
    head: float = 0.0
    """Generated tokens a second before the window."""
    idle_s: float = 0.0
    """Seconds with an empty queue and usage below .72 in the hour after a switch."""


@dataclass(slots=True)
class Bounds:
    """What was claimed and whether it held."""

    missed: list[str] = field(default_factory=list)

    def claim(self, text: str, holds: bool) -> None:
        """Print a claim."""
        print(f"- {'holds' if holds else 'MISSED'}: {text}")
        if not holds:
            self.missed.append(text)


def measure(job: Job) -> Figures:
    """Run one job."""
    law = QueueHold() if job.fixed is None else None
    client = ThrottledClient(job.setting, law, job.fixed or 0, job.seed)
    course = client.run(job.end_s)
    window = [second for second in course if second.at >= job.begin_s]
    seconds = job.end_s - job.begin_s
    return Figures(
        generated=pace(course, job.begin_s, job.end_s),
        completed=(window[-1].ended - window[0].ended) / seconds,
        queued=fmean(second.queued for second in window),
        slots=fmean(second.allowed for second in window),
        retracted=window[-1].retracted - window[0].retracted,
        head=pace(course, 0, job.begin_s) if job.begin_s else 0.0,
        idle_s=sum(second.is_starved for second in _after(course, job.setting.switch_s)),
    )


def _after(course: Iterable[Second], moment: float) -> Iterable[Second]:
    return (second for second in course if moment < second.at <= moment + 3600)


def mean_of(figures: Sequence[Figures]) -> Figures:
    """Return the means over seeds."""
    names = Figures.__dataclass_fields__
    return Figures(**{name: fmean(getattr(one, name) for one in figures) for name in names})


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs jobs over the seeds."""

    pool: Executor
    seeds: range

    def run(
        self, setting: Setting, numbers: Sequence[int | None], begin_s: int, end_s: int
    ) -> dict[int | None, Figures]:
        """Return the figures of every fixed number, None being AUTO."""
        jobs = [Job(setting, n, s, begin_s, end_s) for n in numbers for s in self.seeds]
        done = list(self.pool.map(measure, jobs))
        count = len(self.seeds)
        return {n: mean_of(done[i * count : (i + 1) * count]) for i, n in enumerate(numbers)}


def nine(bench: Bench, bounds: Bounds) -> None:
    """The nine cases, with fresh and with late telemetry."""
    print("\n## Nine cases\n")
    print(
        "| pool | lengths | best fixed N | tok/s | AUTO | telemetry 5 s late | generated | "
        "fixed 150 | slots | queue | retractions (150) |"
    )
    print("|" + " --- |" * 11)
    fresh, late = [], []
    for capacity in CAPACITIES:
        for name, lengths in LOADS.items():
            setting = Setting(capacity, (lengths,))
            all_of = bench.run(setting, [*FIXED, None], SETTLE_S, END_S)
            slow = replace(setting, every_s=5.0, late_s=5.0)
            stale = bench.run(slow, [None], SETTLE_S, END_S)[None]
            auto = all_of.pop(None)
            number, best = max(all_of.items(), key=lambda item: item[1].completed)
            fresh.append(auto.completed / best.completed)
            late.append(stale.completed / best.completed)
            most = max(figures.generated for figures in all_of.values())
            print(
                f"| {capacity:,} | {name} | {number} | {best.completed:,.0f} | {fresh[-1]:.3f} |"
                f" {late[-1]:.3f} | {auto.generated / most:.3f} |"
                f" {all_of[150].completed / best.completed:.3f} | {auto.slots:.0f} |"
                f" {auto.queued:.0f} | {auto.retracted:.0f} ({all_of[150].retracted:.0f}) |"
            )
    print(f"| | | | | mean {fmean(fresh):.3f} | mean {fmean(late):.3f} | | | | | |\n")
    bounds.claim(f"mean of the nine {fmean(fresh):.3f} >= .99", fmean(fresh) >= 0.99)
    bounds.claim(f"worst of the nine {min(fresh):.3f} >= .97", min(fresh) >= 0.97)
    bounds.claim(f"worst with telemetry 5 s late {min(late):.3f} >= .97", min(late) >= 0.97)


def switches(bench: Bench, bounds: Bounds) -> None:
    """Idle KV after all new requests are of other lengths."""
    print("\n## Another partition\n")
    print("| pool | from | to | idle seconds in the hour after |")
    print("| --- | --- | --- | --- |")
    worst = 0.0
    pairs = [(a, b) for a in LOADS for b in LOADS if a != b]
    for capacity in CAPACITIES:
        for before, after in pairs:
            setting = Setting(capacity, (LOADS[before],), later=(LOADS[after],), switch_s=SWITCH_S)
            idle = bench.run(setting, [None], SETTLE_S, SWITCH_S + 3600)[None].idle_s
            worst = max(worst, idle)
            print(f"| {capacity:,} | {before} | {after} | {idle:.1f} |")
    print()
    bounds.claim(f"idle KV after a switch, worst {worst:.1f} s <= 10 s", worst <= 10)


def slow_prefill(bench: Bench, bounds: Bounds) -> None:
    """Equal lengths at 800 prefill tokens a second, where retractions cost most."""
    print("\n## Slow prefill (800 tok/s), CAP\n")
    print("| pool | best fixed N | tok/s | AUTO | first 90 min | slots | retractions (best) |")
    print("|" + " --- |" * 7)
    ratios = []
    for capacity, numbers in SLOW_FIXED.items():
        setting = Setting(capacity, (CAP,), SLOW)
        all_of = bench.run(setting, [*numbers, None], SLOW_SETTLE_S, SLOW_END_S)
        auto = all_of.pop(None)
        number, best = max(all_of.items(), key=lambda item: item[1].completed)
        ratios.append(auto.completed / best.completed)
        head = auto.head / max(figures.head for figures in all_of.values())
        print(
            f"| {capacity:,} | {number} | {best.completed:,.0f} | {ratios[-1]:.3f} | {head:.3f} |"
            f" {auto.slots:.0f} | {auto.retracted:.0f} ({best.retracted:.0f}) |"
        )
    print()
    bounds.claim(
        f"slow prefill with the probe, worst {min(ratios):.3f} >= .95", min(ratios) >= 0.95
    )


def cold_start(bench: Bench, bounds: Bounds) -> None:
    """The first 105 s from an empty server on one H200."""
    for title, limit in (("exact max_new_tokens", None), ("max_new_tokens 6,000", 6000)):
        print(f"\n## Cold start, H200, 159,277 tokens, {title}\n")
        print("| slots | first 105 s | of best | 25-105 s | of best | first 25 s | retractions |")
        print("|" + " --- |" * 7)
        loads = tuple(replace(load, limit=limit) for load in MIXED)
        setting = Setting(159_277, loads, H200)
        whole = bench.run(setting, [*COLD_FIXED, None], 0, COLD_S)
        tail = bench.run(setting, [*COLD_FIXED, None], HEAD_S, COLD_S)
        best = max(whole[n].generated for n in COLD_FIXED)
        best_tail = max(tail[n].generated for n in COLD_FIXED)
        for number, figures in whole.items():
            later = tail[number]
            print(
                f"| {number or 'AUTO'} | {figures.generated:,.0f} | {figures.generated / best:.3f}"
                f" | {later.generated:,.0f} | {later.generated / best_tail:.3f} |"
                f" {later.head:,.0f} | {figures.retracted:.1f} |"
            )
        print()
        start, steady = whole[None].generated / best, tail[None].generated / best_tail
        bounds.claim(f"with the cold start {start:.3f} >= .975", start >= 0.975)
        bounds.claim(f"from 25 s on {steady:.3f} >= .985", steady >= 0.985)
        fewer = whole[None].retracted <= whole[150].retracted
        bounds.claim("no more retractions than fixed 150", fewer)


PARTS: dict[str, Callable[[Bench, Bounds], None]] = {
    "nine": nine,
    "switch": switches,
    "slow": slow_prefill,
    "cold": cold_start,
}


def main(words: list[str]) -> int:
    """Run the parts asked for, all by default."""
    parser = argparse.ArgumentParser(prog="law_regression", allow_abbrev=False)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(words)
    bounds = Bounds()
    with ProcessPoolExecutor() as pool:
        for part in given.parts:
            PARTS[part](Bench(pool, range(1, given.seeds + 1)), bounds)
    return 1 if bounds.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
