"""Runs against a real SGLang server: throttled, harvested, continued, and killed under."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path

import pytest
from tests.engine.launch import engine_home
from tests.engine.server import EngineServer, PlainEngine

from kvctl.core.clock import RealClock
from kvctl.core.domain.runs.run import RunState
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.opening.verify import VerifyReport, verify
from kvctl.core.runs.sending.harvest import HarvestReport
from kvctl.core.runs.sending.transport import AiohttpGenerator

pytestmark = pytest.mark.engine

PROMPTS = Path(__file__).parents[1] / "data" / "prompts"
B2, B3 = "B2-code.prompts.jsonl", "B3-math.messages.jsonl"
EACH = 30
PATIENCE_S = 120.0


def write_run(folder: Path, name: str, tokens: int, concurrency: int) -> Path:
    """A run over the first prompts of B2 (text) and B3 (messages) at temperature 0."""
    for file in (B2, B3):
        with (PROMPTS / file).open() as lines:
            (folder / file).write_text("".join(islice(lines, EACH)))
    path = folder / f"{name}.toml"
    path.write_text(
        f'[run]\nname = "{name}"\noutput = "{name}"\nconcurrency = {concurrency}\nscout = 2\n'
        f'tokenizer = "{engine_home().model}"\n'
        f"[sampling]\nmax_new_tokens = {tokens}\ntemperature = 0.0\n"
        f'[[partition]]\nname = "B2"\ninput = "{B2}"\n'
        f'[[partition]]\nname = "B3"\ninput = "{B3}"\n'
    )
    return path


async def until(driver: RunDriver, condition: Callable[[], bool]) -> None:
    assert await driver.until(condition, PATIENCE_S)


@contextlib.asynccontextmanager
async def driving(path: Path, url: str) -> AsyncIterator[RunDriver]:
    driver = RunDriver(load_run(path), RealClock(), [lambda: AiohttpGenerator(url)])
    await driver.open()
    driver.start()
    try:
        yield driver
    finally:
        await driver.close(keep=False)


async def finished(driver: RunDriver) -> None:
    await until(driver, lambda: driver.gate.is_finished)


def outputs(folder: Path, name: str) -> dict[tuple[str, str], list[int]]:
    """The answers of a run by json alone; an id that is there twice fails."""
    found: dict[tuple[str, str], list[int]] = {}
    for line in (folder / name / "raw_responses.jsonl").read_text().splitlines():
        record = json.loads(line)
        key = (record["partition"], record["id"])
        assert key not in found
        found[key] = record["output_ids"]
    return found


def done(driver: RunDriver) -> int:
    return driver.view(0.0).done


def whole(report: VerifyReport) -> None:
    assert report.is_exact, "\n".join(report.lines())
    assert (report.total, report.done, report.skipped) == (2 * EACH, 2 * EACH, 0)


async def test_a_throttled_and_harvested_run_gives_the_uninterrupted_answers(
    engine: EngineServer, tmp_path: Path
) -> None:
    plain = write_run(tmp_path, "plain", tokens=120, concurrency=12)
    async with driving(plain, engine.url) as driver:
        await finished(driver)
    cut = write_run(tmp_path, "cut", tokens=120, concurrency=12)
    async with driving(cut, engine.url) as driver:
        reports = await cut_three_times(driver)
    assert sum(report.kept_tokens for report in reports) > 200
    assert sum(report.dropped_tokens + report.unanswered for report in reports) == 0
    assert outputs(tmp_path, "cut") == outputs(tmp_path, "plain")
    whole(verify(load_run(cut)))
    records = (tmp_path / "cut" / "raw_responses.jsonl").read_text()
    continued = [r for r in map(json.loads, records.splitlines()) if "segments" in r]
    assert len(continued) > 5
    for record in continued:
        assert sum(s["n"] for s in record["segments"]) == len(record["output_ids"]) == 120


async def cut_three_times(driver: RunDriver) -> list[HarvestReport]:
    """Drive a run to its end with three harvests and changes of its target."""
    reports: list[HarvestReport] = []
    for goal, target in ((6, 20), (20, 3), (35, 16)):
        await until(driver, lambda goal=goal: done(driver) >= goal)  # type: ignore[misc]
        driver.hold("restart", "as before a restart")
        report = await driver.harvest()
        assert report is not None and driver.in_flight() == 0
        reports.append(report)
        driver.set_target(target)
        driver.release("restart")
    await until(driver, lambda: driver.in_flight() == 16)
    driver.set_target(2)
    await until(driver, lambda: driver.in_flight() == 2)
    driver.set_target(12)
    await finished(driver)
    return reports


async def test_a_server_killed_mid_run_costs_no_row(
    plain_engine: PlainEngine, tmp_path: Path
) -> None:
    server = plain_engine.server
    path = write_run(tmp_path, "killed", tokens=80, concurrency=12)
    async with driving(path, server.url) as driver:
        await until(driver, lambda: done(driver) >= 10)
        server.stop()
        await until(driver, lambda: driver.in_flight() == 0)
        assert driver.view(0.0).state is RunState.HOLDING
        assert done(driver) < 2 * EACH
        await asyncio.to_thread(plain_engine.start_again)
        await finished(driver)
        assert driver.view(0.0).failed == 0
    assert len(outputs(tmp_path, "killed")) == 2 * EACH
    whole(verify(load_run(path)))
