"""The index that a run writes: what it is told of each answer is what the answer's line says."""

from pathlib import Path

from tests.fakes.bench import Bench
from tests.fakes.generator import reply_ok
from tests.fakes.runs import ids_rows, write_run

from kvctl.core.ports import GenerateReply, GenerateRequest
from kvctl.core.runs.outputs.index import INDEX, Entry, read_index
from kvctl.core.runs.outputs.scan import ScanNotes, read_answers


def entries(folder: Path) -> list[Entry]:
    found = read_answers(folder / "out", ScanNotes())
    return [Entry(*row) for _, columns in found for row in columns.rows()]


async def finish_and_compare(bench: Bench) -> list[Entry]:
    """End the run; its index, checked against what the data alone gives."""
    for driver in list(bench.open_ones):
        await bench.finish(driver)
        await bench.close(driver)
    assert read_index(bench.folder / "out").is_whole
    indexed = entries(bench.folder)
    (bench.folder / "out" / INDEX).unlink()
    assert indexed == entries(bench.folder)
    return indexed


async def test_answers_continued_capped_and_ended_are_indexed_as_they_are_written(
    bench: Bench,
) -> None:
    texts: list[dict[str, object]] = [{"id": f"t{n}", "prompt": f"say {n}"} for n in range(3)]
    write_run(bench.folder, {"B1": ids_rows(5), "π": texts})
    driver = await bench.begin()
    await bench.clock.advance(2)
    driver.hold("restart", "restart")
    await bench.during(driver.harvest())
    bench.server.judge = lambda r: reply_ok(r, 30, "stop") if r.text else None
    driver.release("restart")
    found = await finish_and_compare(bench)
    assert {(e.partition, e.tokens, e.is_capped) for e in found} >= {
        ("B1", 50, True),
        ("π", 30, False),
    }


async def test_a_count_of_prompt_tokens_that_is_no_number_is_not_known(bench: Bench) -> None:
    def answer(request: GenerateRequest) -> GenerateReply:
        made = reply_ok(request, 3, "stop")
        return GenerateReply(
            200, made.text, made.output_ids, made.finish, {"prompt_tokens": True}, None
        )

    bench.server.judge = answer
    write_run(bench.folder, {"B1": [{"id": "t", "prompt": "say"}]})
    await bench.begin()
    (entry,) = await finish_and_compare(bench)
    assert entry.prompt_tokens is None
