"""The resume index: whatever it holds, the data decides."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.runs import inline

from kvctl.core.clock import ManualClock
from kvctl.core.runs.outputs.index import INDEX, Entry, read_index
from kvctl.core.runs.outputs.journal import RESPONSES, Journal, parts_of
from kvctl.core.runs.outputs.records import FinishHead, ResponseHead, line_of
from kvctl.core.runs.outputs.scan import ScanNotes, read_answers

COUNT = 40
Found = list[tuple[str, Entry]]


def record(name: str, tokens: int = 30) -> bytes:
    return line_of(
        {
            "v": 1,
            "id": name,
            "partition": "B",
            "output_ids": list(range(tokens)),
            "completion_tokens": tokens,
            "prompt_tokens": 7,
            "finish_reason": {"type": "length"},
            "t_done": 5.5,
        }
    )


async def write(folder: Path, names: list[str], part_bytes: int = 1500) -> None:
    """Write answers through a journal with small parts, one commit each, and close it."""
    clock = ManualClock()
    journal = Journal(folder, clock, inline, part_bytes)
    journal.start()
    for name in names:
        journal.append(RESPONSES, record(name))
        await clock.advance(0.2)
    await journal.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(write(tmp_path, [f"r{n}" for n in range(COUNT)]))
    assert len(parts_of(tmp_path, RESPONSES)) > 3
    return tmp_path


def resumed(folder: Path, notes: ScanNotes | None = None) -> Found:
    parts = read_answers(folder, notes or ScanNotes())
    return [(file.name, Entry(*row)) for file, entries in parts for row in entries.rows()]


def from_data(folder: Path) -> Found:
    """What the data alone says."""
    (folder / INDEX).unlink(missing_ok=True)
    return resumed(folder)


def bytes_read() -> int:
    """What this process has read so far by read calls, from the kernel."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def test_the_journal_indexes_what_it_writes_in_every_part(folder: Path) -> None:
    known = read_index(folder)
    parts = parts_of(folder, RESPONSES)
    assert known.is_whole and list(known.parts) == [part.name for part in parts]
    assert all(known.parts[part.name].fits(part.stat()) for part in parts)
    with_index = resumed(folder)
    assert [entry.id for _, entry in with_index] == [f"r{n}" for n in range(COUNT)]
    first = with_index[0][1]
    assert (first.tokens, first.prompt_tokens, first.is_capped, first.t_done) == (30, 7, True, 5.5)
    assert with_index == from_data(folder)


def test_an_entry_says_where_its_line_begins(folder: Path) -> None:
    for name, entry in resumed(folder):
        line = (folder / name).read_bytes()[entry.offset :].split(b"\n")[0]
        assert line + b"\n" == record(entry.id)


def test_a_resume_with_an_index_does_not_read_the_answers_again(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path, ["a", "b"], part_bytes=1 << 30))
    (tmp_path / INDEX).unlink()
    part = tmp_path / "raw_responses.jsonl"
    part.write_bytes(b"".join(record(f"r{n}", 4000) for n in range(200)))
    before = bytes_read()
    assert len(resumed(tmp_path)) == 200
    rebuilt = bytes_read() - before
    before = bytes_read()
    assert len(resumed(tmp_path)) == 200
    again = bytes_read() - before
    assert rebuilt >= part.stat().st_size > 20 * again


async def test_what_the_journal_is_told_of_a_line_is_not_read_from_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path, ManualClock(), inline)
    journal.start()
    head = ResponseHead("told", "B", 4000, FinishHead("length"), 200, 7.5)
    journal.append(RESPONSES, b"no JSON at all\n", head)
    await journal.close()
    (part,) = read_index(tmp_path).parts.values()
    rows = [Entry(*row) for entries in part.entries() for row in entries.rows()]
    assert rows == [Entry("B", "told", 0, 4000, 200, True, 7.5)]


