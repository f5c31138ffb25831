"""The load: prompts of random token ids with an exact output length each, and their run files."""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

SCALE_OF_MEANS = {"B1": 0.5, "B2": 1.0, "B3": 1.5}
"""Partition -> its mean answer, as a share of the load's."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is generated; tokens."""

    mean: int
    """Mean answer of B2; B1 has half of it, B3 one and a half."""
    most: int
    """Longest answer."""
    prompt: tuple[int, int]
    """Shortest and longest prompt."""
    vocabulary: int
    """Ids are drawn below this."""
    spread: float = 0.6
    """Coefficient of variation of the lengths in a partition."""
    draw: int = 0
    """Other prompts and lengths by the same law for every number."""


def draw_length(source: random.Random, mean: float, load: Load) -> int:
    """Return a lognormal output length, cut at the longest."""
    variance = math.log(1 + load.spread**2)
    drawn = math.exp(source.gauss(math.log(mean) - variance / 2, math.sqrt(variance)))
    return max(8, min(load.most, round(drawn)))


def write_partition(path: Path, name: str, count: int, load: Load) -> None:
    """Write one partition's prompts; the same bytes for the same arguments."""
    source = random.Random(f"{name} {count} {load}")
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            ids = [
                source.randrange(10, load.vocabulary) for _ in range(source.randint(*load.prompt))
            ]
            length = draw_length(source, load.mean * SCALE_OF_MEANS[name], load)
            row = {
                "id": f"{name}-{number:05}",
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": length},
            }
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def write_run(folder: Path, name: str, rows: int, load: Load) -> Path:
    """Write a run of three partitions with `rows` prompts in all; return its run file."""
    folder.mkdir(parents=True, exist_ok=True)
    for partition in SCALE_OF_MEANS:
        path = folder / f"{name}-{partition}.jsonl"
        write_partition(path, partition, rows // len(SCALE_OF_MEANS), load)
    return write_run_file(folder, name, name, "auto", load)


def write_run_file(folder: Path, name: str, inputs: str, slots: str, load: Load) -> Path:
    """Write a run over the prompts that `inputs` names, with slots of its own; return its file."""
    lines = [
        "[run]",
        f'name = "{name}"',
        f'output = "out-{name}"',
        f"concurrency = {slots}" if slots.isdecimal() else f'concurrency = "{slots}"',
        "[sampling]",
        f"max_new_tokens = {load.most}",
        "temperature = 0",
        "ignore_eos = true",
    ]
    for partition in SCALE_OF_MEANS:
        file = f"{inputs}-{partition}.jsonl"
        lines += ["[[partition]]", f'name = "{partition}"', f'input = ["{file}"]', "weight = 1"]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_requests(output: Path) -> list[dict[str, object]]:
    """Return the answers on disk without prompts and tokens, read with json alone."""
    kept = ("id", "partition", "prompt_tokens", "completion_tokens", "t_submit", "t_done", "launch")
    found = []
    for path in sorted(output.glob("raw_responses*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):  # text may hold U+2028 as it is
            if line.endswith(b"\n"):
                row = json.loads(line)
                counted = {
                    "counted": len(row["output_ids"]),
                    "segments": len(row.get("segments") or []),
                }
                found.append({key: row.get(key) for key in kept} | counted)
    return found
