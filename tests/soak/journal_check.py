"""Counts what lies on disk by json alone: nothing of kvctl is imported here.

An accepted answer is whole when its line parses, its ids are as many as it says, it ended by
itself or at its limit, and, where the caller knows them, its ids are the right ones.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[str, str]
"""Partition and id."""
Rightness = Callable[[Mapping[str, Any]], str]
"""Says what is wrong with the answer in a record; "" if nothing is."""


@dataclass(slots=True)
class Found:
    """What a look at the files found."""

    answers: Counter[Key] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    torn_bytes: int = 0
    """Bytes after the last line end of the newest part."""

    @property
    def twice(self) -> int:
        """Rows with more than one answer."""
        return sum(count > 1 for count in self.answers.values())


def inputs_of(files: Mapping[str, Path]) -> set[Key]:
    """Every partition and id of JSONL inputs."""
    return {
        (partition, json.loads(line)["id"])
        for partition, file in files.items()
        for line in file.read_text().splitlines()
    }


def parts_of(folder: Path, stream: str) -> list[Path]:
    """The parts of a stream, oldest first."""
    first = [folder / f"{stream}.jsonl"] if (folder / f"{stream}.jsonl").exists() else []
    return first + sorted(folder.glob(f"{stream}.[0-9]*.jsonl"))


def look(folder: Path, is_right: Rightness = lambda record: "") -> Found:
    """Read every answer of a run; what is no whole answer is a problem."""
    found = Found()
    parts = parts_of(folder, "raw_responses")
    for file in parts:
        lines = file.read_bytes().split(b"\n")
        tail = lines.pop()
        if tail and file == parts[-1]:
            found.torn_bytes = len(tail)
        elif tail:
            found.problems.append(f"{file.name}: an older part ends within a line")
        for number, line in enumerate(lines, 1):
            _take(found, f"{file.name}:{number}", line, is_right)
    return found


def _take(found: Found, at: str, line: bytes, is_right: Rightness) -> None:
    try:
        record = json.loads(line)
        key = (record["partition"], record["id"])
        wrong = _why_not_whole(record) or is_right(record)
    except (ValueError, KeyError, TypeError) as error:
        found.problems.append(f"{at}: {type(error).__name__}: {error}: {line[:80]!r}")
        return
    if wrong:
        found.problems.append(f"{at}: {key}: {wrong}")
    found.answers[key] += 1


def _why_not_whole(record: Mapping[str, Any]) -> str:
    ids = record["output_ids"]
    if len(ids) != record["completion_tokens"] or not ids:
        return f"says {record['completion_tokens']} tokens, holds {len(ids)}"
    if record["finish_reason"]["type"] not in ("stop", "length"):
        return f"finish reason {record['finish_reason']}"
    segments = record.get("segments")
    if segments and sum(segment["n"] for segment in segments) != len(ids):
        return "its segments do not add up"
    return ""


def check_export(lines: Iterable[str], wanted: set[Key]) -> list[str]:
    """What is wrong with an export of all ids: every row once, nothing else."""
    keys = Counter((record["partition"], record["id"]) for record in map(json.loads, lines))
    missing, strange = wanted - keys.keys(), keys.keys() - wanted
    twice = [key for key, count in keys.items() if count > 1]
    named = (("missing", missing), ("in no input", strange), ("twice", twice))
    return [f"export: {len(rows)} {what}" for what, rows in named if rows]
