"""The tail against real files: growth, rotation, truncation, bars, big files, foreign bytes."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from kvctl.core.domain.logs.lines import LogKind
from kvctl.core.ports import LogTail
from kvctl.core.probes.log_tail import FileLogTail

DECODE = "[2026-11-02 09:30:00] Decode batch, #running-req: {n}, #queue-req: 0\n"
LAUNCH = "[2026-11-02 09:00:00] server_args=ServerArgs(model_path='/m')\n"
SEARCH_BYTES = 1 << 20
"""How much is searched at once for the last launch."""
preadv = os.preadv
READY = "[2026-11-02 09:01:00] The server is fired up and ready to roll!\n"


def add(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def running(tail: LogTail) -> list[float | None]:
    return [record.number_of("running") for record in tail.read_new()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def test_a_file_that_does_not_exist_yet_is_read_from_its_first_line(path: Path) -> None:
    tail = FileLogTail(str(path))
    assert tail.read_new() == []
    add(path, DECODE.format(n=1) + DECODE.format(n=2))
    records = tail.read_new()
    assert [(r.number, r.number_of("running"), r.is_backlog) for r in records] == [
        (1, 1, False),
        (2, 2, False),
    ]
    add(path, DECODE.format(n=3))
    assert [(r.number, r.number_of("running")) for r in tail.read_new()] == [(3, 3)]
    assert tail.read_new() == []


def test_what_was_there_before_is_backlog_and_what_comes_is_not(path: Path) -> None:
    add(path, DECODE.format(n=1))
    tail = FileLogTail(str(path))
    assert [r.is_backlog for r in tail.read_new()] == [True]
    add(path, DECODE.format(n=2))
    assert [r.is_backlog for r in tail.read_new()] == [False]


def test_an_unfinished_line_waits_for_its_end(path: Path) -> None:
    tail = FileLogTail(str(path))
    tail.read_new()
    line = DECODE.format(n=7)
    add(path, line[:40])
    assert tail.read_new() == []
    add(path, line[40:])
    assert running(tail) == [7]


def test_a_character_cut_between_two_reads_is_whole(path: Path) -> None:
    tail = FileLogTail(str(path))
    tail.read_new()
    data = "é漢\n".encode()
    add(path, data[:3])
    tail.read_new()
    add(path, data[3:])
    assert [r.text for r in tail.read_new()] == ["é漢"]


def test_a_progress_bar_yields_each_state_that_is_reached_and_its_end_once(path: Path) -> None:
    tail = FileLogTail(str(path))
    tail.read_new()
    bar = "Loading safetensors checkpoint shards:  {p}% Completed | {n}/4 [00:09<00:03]\r"
    add(path, bar.format(p=25, n=1) + bar.format(p=50, n=2))
    assert [r.number_of("shards_done") for r in tail.read_new()] == [2]
    assert tail.read_new() == []
    add(path, bar.format(p=75, n=3))
    assert [r.number_of("shards_done") for r in tail.read_new()] == [3]
    add(path, bar.format(p=100, n=4) + "\n")
    assert [r.number_of("shards_done") for r in tail.read_new()] == [4]


def test_rotation_by_rename_loses_no_line(path: Path) -> None:
    tail = FileLogTail(str(path))
    tail.read_new()
    add(path, DECODE.format(n=1))
    tail.read_new()
    add(path, DECODE.format(n=2))
    path.rename(path.with_suffix(".1"))
    add(path, DECODE.format(n=3))
    assert running(tail) == [2, 3]
    add(path, DECODE.format(n=4))
    assert [(r.number, r.number_of("running")) for r in tail.read_new()] == [(2, 4)]


def test_a_writer_that_goes_on_in_the_renamed_file_is_followed(path: Path) -> None:
    tail = FileLogTail(str(path))
    tail.read_new()
    add(path, DECODE.format(n=1))
    tail.read_new()
    old = path.rename(path.with_suffix(".1"))
    path.touch()
    add(old, DECODE.format(n=2))
    assert running(tail) == [2]


def test_truncation_starts_over(path: Path) -> None:
    tail = FileLogTail(str(path))
    add(path, DECODE.format(n=1) * 3)
    tail.read_new()
    path.write_text(DECODE.format(n=2))
    assert running(tail) == [2]


def test_a_file_rewritten_to_more_than_its_old_size_is_noticed(path: Path) -> None:
    add(path, DECODE.format(n=1) * 3)
    tail = FileLogTail(str(path))
    tail.read_new()
    with path.open("r+b") as file:
        file.truncate()
        file.write(DECODE.format(n=9).encode() * 5)
    assert running(tail) == [9] * 5


def test_a_file_that_was_deleted_is_found_again(path: Path) -> None:
    tail = FileLogTail(str(path))
    add(path, DECODE.format(n=1))
    tail.read_new()
    path.unlink()
    assert tail.read_new() == []
    add(path, DECODE.format(n=2))
    assert running(tail) == [2]


def test_a_big_file_is_entered_near_its_end_on_a_whole_line(path: Path) -> None:
    add(path, DECODE.format(n=1) * 100 + DECODE.format(n=5))
    tail = FileLogTail(str(path), attach_bytes=150)
    records = tail.read_new()
    assert [r.number_of("running") for r in records][-1] == 5
    assert all(r.kind is LogKind.DECODE and r.number is None for r in records)
    assert len(records) == 2


def test_an_endless_line_is_kept_in_bounded_size(path: Path) -> None:
    tail = FileLogTail(str(path))
    tail.read_new()
    for _ in range(40):
        add(path, b"x" * 100_000)
        assert tail.read_new() == []
    add(path, "\n" + DECODE.format(n=1))
    records = tail.read_new()
    assert len(records[0].text) == 2000
    assert records[1].number_of("running") == 1


def test_foreign_bytes_do_not_stop_it(path: Path) -> None:
    tail = FileLogTail(str(path))
    tail.read_new()
    add(path, b"\xff\xfe\x00\x1b[2J\n" + DECODE.format(n=1).encode())
    assert [r.number_of("running") for r in tail.read_new()][-1] == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_path_that_is_no_file_is_left_alone(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    assert FileLogTail(str(path)).read_new() == []


def test_the_start_up_of_the_last_launch_is_found_behind_a_long_run(path: Path) -> None:
    first = LAUNCH + "max_total_num_tokens=1, max_running_requests=1\n" + READY
    second = LAUNCH + "max_total_num_tokens=4096, max_running_requests=8\n" + READY
    add(path, first + DECODE.format(n=1) * 10 + second + DECODE.format(n=2) * 100_000)
    records = FileLogTail(str(path)).startup_records()
    assert [r.number_of("pool_tokens") for r in records] == [None, 4096, None]
    assert records[-1].kind is LogKind.READY
    assert all(r.is_backlog for r in records)


def test_the_start_up_of_a_file_from_its_beginning_has_line_numbers(path: Path) -> None:
    add(path, LAUNCH + READY)
    assert [r.number for r in FileLogTail(str(path)).startup_records()] == [1, 2]


@pytest.mark.parametrize("before", range(-60, 61, 3))
def test_a_launch_line_on_the_border_of_two_searched_blocks_is_whole(
    path: Path, before: int
) -> None:
    add(path, DECODE.format(n=1) + LAUNCH + READY)
    size = path.stat().st_size - len(DECODE.format(n=1))
    add(path, b"x" * (SEARCH_BYTES - size + before) + b"\n")
    kinds = [record.kind for record in FileLogTail(str(path)).startup_records()]
    assert kinds == [LogKind.STAGE, LogKind.READY]


def test_the_last_launch_is_found_among_lines_full_of_assignments(path: Path) -> None:
    request = "[2026-11-02 09:30:00] Receive: obj=GenerateReqInput(a=1, b=2, server_arg=3)\n"
    add(path, LAUNCH + READY + LAUNCH + "max_total_num_tokens=4096\n" + READY + request * 50_000)
    records = FileLogTail(str(path)).startup_records()
    assert [r.number_of("pool_tokens") for r in records] == [None, 4096, None]


def test_looking_for_the_last_launch_reads_the_file_once_and_in_small_pieces(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        read.append(preadv(descriptor, buffers, offset))
        return read[-1]

    monkeypatch.setattr(os, "preadv", counted)
    add(path, LAUNCH + READY + DECODE.format(n=1) * 100_000)
    assert len(FileLogTail(str(path)).startup_records()) == 2
    assert max(read) <= SEARCH_BYTES + 64
    assert sum(read) <= path.stat().st_size + 64 * len(read)


def test_a_missing_file_has_no_start_up(path: Path) -> None:
    assert FileLogTail(str(path)).startup_records() == ()


def test_attaching_to_a_gigabyte_reads_its_end_only(path: Path) -> None:
    add(path, LAUNCH)
    with path.open("r+b") as file:
        file.truncate(1 << 30)
    add(path, b"\n" + DECODE.format(n=3).encode())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert running(FileLogTail(str(path)))[-1] == 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
