"""Small runs on disk for tests of the driver: a run file, inputs, and an inline offload."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


async def inline(work: Callable[[], T], /) -> T:
    """Blocking work at once, so that a manual clock decides the order of everything."""
    return work()


def ids_rows(count: int, first: int = 1) -> list[dict[str, object]]:
    return [{"id": f"r{n:03d}", "input_ids": [n, 2, 3]} for n in range(first, first + count)]


def write_rows(file: Path, rows: list[dict[str, object]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_run(
    folder: Path,
    rows: dict[str, list[dict[str, object]]],
    *,
    concurrency: int = 4,
    tokens: int = 50,
    run: str = "",
    sampling: str = "",
) -> Path:
    """A run file with one input file a partition; `run` and `sampling` are TOML lines."""
    text = f'[run]\nname = "test"\noutput = "out"\nconcurrency = {concurrency}\n{run}\n'
    text += f"[sampling]\nmax_new_tokens = {tokens}\n{sampling}\n"
    for name, content in rows.items():
        write_rows(folder / f"{name}.jsonl", content)
        text += f'[[partition]]\nname = "{name}"\ninput = "{name}.jsonl"\n'
    file = folder / "run.toml"
    file.write_text(text)
    return file


def answers(folder: Path) -> list[dict[str, object]]:
    """Every record of the run in a folder, read by json alone."""
    lines = []
    for file in sorted((folder / "out").glob("raw_responses*.jsonl")):
        lines += file.read_text().splitlines()
    return [json.loads(line) for line in lines]


def answered(folder: Path) -> list[str]:
    """The ids answered, sorted; an id that is there twice stands twice."""
    return sorted(str(record["id"]) for record in answers(folder))
