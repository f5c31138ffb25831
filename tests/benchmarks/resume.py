"""How long a run's journal takes to be read back at a resume, with its index and without.

    python -m tests.benchmarks.resume [--rounds 5] [--records 88000] [--sizes 4096 29696]

With index: schedule and counters filled from the journal (`read_back`). Whole: `open_run`, which
checks every input first. Rebuild: index.bin removed, every part read and the index written, beside
`wc -l` over the same parts in the same round. Parts of 1 GiB, as rotation by size leaves them.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.runs.opening.counters import Counters, PartitionCounters
from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.opening.opening import OpenOptions, open_run
from kvctl.core.runs.opening.readback import read_back
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.opening.schedule import Schedule
from kvctl.core.runs.outputs.index import INDEX, IndexWriter
from kvctl.core.runs.outputs.journal import RESPONSES, part_path, parts_of
from kvctl.core.runs.outputs.records import ResponseHead, line_of
from kvctl.core.runs.outputs.scan import ScanNotes, read_answers

PART_BYTES = 1 << 30
_BATCH = 8


def record(number: int, size: int) -> bytes:
    """Return one answer of about that many bytes; half of it ids, as with real text."""
    tokens = max(1, (size - 700) // 10)
    return line_of(
        {
            "v": 1,
            "id": f"row-{number:08d}",
            "partition": f"B{1 + number % 7}",
            "attempt": 0,
            "prompt_sha256": "a" * 64,
            "n_prompt": 20,
            "input_ids": [7 * n % 151_936 for n in range(20)],
            "output_ids": [(number + 7919 * n) % 151_936 for n in range(tokens)],
            "text": "word " * int(tokens * 0.65),
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 20,
            "completion_tokens": tokens,
            "cached_tokens": 0,
            "e2e_latency": 12.3,
            "t_submit": 1.9e9,
            "t_done": 1.9e9 + number,
            "server": "http://127.0.0.1:30000",
            "launch": "0123456789abcdef",
            "model": "model",
            "weight_version": "default",
            "sampling": "0123456789abcdef",
            "rid": f"abcdefgh-{number:08d}-00.",
        }
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A line whose head the index reads from it."""

    data: bytes
    head: ResponseHead | None = None


def write_journal(folder: Path, records: int, size: int) -> int:
    """Write the parts and their index as a journal does that gets eight answers a commit."""
    writer, number, total = IndexWriter(folder), 1, 0
    descriptor, at = _part(folder, number), 0
    for first in range(0, records, _BATCH):
        if at >= PART_BYTES:
            os.close(descriptor)
            number += 1
            descriptor, at = _part(folder, number), 0
        lines = [record(n, size) for n in range(first, min(records, first + _BATCH))]
        data = b"".join(lines)
        os.write(descriptor, data)
        indexed = [Line(line) for line in lines]
        writer.add(part_path(folder, RESPONSES, number).name, at, indexed, descriptor)
        at, total = at + len(data), total + len(data)
    os.fsync(descriptor)
    os.close(descriptor)
    writer.close()
    return total


def _part(folder: Path, number: int) -> int:
    path = part_path(folder, RESPONSES, number)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def write_run(folder: Path, records: int) -> Path:
    """Write the run file and its seven partitions of token ids."""
    text = '[run]\nname = "resume"\noutput = "out"\n[sampling]\nmax_new_tokens = 4096\n'
    for part in range(7):
        with (folder / f"B{part + 1}.jsonl").open("wb") as file:
            for number in range(part, records, 7):
                ids = [7 * n % 151_936 for n in range(20)]
                file.write(line_of({"id": f"row-{number:08d}", "input_ids": ids}))
        text += f'[[partition]]\nname = "B{part + 1}"\ninput = "B{part + 1}.jsonl"\n'
    (folder / "out").mkdir()
    (folder / "run.toml").write_text(text)
    return folder / "run.toml"


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def opened(path: Path) -> OpenedRun:
    """Open a run and give its lock back."""
    found = open_run(load_run(path), OpenOptions(vocabulary=151_936), 1.9e9)
    found.lock.release()
    for index in found.indexes:
        index.close()
    return found


def fresh(before: OpenedRun) -> OpenedRun:
    """Return the same run with nothing read back."""
    indexes, spec = before.indexes, before.spec
    return OpenedRun(
        spec=spec,
        folder=before.folder,
        lock=before.lock,
        run8=before.run8,
        manifest=before.manifest,
        facts=before.facts,
        indexes=indexes,
        schedule=Schedule({i.spec.name: len(i) for i in indexes}, spec.order, spec.scout),
        counters=Counters([PartitionCounters(i.spec.name, len(i)) for i in indexes]),
        settings=before.settings,
    )


def rebuild(out: Path) -> None:
    """Read every answer and write the index."""
    notes = ScanNotes()
    for _ in read_answers(out, notes):
        pass
    assert (out / INDEX).exists() and not notes.damages


def measure(folder: Path, records: int, size: int, rounds: int) -> str:
    """Return one row of the table."""
    path = write_run(folder, records)
    out = folder / "out"
    before = opened(path)
    total = write_journal(out, records, size)
    parts = [str(part) for part in parts_of(out, RESPONSES)]
    with_index, index_cpu, rebuilt, wc, whole, by_cpu = [], [], [], [], [], []
    for _ in range(rounds):
        run = fresh(before)
        used = time.process_time()
        with_index.append(timed(lambda run=run: read_back(run)))  # type: ignore[misc]
        index_cpu.append(time.process_time() - used)
        assert sum(p.done for p in run.counters.partitions) == records
        whole.append(timed(lambda: opened(path)))
        (out / INDEX).unlink()
        wc.append(timed(lambda: subprocess.run(["wc", "-l", *parts], check=True, stdout=-3)))
        used = time.process_time()
        rebuilt.append(timed(lambda: rebuild(out)))
        by_cpu.append(total / 1e6 / (time.process_time() - used))
    speeds = [total / 1e6 / seconds for seconds in rebuilt]
    ratios = [ours / plain for ours, plain in zip(rebuilt, wc, strict=True)]
    return (
        f"| {records:,} of {total / records / 1000:.1f} KB in {len(parts)} parts, "
        f"{total / 1e9:.2f} GB | {spread(with_index)} | {spread(index_cpu)} | {spread(whole)} | "
        f"{spread(speeds, 0)} | "
        f"{spread(by_cpu, 0)} | "
        f"{spread([total / 1e6 / s for s in wc], 0)} | {spread([1 / r for r in ratios])} |"
    )


def spread(values: list[float], places: int = 2) -> str:
    """Return median, least and most."""
    middle = statistics.median(values)
    return f"{middle:.{places}f} ({min(values):.{places}f}–{max(values):.{places}f})"


def main() -> None:
    """Measure every size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=88_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4_000, 29_000])
    words = parser.parse_args()
    print(f"host load {os.getloadavg()[0]:.1f}, {words.rounds} rounds: median (least–most)\n")
    names = (
        "with index, s | CPU s | whole open, s | rebuild, MB/s | MB a CPU second | `wc -l`, MB/s"
    )
    print(f"| journal | {names} | of `wc -l` |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for size in words.sizes:
        with tempfile.TemporaryDirectory() as name:
            print(measure(Path(name), words.records, size, words.rounds), flush=True)


if __name__ == "__main__":
    main()
