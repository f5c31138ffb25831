"""A disk that refuses, for real: nothing accepted is lost, torn or written twice."""

import json
import os
from pathlib import Path

from tests.fakes.runs import inline
from tests.fakes.small_disk import on_small_disk

from kvctl.core.clock import ManualClock
from kvctl.core.runs.outputs.journal import ERRORS, RESPONSES, Journal
from kvctl.core.runs.outputs.records import line_of


def test_a_full_disk_keeps_the_records_and_writes_them_whole_later(tmp_path: Path) -> None:
    found = on_small_disk("journal_fills_up", tmp_path)
    full = found["full"]
    assert (full["pending"], full["durable"], full["ids"]) == (3, 0, ["first"])
    trouble = f"{found['folder']}: cannot be written: {found['refusal']}"
    assert full["said"] == [trouble] and found["said"] == [trouble, None]
    assert (found["durable"], found["ids"]) == (3, ["first", "a", "b", "c"])


def test_closing_on_a_full_disk_says_how_many_records_are_lost(tmp_path: Path) -> None:
    found = on_small_disk("journal_closes_full", tmp_path)
    assert f"1 records could not be written: {found['refusal']}" in found["said"]
    assert found["ids"] == ["fits"]


def test_a_run_holds_on_a_full_disk_and_loses_no_answer(tmp_path: Path) -> None:
    found = on_small_disk("run_fills_up", tmp_path)
    full = found["full"]
    assert full["state"] == "holding" and found["refusal"] in full["reason"]
    assert full["in_memory"] > 0 and full["in_flight"] == 0
    assert full["asked"] == len(full["answered"]) + full["in_memory"] < 60
    assert found["asked"] == 60, "an answer that was in memory was made again"
    assert found["answered"] == [f"r{n:03d}" for n in range(1, 61)]
    assert found["is_exact"], found["problem"]


def test_a_run_closed_on_a_full_disk_makes_the_rows_in_memory_again(tmp_path: Path) -> None:
    found = on_small_disk("run_is_closed_full", tmp_path)
    assert "records could not be written" in found["said"]
    assert len(found["before"]) < 60
    assert (found["is_exact"], found["total"]) == (True, 60)


SECOND = "raw_responses.0002.jsonl"


def record(name: str) -> bytes:
    return line_of({"v": 1, "id": name, "partition": "B"})


async def tried(folder: Path, target: str) -> list[str | None]:
    """Write one record, then some to a part that refuses, then take that part away."""
    clock, said = ManualClock(), list[str | None]()
    journal = Journal(folder, clock, inline, part_bytes=1, on_trouble=said.append)
    journal.start()
    journal.append(RESPONSES, record("first"))
    await clock.advance(1)
    os.symlink(target, folder / SECOND)
    waiting = [journal.append(RESPONSES, record(name)) for name in ("a", "b")]
    fine = journal.append(ERRORS, b"{}\n")
    await clock.advance(12)
    assert not any(w.done() for w in waiting) and journal.pending == 2
    assert fine.done(), "one stream that fails stops another"
    os.unlink(folder / SECOND)
    await clock.advance(6)
    assert all(w.done() for w in waiting)
    await journal.close()
    return said


def ids(file: Path) -> list[str]:
    return [json.loads(line)["id"] for line in file.read_text().splitlines()]


async def test_an_input_output_error_is_told_and_made_up_for(tmp_path: Path) -> None:
    """The kernel answers EIO to a write of address 0 in a process's own memory."""
    said = await tried(tmp_path, "/proc/self/mem")
    assert said == [f"{tmp_path}: cannot be written: Input/output error", None]
    assert ids(tmp_path / "raw_responses.jsonl") == ["first"]
    assert ids(tmp_path / SECOND) == ["a", "b"]


async def test_a_write_that_cannot_be_synced_does_not_count(tmp_path: Path) -> None:
    """A null device takes every byte and refuses both fsync and to be cut back."""
    said = await tried(tmp_path, "/dev/null")
    assert said == [f"{tmp_path}: cannot be written: Invalid argument", None]
    assert ids(tmp_path / SECOND) == ["a", "b"]
