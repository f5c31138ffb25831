"""What a run keeps in memory of an answer while the disk is slow."""

import gc
import weakref

from tests.fakes.bench import Bench
from tests.fakes.runs import answered, ids_rows, write_run

from kvctl.core.ports import GenerateReply


class Ids(list[int]):
    """Ids that can be watched until they are let go."""


async def test_of_an_answer_that_waits_for_the_disk_only_its_line_is_kept(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(2)}, concurrency=1, tokens=10)
    driver = await bench.begin()
    part = bench.folder / "out" / "raw_responses.jsonl"
    part.mkdir()  # nothing can be written to it
    ids = Ids([1, 2, 3])
    kept = weakref.ref(ids)
    bench.server.scripted.append(GenerateReply(200, "abc", ids, {"type": "stop"}, {}, None))
    del ids
    await bench.clock.advance(1.05)
    driver.release("disk")
    await bench.clock.advance(0.05)
    assert not bench.server.scripted and driver.view(bench.clock.monotonic()).done == 0
    gc.collect()
    assert kept() is None
    part.rmdir()
    await bench.finish(driver)
    assert answered(bench.folder) == ["r001", "r002"]
