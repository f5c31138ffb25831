"""Output folders of runs written by hand, byte for byte, with no driver."""

import json
from pathlib import Path


def answer(name: str, partition: str = "B", **change: object) -> dict[str, object]:
    """An accepted record; its output ids say which row it is of."""
    number = int("".join(c for c in name if c.isdigit()) or 0)
    record: dict[str, object] = {
        "v": 1,
        "id": name,
        "partition": partition,
        "attempt": 0,
        "input_ids": [number, 2, 3],
        "output_ids": [number, 7, 8],
        "text": f"answer {number}",
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "server": "http://fake:1",
    }
    return {**record, **change}


def lines_of(records: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def write_journal(
    folder: Path, records: list[dict[str, object]], part: int = 1, **manifest: object
) -> Path:
    """The output folder `out` with one part of the journal and a manifest."""
    out = folder / "out"
    out.mkdir(exist_ok=True)
    whole = {"v": 1, "run_file": str(folder / "run.toml"), "vocabulary": None, **manifest}
    (out / "manifest.json").write_text(json.dumps(whole))
    name = "raw_responses.jsonl" if part == 1 else f"raw_responses.{part:04d}.jsonl"
    (out / name).write_bytes(lines_of(records))
    return out / name