def same_size_edit(part: Path) -> None:
    data = part.read_bytes()
    with part.open("r+b") as opened:  # in place: the inode stays
        opened.write(data.replace(b'"r0"', b'"x0"', 1))


def append(part: Path) -> None:
    with part.open("ab") as opened:
        opened.write(record("appended"))


def cut_last(part: Path) -> None:
    data = part.read_bytes()
    os.truncate(part, data.rfind(b"\n", 0, -1) + 1)


def replaced_by_a_copy(part: Path) -> None:
    facts, data = part.stat(), part.read_bytes()
    part.unlink()
    part.write_bytes(data.replace(b'"r0"', b'"y0"', 1))
    os.utime(part, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def emptied(part: Path) -> None:
    os.truncate(part, 0)


@pytest.mark.parametrize(
    "change",
    [same_size_edit, append, cut_last, replaced_by_a_copy, emptied],
    ids=lambda c: c.__name__,
)
@pytest.mark.parametrize("which", [0, -1], ids=["first part", "newest part"])
def test_a_part_that_changed_is_read_again(
    folder: Path, change: Callable[[Path], None], which: int
) -> None:
    change(parts_of(folder, RESPONSES)[which])
    found = resumed(folder)
    again = resumed(folder)
    assert found == again == from_data(folder)


def test_an_index_cut_or_spoilt_anywhere_changes_nothing(folder: Path) -> None:
    right, whole = resumed(folder), (folder / INDEX).read_bytes()
    for at in range(0, len(whole), 29):
        (folder / INDEX).write_bytes(whole[:at])
        assert resumed(folder) == right
        (folder / INDEX).write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        assert resumed(folder) == right
        assert read_index(folder).is_whole


def test_an_index_of_other_answers_is_not_believed(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    asyncio.run(write(other, [f"o{n}" for n in range(COUNT)]))
    (folder / INDEX).write_bytes((other / INDEX).read_bytes())
    assert resumed(folder) == from_data(folder)


def test_writing_goes_on_in_the_index_that_a_resume_left(folder: Path) -> None:
    for n in range(3):
        resumed(folder)
        asyncio.run(write(folder, [f"more{n}"]))
        known = read_index(folder)
        assert known.is_whole
        assert all(known.parts[p.name].fits(p.stat()) for p in parts_of(folder, RESPONSES))
    assert resumed(folder) == from_data(folder)


def test_answers_that_were_never_indexed_are_found_though_later_ones_were(folder: Path) -> None:
    (folder / INDEX).unlink()
    asyncio.run(write(folder, ["late"], part_bytes=1 << 30))
    assert resumed(folder) == from_data(folder)


def test_damage_stays_in_sight_at_every_resume(folder: Path) -> None:
    part = parts_of(folder, RESPONSES)[0]
    data = part.read_bytes()
    part.write_bytes(data[:50] + b"\x00" + data[51:])
    for _ in range(3):
        notes = ScanNotes()
        found = resumed(folder, notes)
        assert [entry.id for _, entry in found] == [f"r{n}" for n in range(1, COUNT)]
        assert [(d.file, d.line) for d in notes.damages] == [(part.name, 1)]


def test_a_part_that_is_missing_is_damage_and_is_named(folder: Path) -> None:
    (folder / "raw_responses.0002.jsonl").unlink()
    notes = ScanNotes()
    resumed(folder, notes)
    assert [str(d) for d in notes.damages] == ["raw_responses.0002.jsonl: this part is missing"]


def test_an_index_that_cannot_be_written_stops_neither_writing_nor_resuming(tmp_path: Path) -> None:
    (tmp_path / INDEX).mkdir()
    asyncio.run(write(tmp_path, ["a", "b"]))
    assert [entry.id for _, entry in resumed(tmp_path)] == ["a", "b"]


def test_many_small_blocks_are_joined(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvctl.core.runs.outputs.scan._MANY_BLOCKS", 5)
    before = resumed(folder)
    assert read_index(folder).blocks == len(parts_of(folder, RESPONSES))
    assert resumed(folder) == before
