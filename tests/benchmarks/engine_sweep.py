"""AUTO against fixed numbers of slots on the CPU engine: `python -m tests.benchmarks.engine_sweep`.

    [--slots 8,16,32,64,128,auto] [--rows 300] [--rounds 2]

kvctl drives every run; all have the same prompts and the same exact lengths, the prefix cache is
flushed before each, and the order is turned round in every second round. Tokens and times are read
from the output by json alone, running, queued and retractions from the server's own /metrics.
Exit status 1 if AUTO's mean is below .95 of the best fixed number.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.engine.operating import Place, place_in
from tests.gpu.load import Load, read_requests, write_run, write_run_file

PRESET = "cpu-tiny-2x"
LOAD = Load(mean=160, most=480, prompt=(40, 80), vocabulary=256)
GOAL = 0.95
PATIENCE_S = 900.0
_NAMES = "num_running_reqs|num_queue_reqs|token_usage|num_retracted_requests_total"
_METRIC = re.compile(rf"^sglang:({_NAMES})(?:\{{[^}}]*\}})? ([\d.eE+-]+)$", re.M)


@dataclass(slots=True)
class Seen:
    """One run."""

    tokens_per_s: float = 0.0
    """Tokens of the answers over the time from the first send to the last end."""
    seconds: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    retracted: float = 0.0
    samples: list[dict[str, float]] = field(default_factory=list)

    def mean(self, name: str) -> float:
        """Return the mean of a gauge, once a second."""
        return statistics.fmean(sample.get(name, 0.0) for sample in self.samples)


def metrics(place: Place) -> dict[str, float]:
    """Return the gauges and the counter of retractions; it is absent before the first."""
    text = httpx.get(f"http://127.0.0.1:{place.port}/metrics", timeout=30).text
    return {name: float(value) for name, value in _METRIC.findall(text)}


def run_once(place: Place, name: str, slots: str, rows: int) -> Seen:
    """Let kvctl drive one run to its end."""
    httpx.post(f"http://127.0.0.1:{place.port}/flush_cache", timeout=60).raise_for_status()
    write_run_file(place.folder, name, "inputs", slots, LOAD)
    before, seen = metrics(place), Seen()
    place.do("run", "start", f"{name}.toml")
    output = place.folder / f"out-{name}"
    deadline = time.monotonic() + PATIENCE_S
    while len(answers := read_requests(output)) < rows:
        assert time.monotonic() < deadline, f"{name}: {len(answers)} of {rows} answers"
        seen.samples.append(metrics(place))
        time.sleep(1.0)  # the period of the samples
    place.until(lambda run: run["state"] == "finished", "the end of the run")
    begin = min(float(str(a["t_submit"])) for a in answers)
    end = max(float(str(a["t_done"])) for a in answers)
    took = sorted(float(str(a["t_done"])) - float(str(a["t_submit"])) for a in answers)
    seen.seconds = end - begin
    seen.tokens_per_s = sum(int(str(a["counted"])) for a in answers) / seen.seconds
    seen.p50_s, seen.p99_s = took[len(took) // 2], took[int(0.99 * len(took))]
    name_of = "num_retracted_requests_total"
    seen.retracted = metrics(place).get(name_of, 0.0) - before.get(name_of, 0.0)
    return seen


def sweep(place: Place, slots: list[str], rows: int, rounds: int) -> dict[str, list[Seen]]:
    """Run every number in every round."""
    write_run(place.folder, "inputs", rows, LOAD)
    found: dict[str, list[Seen]] = {number: [] for number in slots}
    for turn in range(rounds):
        for number in slots if turn % 2 == 0 else reversed(slots):
            seen = run_once(place, f"r{turn}-{number}", number, rows)
            found[number].append(seen)
            load = os.getloadavg()[0]
            print(f"<!-- round {turn + 1}, {number}: {seen.tokens_per_s:,.0f} tok/s,"
                  f" {seen.seconds:.0f} s, host load {load:.1f} -->", flush=True)  # fmt: skip
    return found


def report(found: dict[str, list[Seen]]) -> float:
    """Print the table; AUTO's mean over the best fixed mean."""
    means = {n: statistics.fmean(s.tokens_per_s for s in runs) for n, runs in found.items()}
    best = max(mean for number, mean in means.items() if number != "auto")
    print("| slots | tok/s, mean (each) | of best fixed | running | queued | usage |"
          " p50 / p99 s | retractions |")  # fmt: skip
    print("|" + " --- |" * 8)
    for number, runs in found.items():
        each = ", ".join(f"{s.tokens_per_s:,.0f}" for s in runs)
        gauges = [statistics.fmean(s.mean(g) for s in runs)
                  for g in ("num_running_reqs", "num_queue_reqs", "token_usage")]  # fmt: skip
        p50, p99, retracted = (
            statistics.fmean(getattr(s, name) for s in runs)
            for name in ("p50_s", "p99_s", "retracted")
        )
        print(
            f"| {number} | {means[number]:,.0f} ({each}) | {means[number] / best:.3f} |"
            f" {gauges[0]:.1f} | {gauges[1]:.1f} | {gauges[2]:.2f} | {p50:.1f} / {p99:.1f} |"
            f" {retracted:.0f} |"
        )
    return means["auto"] / best


def main(words: list[str]) -> int:
    """Start the engine, sweep, stop it."""
    parser = argparse.ArgumentParser(prog="engine_sweep", allow_abbrev=False)
    parser.add_argument("--slots", default="8,16,32,64,128,auto")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder, place_in(Path(folder)) as place:
        place.do("server", "start", PRESET)
        found = sweep(place, given.slots.split(","), given.rows, given.rounds)
        place.do("server", "stop", "--yes")
    ratio = report(found)
    print(f"\nAUTO {ratio:.3f} of the best fixed number; goal {GOAL}")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
