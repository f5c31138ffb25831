"""`verify` finds what is missing, twice, damaged or no answer, and modifies nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.generator import FakeGenerator
from tests.fakes.runs import ids_rows, inline, write_run

from kvctl.core.clock import ManualClock
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.opening.opening import OpenOptions
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.opening.verify import VerifyReport, verify
from kvctl.core.runs.outputs.folder import read_skipped


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A finished run of five rows and one that could not be sent."""
    rows: list[dict[str, object]] = [*ids_rows(5), {"id": "bad\u2028", "input_ids": [-3]}]
    write_run(tmp_path, {"B": rows}, tokens=6)
    clock = ManualClock()
    spec = load_run(tmp_path / "run.toml")
    driver = RunDriver(spec, clock, [lambda: FakeGenerator(clock)], offload=inline)
    await driver.open()
    driver.start()
    await clock.advance(10)
    await driver.close()
    return tmp_path


def report(folder: Path) -> VerifyReport:
    before = {f: f.read_bytes() for f in (folder / "out").rglob("*") if f.is_file()}
    found = verify(load_run(folder / "run.toml"))
    assert {f: f.read_bytes() for f in (folder / "out").rglob("*") if f.is_file()} == before
    return found


def lines_of(folder: Path) -> list[str]:
    return (folder / "out" / "raw_responses.jsonl").read_text().splitlines(keepends=True)


def rewrite(folder: Path, lines: list[str]) -> None:
    (folder / "out" / "raw_responses.jsonl").write_text("".join(lines))


def test_a_whole_run_is_exact_and_skipped_rows_are_told(folder: Path) -> None:
    found = report(folder)
    assert found.is_exact
    assert (found.total, found.done, found.skipped, found.tokens) == (5, 5, 1, 30)
    assert found.finish == {"length": 5}
    assert found.lines()[0].startswith("every id exactly once: 5 of 5 answered")


def test_a_row_that_was_skipped_is_known_again_whatever_its_id_holds(folder: Path) -> None:
    assert len(read_skipped(folder / "out")) == 1


def test_the_hash_of_the_set_does_not_depend_on_the_order(folder: Path) -> None:
    before = report(folder).set_sha256
    rewrite(folder, lines_of(folder)[::-1])
    assert report(folder).set_sha256 == before


def test_a_missing_answer_is_named(folder: Path) -> None:
    rewrite(folder, [line for line in lines_of(folder) if '"r003"' not in line])
    found = report(folder)
    assert not found.is_exact and found.missing == (("B", "r003"),)
    assert found.lines()[-1] == "missing: B r003"
    assert replace(found, missing_count=1225).lines()[-1] == "missing: 1,224 more"


def test_an_answer_that_is_there_twice_is_named(folder: Path) -> None:
    rewrite(folder, [*lines_of(folder), lines_of(folder)[0]])
    found = report(folder)
    assert not found.is_exact and found.duplicate_count == 1 and found.done == 5


def test_damage_is_told_with_line_and_offset(folder: Path) -> None:
    lines = lines_of(folder)
    rewrite(folder, [lines[0], lines[1][:40] + "\n", *lines[2:]])
    found = report(folder)
    (damage,) = found.damages
    assert (damage.line, damage.offset) == (2, len(lines[0]))
    assert found.missing_count == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"finish_reason": {"type": "abort", "message": "Aborted"}}, "aborted"),
        ({"output_ids": [], "completion_tokens": 0, "text": ""}, "empty"),
        ({"completion_tokens": 99}, "says 99 tokens, holds 6"),
    ],
)
def test_a_record_that_is_no_answer_is_bad(
    folder: Path, change: dict[str, object], said: str
) -> None:
    lines = lines_of(folder)
    lines[0] = json.dumps({**json.loads(lines[0]), **change}) + "\n"
    rewrite(folder, lines)
    found = report(folder)
    assert not found.is_exact and said in found.bad_records[0]


def test_an_answer_of_no_row_is_counted_apart(folder: Path) -> None:
    lines = lines_of(folder)
    rewrite(folder, [*lines, json.dumps({**json.loads(lines[0]), "id": "stranger"}) + "\n"])
    found = report(folder)
    assert not found.is_exact and (found.unknown_count, found.done) == (1, 5)


async def resume(folder: Path) -> None:
    """Take the run up with its damage accepted, and answer what that left open."""
    clock = ManualClock()
    spec, options = load_run(folder / "run.toml"), OpenOptions(accept_damage=True)
    driver = RunDriver(spec, clock, [lambda: FakeGenerator(clock)], options=options, offload=inline)
    await driver.open()
    driver.start()
    await clock.advance(10)
    await driver.close()


async def test_damage_that_was_accepted_is_told_in_a_line_and_the_run_is_exact(
    folder: Path,
) -> None:
    lines = lines_of(folder)
    rewrite(folder, [lines[0], lines[1][:40] + "\n", *lines[2:]])
    await resume(folder)
    found = report(folder)
    assert found.is_exact and (found.damage_count, found.accepted_damage_count) == (0, 1)
    assert found.lines()[0].startswith("every id exactly once: 5 of 5 answered")
    assert [line for line in found.lines() if "damage" in line] == [
        "1 damaged lines, accepted with --accept-damage"
    ]


async def test_damage_at_another_place_than_the_accepted_one_still_counts(folder: Path) -> None:
    lines = lines_of(folder)
    rewrite(folder, [lines[0], lines[1][:40] + "\n", *lines[2:]])
    await resume(folder)
    lines = lines_of(folder)
    rewrite(folder, [*lines[:3], lines[3][:40] + "\n", *lines[4:]])
    found = report(folder)
    assert not found.is_exact and (found.damage_count, found.accepted_damage_count) == (1, 1)
    assert found.problem() == "1 missing, 1 damaged lines"
