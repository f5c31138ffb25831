"""What a driver wrote is what an export reads: while the run goes on, and after it."""

import json
from pathlib import Path

from tests.fakes.generator import FakeGenerator
from tests.fakes.runs import answers, ids_rows, inline, write_run

from kvctl.core.clock import ManualClock
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.export.export import ExportRequest, export
from kvctl.core.runs.export.outfile import whole_file
from kvctl.core.runs.opening.locating import RunPlace, spec_at


def exported(folder: Path, name: str) -> list[dict[str, object]]:
    place = RunPlace(folder / "out", spec_at(folder / "run.toml"))
    with whole_file(folder / name) as sink:
        export(place, ExportRequest(), sink)
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


async def test_a_run_is_exported_while_it_goes_on_and_whole_at_its_end(tmp_path: Path) -> None:
    rows = ids_rows(6)
    write_run(tmp_path, {"B": rows}, tokens=20, concurrency=2)
    clock = ManualClock()
    spec = spec_at(tmp_path / "run.toml")
    driver = RunDriver(spec, clock, [lambda: FakeGenerator(clock)], offload=inline)
    await driver.open()
    driver.start()
    await clock.advance(3.0)
    some = exported(tmp_path, "some.jsonl")
    assert 0 < len(some) == len(answers(tmp_path)) < 6
    driver.hold("test", "a planned restart")
    await driver.harvest()
    driver.release("test")
    await clock.advance(30.0)
    await driver.close()
    every = exported(tmp_path, "every.jsonl")
    assert [line["id"] for line in every] == [row["id"] for row in rows]
    assert [line for line in every if line in some] == some
    by_id = {record["id"]: record for record in answers(tmp_path)}
    for line in every:
        assert line["input_ids"] == by_id[line["id"]]["input_ids"]
        assert line["output_ids"] == by_id[line["id"]]["output_ids"]
