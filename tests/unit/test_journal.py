"""The journal: whole lines, durable before they count, repaired when the disk refuses."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.fakes.runs import inline

from kvctl.core.clock import ManualClock
from kvctl.core.runs.outputs.foreign import ForeignScan, read_done_from, scan_foreign
from kvctl.core.runs.outputs.journal import ERRORS, RESPONSES, Journal, in_thread, parts_of
from kvctl.core.runs.outputs.records import ResponseHead, line_of
from kvctl.core.runs.outputs.scan import (
    JournalDamaged,
    ScanNotes,
    read_stream,
    refuse_damage,
    repair_tails,
)

T = TypeVar("T")
CASES = Path(__file__).parents[1] / "data" / "cases"


def record(name: str, tokens: int = 3) -> bytes:
    return line_of(
        {
            "v": 1,
            "id": name,
            "partition": "B",
            "output_ids": list(range(tokens)),
            "completion_tokens": tokens,
            "finish_reason": {"type": "stop"},
        }
    )


class Desk:
    """A journal on a manual clock."""

    def __init__(self, folder: Path, part_bytes: int = 1 << 30) -> None:
        self.clock = ManualClock()
        self.journal = Journal(folder, self.clock, inline, part_bytes)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path)
    made.journal.start()
    yield made
    if made.journal._writer is not None:
        await made.journal.close()


def watch_fsync(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Note every file that is synced, and sync it."""
    synced: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


def ids_in(folder: Path) -> list[str]:
    return [
        json.loads(line)["id"]
        for file in parts_of(folder, RESPONSES)
        for line in file.read_text().splitlines()
    ]


