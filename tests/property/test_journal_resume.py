"""Whatever bytes a crash leaves, a resume writes every id exactly once."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.generator import FakeGenerator
from tests.fakes.runs import answered, ids_rows, inline, write_run

from kvctl.core.clock import ManualClock
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.opening.verify import verify

ROWS = 9


async def run_for(folder: Path, seconds: float | None) -> None:
    """Drive the run for that long and leave it as a kill would; None: to its end."""
    clock = ManualClock()
    driver = RunDriver(
        load_run(folder / "run.toml"), clock, [lambda: FakeGenerator(clock)], offload=inline
    )
    await driver.open()
    driver.start()
    await clock.advance(seconds if seconds is not None else 60.0)
    pump = driver._pump
    assert pump is not None
    if seconds is None:
        assert driver.gate.is_finished
    tasks = [*pump._tasks]
    if pump.journal._writer is not None:
        tasks.append(pump.journal._writer)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for index in pump.opened.indexes:
        index.close()
    for part in pump.journal._parts.values():
        part.close()
    pump.opened.lock.release()


def cut(folder: Path, file: str, keep: float) -> None:
    """Cut the last line of a file anywhere, its line end included."""
    path = folder / "out" / file
    if not path.exists() or not (data := path.read_bytes()):
        return
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    path.write_bytes(data[: start + int((len(data) - start) * keep)])


kills = st.lists(
    st.tuples(
        st.floats(0.0, 25.0),
        st.floats(0.0, 1.0),
        st.sampled_from(["raw_responses.jsonl", "partials.jsonl", "errors.jsonl"]),
    ),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(kills)
def test_every_id_is_there_once_after_any_kills_and_torn_tails(
    rounds: list[tuple[float, float, str]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder, {"B": ids_rows(ROWS)}, concurrency=3)
        for seconds, keep, file in rounds:
            asyncio.run(run_for(folder, seconds))
            cut(folder, file, keep)
        asyncio.run(run_for(folder, None))
        assert answered(folder) == [f"r{n:03d}" for n in range(1, ROWS + 1)]
        assert verify(load_run(folder / "run.toml")).is_exact


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=30))
def test_damage_inside_is_found_and_never_read_as_an_answer(at: int, junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder, {"B": ids_rows(ROWS)}, concurrency=3)
        asyncio.run(run_for(folder, None))
        path = folder / "out" / "raw_responses.jsonl"
        data = path.read_bytes()
        at %= len(data)
        path.write_bytes(data[:at] + junk + data[at + len(junk) :])
        report = verify(load_run(folder / "run.toml"))
        changed = path.read_bytes() != data
        assert report.done + report.missing_count + report.failed == ROWS
        if not report.is_exact:
            assert changed


WRITER = """
import asyncio, sys
from pathlib import Path
from kvctl.core.clock import RealClock
from kvctl.core.runs.outputs.journal import Journal, RESPONSES
from kvctl.core.runs.outputs.records import line_of

def line(n):
    return line_of({"v": 1, "id": f"r{n}", "partition": "B", "output_ids": list(range(2000)),
                    "completion_tokens": 2000, "finish_reason": {"type": "stop"}})

async def main():
    journal = Journal(Path(sys.argv[1]), RealClock())
    journal.start()
    n = int(sys.argv[2])
    while True:
        await asyncio.gather(*(journal.append(RESPONSES, line(i)) for i in range(n, n + 20)))
        n += 20
        print(n, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 2, 4])
def test_what_a_killed_writer_called_durable_is_on_disk_whole(tmp_path: Path, lines: int) -> None:
    from kvctl.core.runs.outputs.journal import RESPONSES
    from kvctl.core.runs.outputs.records import ResponseHead
    from kvctl.core.runs.outputs.scan import ScanNotes, read_stream, repair_tails

    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), "0"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    promised = 0
    for _ in range(lines):
        promised = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = child.communicate()
    promised = int(rest.split()[-1]) if rest.split() else promised
    notes = ScanNotes()
    repair_tails(tmp_path, notes, stamp="x")
    found = [line.head.id for line in read_stream(tmp_path, RESPONSES, ResponseHead, notes)]
    assert found[:promised] == [f"r{n}" for n in range(promised)]
    assert not notes.damages
    for line in (tmp_path / "raw_responses.jsonl").read_text().splitlines():
        assert len(json.loads(line)["output_ids"]) == 2000
