"""How fast the readers are beside the plainest thing that reads the same bytes, in one run.

    python -m tests.benchmarks.readers [--rounds 5]

Log reader against `grep -c`, metrics parse against the parser library alone, and how long it takes
to attach to a log of 1 GB. Only the ratios mean something on another machine.
"""

import argparse
import gzip
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kvctl.core.domain.servers.startup import fold_startup, launched
from kvctl.core.probes.log_tail import FileLogTail
from kvctl.core.probes.metrics_text import parse_metrics

DATA = Path(__file__).parents[1] / "data"
LOG_COPIES = 20
BIG_BYTES = 1 << 30


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare(name: str, pairs: list[tuple[float, float]], amount: float, unit: str) -> None:
    """Print medians of both and of their ratio."""
    ours, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = [one / other for one, other in pairs]
    speeds = f"kvctl {amount / ours:,.0f} {unit}/s, plain {amount / plain:,.0f} {unit}/s"
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    print(f"{name}: {speeds}, ratio {middle:.1f} (from {low:.1f} to {high:.1f})")


def read_all(path: Path) -> int:
    """Read a whole log through the tail; return its records."""
    tail = FileLogTail(str(path), attach_bytes=1 << 40)
    count = 0
    while records := tail.read_new():
        count += len(records)
    tail.close()
    return count


def logs(folder: Path, rounds: int) -> None:
    """Lines per second of the log reader against `grep -c`."""
    text = gzip.decompress((DATA / "sglang-0.5.17" / "server.log.gz").read_bytes())
    path = folder / "whole.log"
    path.write_bytes(text * LOG_COPIES)
    lines = text.count(b"\n") * LOG_COPIES
    grep = ["grep", "-c", "Decode batch", str(path)]
    pairs = [
        (timed(lambda: read_all(path)), timed(lambda: subprocess.run(grep, check=True, stdout=-3)))
        for _ in range(rounds)
    ]
    compare(f"log, {lines:,} lines", pairs, lines, "lines")


def attach(folder: Path, rounds: int) -> None:
    """Seconds to attach to a log of 1 GB: the end first, then the start-up facts at its head."""
    text = gzip.decompress((DATA / "sglang-0.5.17" / "server.log.gz").read_bytes())
    head_end = text.index(b"\n", text.index(b"The server is fired up")) + 1
    path = folder / "big.log"
    with path.open("wb") as file:
        file.write(text[:head_end])
        while file.tell() < BIG_BYTES:
            file.write(text[head_end:])
    ends, starts = [], []
    for _ in range(rounds):
        tail = FileLogTail(str(path))
        ends.append(timed(tail.read_new))
        starts.append(timed(lambda tail=tail: _learn(tail)))  # type: ignore[misc]
        tail.close()
    size = path.stat().st_size / (1 << 30)
    first, facts = statistics.median(ends), statistics.median(starts)
    print(f"attach to {size:.2f} GiB: first lines after {first:.3f} s (at most {max(ends):.3f}),")
    print(f"start-up facts after another {facts:.3f} s (at most {max(starts):.3f})")


def _learn(tail: FileLogTail) -> None:
    progress = fold_startup(launched(0.0), tail.startup_records(), 1.0)
    assert progress.is_ready and progress.pool_tokens


def metrics(rounds: int) -> None:
    """Parses per second against the library's parser alone."""
    text = (DATA / "sglang-0.5.23" / "metrics_pressure.txt").read_text()

    def plain() -> None:
        for family in text_string_to_metric_families(text):
            for _ in family.samples:
                pass

    pairs = [(timed(lambda: parse_metrics(text, 1.0)), timed(plain)) for _ in range(rounds)]
    compare(f"metrics, {len(text):,} bytes", pairs, 1.0, "parses")


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"host load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name:
        logs(Path(name), rounds)
        attach(Path(name), rounds)
    metrics(rounds)


if __name__ == "__main__":
    main()
