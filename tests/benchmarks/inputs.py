"""What reading and checking the inputs of a run costs: seconds and memory, by rows and by bytes.

    python -m tests.benchmarks.inputs [--rows 1000000] [--big-gb 10]

Each case in a process of its own: the peak of its resident memory above that of the same process
before it read anything. Afterwards 1,000 rows from all over the file are read again.
"""

import argparse
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

from kvctl.core.domain.runs.run_file import PartitionSpec
from kvctl.core.runs.inputs.indexing import index_entry
from kvctl.core.runs.inputs.partition import ModelFacts

_TEXT = "the state of a run is kept in one file and nothing that was accepted is ever lost "


def write(file: Path, rows: int, size: int) -> None:
    """Write prompts of about that many bytes, each different."""
    body = (_TEXT * (size // len(_TEXT) + 1))[: max(0, size - 60)]
    with ExitStack() as stack:
        stream: IO[bytes] = stack.enter_context(file.open("wb", buffering=1 << 20))
        if file.suffix == ".gz":
            packed = stack.enter_context(gzip.GzipFile("", "wb", 1, stream))
            stream = cast(IO[bytes], packed)
        for number in range(rows):
            row = f'{{"id":"prompt-{number:09d}","prompt":"{number} {body}"}}\n'
            stream.write(row.encode())


def write_ids(file: Path, rows: int, size: int) -> None:
    """Write token ids instead, checked one by one against the vocabulary."""
    ids = ",".join(str(7919 * n % 151_936) for n in range(size // 7))
    with file.open("wb", buffering=1 << 20) as stream:
        for number in range(rows):
            stream.write(f'{{"id":"prompt-{number:09d}","input_ids":[{number},{ids}]}}\n'.encode())


def index(file: Path, spool: Path) -> None:
    """Read a file as a start does; print what it cost."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    facts = ModelFacts(vocabulary=10_000_000, context_tokens=10_000_000)
    (found,) = index_entry(PartitionSpec("B", (str(file),)), facts, spool)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    for row in random.Random(7).sample(range(len(found)), 1000):
        found.load(row)
    again = time.perf_counter() - begin
    print(json.dumps([len(found), seconds, (peak - before) / 1024, again]))


def measure(name: str, file: Path, make: Callable[[], object]) -> None:
    """Print one row of the table."""
    make()
    size = file.stat().st_size
    words = [sys.executable, "-m", __spec__.name, "--file", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows, seconds, mib, again = json.loads(done.stdout)
    print(
        f"| {name} | {rows:,} | {size / 1e9:.2f} GB | {seconds:.1f} s | {rows / seconds:,.0f} | "
        f"{size / 1e6 / seconds:,.0f} | {mib:,.0f} MiB | {mib * 2**20 / rows:,.0f} | "
        f"{again * 1000:.0f} µs |",
        flush=True,
    )
    file.unlink()


def main() -> None:
    """Run every case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--big-gb", type=float, default=10.0)
    parser.add_argument("--file", type=Path)
    words = parser.parse_args()
    if words.file is not None:
        index(words.file, words.file.parent)
        return
    print(f"host load {os.getloadavg()[0]:.1f}\n")
    print("| input | rows | file | took | rows/s | MB/s | memory | bytes a row | one row again |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    big = int(words.big_gb * 1e9)
    with tempfile.TemporaryDirectory() as name:
        plain, ids, packed = (Path(name) / n for n in ("p.jsonl", "i.jsonl", "p.jsonl.gz"))
        few = words.rows // 10
        measure("prompts of 300 B", plain, lambda: write(plain, words.rows, 300))
        measure("the same, gzip", packed, lambda: write(packed, words.rows, 300))
        measure("token ids, 100 each", ids, lambda: write_ids(ids, words.rows, 700))
        measure("prompts of 3 kB", plain, lambda: write(plain, few, 3_000))
        measure("prompts of 100 kB", plain, lambda: write(plain, big // 100_000, 100_000))


if __name__ == "__main__":
    main()