async def test_a_record_counts_only_after_its_fsync(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = watch_fsync(monkeypatch)
    durable = desk.journal.append(RESPONSES, record("a"))
    assert not durable.done() and desk.journal.pending == 1
    await desk.clock.advance(0.0)
    assert durable.done() and synced == [tmp_path, tmp_path / "raw_responses.jsonl"]
    assert desk.journal.last_durable_at == desk.clock.monotonic()


async def test_a_burst_is_written_in_groups_of_a_tenth_of_a_second(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.clock.advance(0.0)
    synced = watch_fsync(monkeypatch)
    for n in range(100):
        desk.journal.append(RESPONSES, record(f"r{n}"))
        await desk.clock.advance(0.01)
    assert len(synced) <= 12
    await desk.clock.advance(1)
    assert ids_in(tmp_path) == [f"r{n}" for n in range(100)]


async def test_one_stream_that_fails_does_not_stop_another(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "errors.jsonl").mkdir()
    stuck = desk.journal.append(ERRORS, b"{}\n")
    fine = desk.journal.append(RESPONSES, record("a"))
    await desk.clock.advance(1)
    assert fine.done() and not stuck.done()
    (tmp_path / "errors.jsonl").rmdir()
    await desk.clock.advance(6)
    assert stuck.done()


async def test_parts_are_numbered_by_size_and_read_in_order(tmp_path: Path) -> None:
    desk = Desk(tmp_path, part_bytes=500)
    desk.journal.start()
    for n in range(20):
        desk.journal.append(RESPONSES, record(f"r{n:02d}"))
        await desk.clock.advance(0.2)
    await desk.journal.close()
    names = [file.name for file in parts_of(tmp_path, RESPONSES)]
    assert names[:2] == ["raw_responses.jsonl", "raw_responses.0002.jsonl"] and len(names) > 3
    assert ids_in(tmp_path) == [f"r{n:02d}" for n in range(20)]


async def test_writing_goes_on_in_the_newest_part(tmp_path: Path) -> None:
    for _ in range(2):
        desk = Desk(tmp_path, part_bytes=200)
        desk.journal.start()
        for n in range(4):
            desk.journal.append(RESPONSES, record(f"r{n}"))
            await desk.clock.advance(0.2)
        await desk.journal.close()
    assert ids_in(tmp_path) == ["r0", "r1", "r2", "r3"] * 2


async def test_a_blocked_disk_does_not_block_the_event_loop(tmp_path: Path) -> None:
    gate = threading.Event()

    async def slow(work: Callable[[], T], /) -> T:
        def gated() -> T:
            assert gate.wait(5)
            return work()

        return await in_thread(gated)

    journal = Journal(tmp_path, ManualClock(), slow)
    journal.start()
    durable = journal.append(RESPONSES, record("a"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not durable.done()
    gate.set()
    await durable
    await journal.close()


@pytest.mark.parametrize(
    "tail",
    [
        record("c")[:-1],
        record("c")[:20],
        record("c")[:20] + b"\n",
        b"\0" * 300,
        '{"id":"é'.encode()[:-1],
    ],
    ids=["no line end", "half", "half with line end", "zeros", "half a character"],
)
def test_a_torn_tail_is_moved_aside(tmp_path: Path, tail: bytes) -> None:
    file = tmp_path / "raw_responses.jsonl"
    whole = record("a") + record("b")
    file.write_bytes(whole + tail)
    notes = ScanNotes()
    repair_tails(tmp_path, notes, stamp="20261129T100000Z")
    assert file.read_bytes() == whole
    (torn,) = notes.torn
    assert torn.kept_as == "torn-20261129T100000Z-raw_responses.bin"
    assert (tmp_path / torn.kept_as).read_bytes() == tail
    heads = [line.head.id for line in read_stream(tmp_path, RESPONSES, ResponseHead, notes)]
    assert heads == ["a", "b"] and not notes.damages


def test_a_file_that_is_all_torn_becomes_empty(tmp_path: Path) -> None:
    file = tmp_path / "raw_responses.jsonl"
    file.write_bytes(b'{"id":')
    repair_tails(tmp_path, ScanNotes(), stamp="x")
    assert file.read_bytes() == b""


def test_a_very_long_torn_tail_is_found(tmp_path: Path) -> None:
    file = tmp_path / "raw_responses.jsonl"
    file.write_bytes(record("a") + b"x" * 500_000)
    repair_tails(tmp_path, ScanNotes(), stamp="x")
    assert file.read_bytes() == record("a")


def test_a_whole_file_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "raw_responses.jsonl"
    file.write_bytes(record("a", 40_000))
    before = file.stat()
    notes = ScanNotes()
    repair_tails(tmp_path, notes, stamp="x")
    assert file.stat() == before and not notes.torn


def test_damage_inside_stops_a_resume_with_its_offset(tmp_path: Path) -> None:
    first, bad = record("a"), b'{"id":"b","part\n'
    (tmp_path / "raw_responses.jsonl").write_bytes(first + bad + record("c"))
    notes = ScanNotes()
    heads = [line.head.id for line in read_stream(tmp_path, RESPONSES, ResponseHead, notes)]
    assert heads == ["a", "c"]
    with pytest.raises(JournalDamaged, match=rf"line 2 at byte {len(first)}: "):
        refuse_damage(notes, accept=False)
    refuse_damage(notes, accept=True)


def test_half_a_surrogate_pair_does_not_stop_the_writer() -> None:
    line = line_of({"id": "a", "text": "lone \ud83d end", "meta": [{"k\udc00": 1}]})
    assert json.loads(line) == {"id": "a", "text": "lone \ufffd end", "meta": [{"k\ufffd": 1}]}


def scanned() -> ForeignScan:
    return scan_foreign(CASES / "o15-damaged.jsonl")


def test_the_damaged_foreign_file_is_counted_as_it_is_and_never_modified() -> None:
    before = (CASES / "o15-damaged.jsonl").read_bytes()
    scan = scanned()
    assert scan.done == ["r001", "r002", "r005", "r007"]
    assert scan.duplicates == [("r002", 4)]
    assert scan.blank == 1
    assert [(bad.line, bad.what) for bad in scan.bad] == [
        (5, "glued"),
        (7, "malformed"),
        (9, "not an object"),
        (10, "torn"),
    ]
    assert scan.recovered == ["r004"]
    assert before[scan.bad[0].offset :].startswith(b'{"id": "r003"')
    assert (CASES / "o15-damaged.jsonl").read_bytes() == before


def test_what_the_damaged_file_leaves_to_do() -> None:
    ids = (CASES / "o15-input-ids.txt").read_text().split()
    rows = {"B": (0, {name: n for n, name in enumerate(ids)})}
    found = read_done_from([str(CASES / "o15-damaged.jsonl")], rows)
    done = {ids[row] for _, row in found.done}
    assert [name for name in ids if name not in done] == [
        "r003",
        "r004",
        "r006",
        "r008",
        "r009",
        "r010",
    ]
    assert found.bad_lines == 4


def test_an_answer_without_a_partition_counts_only_where_its_id_is_in_one(tmp_path: Path) -> None:
    file = tmp_path / "old.jsonl"
    lines = [{"id": "both"}, {"id": "one"}, {"id": "none"}, {"id": "both", "partition": "A"}]
    file.write_text(
        "".join(json.dumps({**x, "text": "t", "finish_reason": "stop"}) + "\n" for x in lines)
    )
    rows = {"A": (0, {"both": 0}), "B": (1, {"both": 0, "one": 1})}
    found = read_done_from([str(file)], rows)
    assert found.done == {(1, 1), (0, 0)}
    assert (found.ambiguous, found.unknown) == (1, 1)
