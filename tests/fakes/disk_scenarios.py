"""What is done on a small disk, each in a process of its own; see `tests.fakes.small_disk`."""

import asyncio
import json
from pathlib import Path
from typing import Any

from kvctl.core.clock import ManualClock
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.opening.verify import verify
from kvctl.core.runs.outputs.journal import RESPONSES, DiskTrouble, Journal, parts_of
from kvctl.core.runs.outputs.records import line_of
from tests.fakes.generator import FakeGenerator
from tests.fakes.runs import answered, ids_rows, inline, write_run
from tests.fakes.small_disk import SMALL, SmallDisk

Found = dict[str, Any]


def record(name: str, size: int) -> bytes:
    return line_of({"v": 1, "id": name, "partition": "B", "text": "x" * size})


def ids_on_disk(folder: Path) -> list[str]:
    """Every id, by json alone; a line that is not whole fails."""
    files = parts_of(folder, RESPONSES)
    return [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]


async def journal_fills_up(disk: SmallDisk) -> Found:
    """Write until the disk is full, wait, make room."""
    clock, said = ManualClock(), list[str | None]()
    journal = Journal(disk.folder, clock, inline, on_trouble=said.append)
    journal.start()
    journal.append(RESPONSES, record("first", 1000))
    await clock.advance(1)
    waiting = [journal.append(RESPONSES, record(n, SMALL // 2)) for n in ("a", "b", "c")]
    await clock.advance(30)
    full: Found = {
        "pending": journal.pending,
        "durable": sum(w.done() for w in waiting),
        "ids": ids_on_disk(disk.folder),
        "said": list(said),
    }
    disk.grow()
    await clock.advance(6)
    await journal.close()
    return {
        "refusal": disk.refusal,
        "folder": str(disk.folder),
        "full": full,
        "durable": sum(w.done() for w in waiting),
        "ids": ids_on_disk(disk.folder),
        "said": said,
    }


async def journal_closes_full(disk: SmallDisk) -> Found:
    """Close while the disk is full."""
    clock = ManualClock()
    journal = Journal(disk.folder, clock, inline)
    journal.start()
    journal.append(RESPONSES, record("fits", 1000))
    await clock.advance(1)
    journal.append(RESPONSES, record("a", SMALL))
    try:
        await journal.close()
    except DiskTrouble as error:
        return {"said": str(error), "refusal": disk.refusal, "ids": ids_on_disk(disk.folder)}
    return {"said": ""}


ROWS, TOKENS = 60, 600


async def run_fills_up(disk: SmallDisk) -> Found:
    """A whole run whose answers fit ten times over, but not at first."""
    write_run(disk.folder, {"B": ids_rows(ROWS)}, concurrency=6, tokens=TOKENS)
    clock = ManualClock()
    server = FakeGenerator(clock, speed=300.0)
    driver = RunDriver(load_run(disk.folder / "run.toml"), clock, [lambda: server], offload=inline)
    await driver.open()
    driver.start()
    await clock.advance(120)
    pump = driver._pump
    assert pump is not None
    view = driver.view(clock.monotonic())
    full: Found = {
        "state": str(view.state),
        "reason": view.reason,
        "in_memory": pump.journal.pending,
        "in_flight": view.in_flight,
        "asked": len(server.requests),
        "answered": answered(disk.folder),
    }
    disk.grow()
    finished = asyncio.ensure_future(driver.finished())
    for _ in range(600):
        if finished.done():
            break
        await clock.advance(1)
    await driver.close()
    report = verify(load_run(disk.folder / "run.toml"))
    return {
        "refusal": disk.refusal,
        "full": full,
        "asked": len(server.requests),
        "answered": answered(disk.folder),
        "is_exact": report.is_exact,
        "problem": report.problem(),
    }


async def run_is_closed_full(disk: SmallDisk) -> Found:
    """kvctld ends while the disk is full; the next one has room."""
    write_run(disk.folder, {"B": ids_rows(ROWS)}, concurrency=6, tokens=TOKENS)
    clock = ManualClock()
    server = FakeGenerator(clock, speed=300.0)
    spec = load_run(disk.folder / "run.toml")
    driver = RunDriver(spec, clock, [lambda: server], offload=inline)
    await driver.open()
    driver.start()
    await clock.advance(120)
    try:
        await driver.close()
        said = ""
    except DiskTrouble as error:
        said = str(error)
    before = answered(disk.folder)
    disk.grow()
    again = RunDriver(spec, clock, [lambda: server], offload=inline)
    await again.open()
    again.start()
    await clock.advance(120)
    await again.close()
    report = verify(spec)
    return {"said": said, "before": before, "is_exact": report.is_exact, "total": report.done}
