"""The run driver against a fake server on a manual clock: nothing lost, nothing twice."""

import pytest
from tests.fakes.bench import Bench
from tests.fakes.generator import FakeGenerator, full_answer, reply_error
from tests.fakes.runs import answered, answers, ids_rows, write_run

from kvctl.core.domain.errors import CommandRefused, KvctlError
from kvctl.core.domain.runs.run import PartitionState, RunState
from kvctl.core.ports import GenerateReply, GenerateRequest, TransportFailed
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.opening.verify import verify
from kvctl.core.runs.outputs.folder import ManifestDiffers
from kvctl.core.runs.sending.slots import ServerFacts


async def test_every_row_is_answered_once_and_the_run_finishes(bench: Bench) -> None:
    spec = write_run(bench.folder, {"B1": ids_rows(10), "B2": ids_rows(7)})
    driver = await bench.begin()
    await bench.finish(driver)
    view = driver.view(bench.clock.monotonic())
    assert (view.state, view.done, view.total, view.in_flight) == (RunState.FINISHED, 17, 17, 0)
    assert [p.state for p in view.partitions] == [PartitionState.DONE, PartitionState.DONE]
    assert verify(load_run(spec)).is_exact
    assert bench.server.peak == 4


async def test_a_record_holds_the_prompt_the_ids_and_the_reason(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(1)}, tokens=5)
    await bench.finish(await bench.begin())
    (record,) = answers(bench.folder)
    assert record["output_ids"] == full_answer([1, 2, 3], 5)
    assert record["input_ids"] == [1, 2, 3]
    assert record["finish_reason"] == {"type": "length"}
    assert (record["v"], record["partition"], record["attempt"]) == (1, "B1", 0)
    assert (record["completion_tokens"], record["prompt_tokens"]) == (5, 3)
    assert str(record["rid"]).endswith(".")


async def test_request_ids_have_one_width_and_end_in_a_delimiter(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(12), "B2": ids_rows(3)}, concurrency=15)
    await bench.begin()
    rids = [request.rid for request in bench.server.requests]
    assert len({len(rid) for rid in rids}) == 1
    assert len(set(rids)) == 15
    assert all(rid.endswith(".") for rid in rids)


async def test_lowering_the_target_stops_sending_and_aborts_nothing(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(40)}, concurrency=8)
    driver = await bench.begin()
    driver.set_target(2)
    await bench.clock.advance(1)
    assert driver.in_flight() == 8 and not bench.server.aborted
    await bench.clock.advance(5)
    assert driver.in_flight() == 2 and not bench.server.aborted
    driver.set_target(6)
    await bench.clock.advance(0.1)
    assert driver.in_flight() == 6


async def test_several_holds_stand_side_by_side(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(40)})
    driver = await bench.begin()
    driver.hold("restart", "the server restarts")
    driver.hold("disk", "the disk is full")
    await bench.clock.advance(10)
    view = driver.view(bench.clock.monotonic())
    assert (view.state, view.in_flight) == (RunState.HOLDING, 0)
    assert view.reason == "the server restarts; the disk is full"
    driver.release("disk")
    await bench.clock.advance(1)
    assert driver.in_flight() == 0
    driver.release("restart")
    await bench.clock.advance(0.1)
    assert driver.in_flight() == 4
    assert driver.view(0).state is RunState.RUNNING


async def test_a_pause_lets_what_is_in_flight_end_and_outlives_the_process(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(20)})
    driver = await bench.begin()
    driver.pause("paused by you")
    assert await bench.during(driver.drain(30))
    assert len(answered(bench.folder)) == 4
    await bench.close(driver)
    again = await bench.begin()
    await bench.clock.advance(10)
    view = again.view(bench.clock.monotonic())
    assert (view.state, view.in_flight, view.done) == (RunState.PAUSED, 0, 4)
    again.resume()
    await bench.finish(again)
    assert len(answered(bench.folder)) == 20


async def test_the_policys_resume_does_not_undo_the_operators_pause(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(20)})
    driver = await bench.begin()
    driver.pause("usage 0.96", by="policy")
    driver.pause("paused by you")
    driver.resume(by="policy")
    assert driver.view(0).state is RunState.PAUSED
    driver.pause("usage 0.96", by="policy")
    driver.resume()
    assert driver.view(0).state is RunState.RUNNING


async def test_drain_says_when_time_ran_out(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)})
    driver = await bench.begin()
    driver.pause()
    assert not await bench.during(driver.drain(1.0))


async def test_a_harvest_keeps_every_token_and_the_answer_is_the_uninterrupted_one(
    bench: Bench,
) -> None:
    write_run(bench.folder, {"B1": ids_rows(6)})
    driver = await bench.begin()
    await bench.clock.advance(2)
    driver.hold("restart", "restart")
    report = await bench.during(driver.harvest())
    assert report is not None
    assert (report.asked, report.kept, report.dropped_tokens) == (4, 4, 0)
    assert report.kept_tokens >= 4 * 20
    view = driver.view(bench.clock.monotonic())
    assert (view.partials, view.partial_tokens) == (4, report.kept_tokens)
    driver.release("restart")
    await bench.finish(driver)
    continued = [r for r in bench.server.requests if len(r.input_ids or ()) > 3]
    assert len(continued) == 4
    assert {r.sampling["max_new_tokens"] for r in continued} == {50 - report.kept_tokens // 4}
    for record in answers(bench.folder):
        assert record["output_ids"] == full_answer(list(record["input_ids"]), 50)  # type: ignore[call-overload]
        assert record["prompt_tokens"] == 3
    assert sum("segments" in record for record in answers(bench.folder)) == 4


async def test_a_harvest_outlives_the_process(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)})
    driver = await bench.begin()
    await bench.clock.advance(3)
    await bench.close(driver)
    again = await bench.begin()
    assert sorted(len(r.input_ids or ()) > 30 for r in bench.server.requests[4:]) == [True] * 4
    await bench.finish(again)
    for record in answers(bench.folder):
        assert record["output_ids"] == full_answer(list(record["input_ids"]), 50)  # type: ignore[call-overload]


async def test_a_partial_is_not_continued_under_other_numerics(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)})
    numerics = ["bf16"]

    async def facts(url: str) -> ServerFacts | None:
        return ServerFacts(model="m", numerics=numerics[0])

    driver = await bench.begin(facts=facts)
    await bench.clock.advance(3)
    await bench.close(driver)
    numerics[0] = "fp8"
    again = await bench.begin(facts=facts)
    assert all(len(r.input_ids or ()) == 3 for r in bench.server.requests)
    assert any("other numerics" in text for _, text in bench.events)
    await bench.finish(again)
    assert len(answered(bench.folder)) == 4


async def test_another_model_holds_the_run(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)})
    model = ["one"]

    async def facts(url: str) -> ServerFacts | None:
        return ServerFacts(model=model[0])

    await bench.close(await bench.begin(facts=facts))
    model[0] = "two"
    driver = await bench.begin(facts=facts)
    view = driver.view(0)
    assert view.state is RunState.HOLDING and '"one" then, "two" now' in view.reason
    assert driver.in_flight() == 0


async def test_text_prompts_start_again_after_a_harvest_and_their_tokens_are_counted(
    bench: Bench,
) -> None:
    write_run(bench.folder, {"B1": [{"id": f"t{n}", "prompt": f"say {n}"} for n in range(3)]})
    driver = await bench.begin()
    await bench.clock.advance(2)
    driver.pause()
    report = await bench.during(driver.harvest())
    assert report is not None
    assert (report.kept, report.restarted) == (0, 3)
    assert report.dropped_tokens >= 3 * 20
    assert report.reasons == ("3 sent as text, without a tokenizer",)
    driver.resume()
    await bench.finish(driver)
    assert answered(bench.folder) == ["t0", "t1", "t2"]


async def test_an_abandon_keeps_nothing_and_loses_no_row(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)})
    driver = await bench.begin()
    await bench.clock.advance(2)
    driver.pause()
    report = await bench.during(driver.abandon())
    assert report is not None and (report.kept, report.restarted) == (0, 4)
    assert not (bench.folder / "out" / "partials.jsonl").exists()
    driver.resume()
    await bench.finish(driver)
    assert len(answered(bench.folder)) == 4


async def test_a_server_that_gives_nothing_back_does_not_stop_a_harvest(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)}, tokens=5000)
    bench.server.is_deaf = True
    driver = await bench.begin()
    driver.pause()
    report = await bench.during(driver.harvest(timeout_s=5))
    assert report is not None and report.unanswered == 4
    assert driver.in_flight() == 0
    bench.server.is_deaf = False
    driver.set_target(4)
    driver.resume()
    await bench.clock.advance(0.1)
    assert driver.in_flight() == 4


async def test_an_abort_by_others_is_no_answer_and_its_tokens_are_kept(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(3)})
    driver = await bench.begin()
    await bench.clock.advance(2)
    bench.server.abort_everything()
    await bench.clock.advance(0.2)
    assert answers(bench.folder) == []
    await bench.finish(driver)
    for record in answers(bench.folder):
        assert record["output_ids"] == full_answer(list(record["input_ids"]), 50)  # type: ignore[call-overload]
    assert len(answered(bench.folder)) == 3


async def test_a_server_that_dies_holds_the_run_and_costs_no_row_an_attempt(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(8)}, tokens=500)
    driver = await bench.begin()
    for _ in range(7):
        await bench.clock.advance(20)
        bench.server.kill()
        await bench.clock.advance(0.5)
        view = driver.view(bench.clock.monotonic())
        assert (view.state, view.in_flight) == (RunState.HOLDING, 0)
        await bench.clock.advance(40)
        bench.server.is_up = True
        await bench.clock.advance(20)
        assert driver.in_flight() == 4
    await bench.finish(driver)
    view = driver.view(bench.clock.monotonic())
    assert (view.done, view.failed) == (8, 0)
    assert len(answered(bench.folder)) == 8


async def test_an_event_says_what_kept_a_server_that_answers_again(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(8)}, tokens=500)
    await bench.begin()
    bench.server.kill()
    await bench.clock.advance(0.5)
    bench.server.is_up = True
    await bench.clock.advance(20)
    first, again = [text for kind, text in bench.events if kind == "reached"]
    assert first == f"{bench.server.url} answers"
    assert again.startswith(f"{bench.server.url} answers again (")


async def test_a_dead_server_is_probed_less_and_less_and_never_sent_to(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(8)})
    bench.server.is_up = False
    driver = await bench.begin()
    await bench.clock.advance(300)
    assert bench.server.requests == []
    assert 15 <= bench.server.probes <= 40
    assert driver.view(0).state is RunState.HOLDING


async def test_a_row_that_breaks_the_connection_alone_fails_after_five_attempts(
    bench: Bench,
) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)}, concurrency=1)

    def poison(request: GenerateRequest) -> GenerateReply | None:
        if (request.input_ids or (0,))[0] == 2:
            raise TransportFailed("reset", sent=True)
        return None

    bench.server.judge = poison
    driver = await bench.begin()
    await bench.finish(driver)
    view = driver.view(bench.clock.monotonic())
    assert (view.done, view.failed) == (3, 1)
    tries = [r.rid for r in bench.server.requests if (r.input_ids or (0,))[0] == 2]
    assert len(tries) == 5 and len(set(tries)) == 5
    assert set(tries[:-1]) <= set(bench.server.aborted)


async def test_a_full_queue_costs_nothing_and_frees_the_slot(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(2)}, concurrency=1)
    full = reply_error(503, "The request queue is full.")
    bench.server.scripted = [full] * 12
    driver = await bench.begin()
    await bench.finish(driver)
    view = driver.view(bench.clock.monotonic())
    assert (view.done, view.failed) == (2, 0)
    assert not (bench.folder / "out" / "errors.jsonl").exists()


async def test_a_refused_row_is_an_error_for_good_until_it_is_retried(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(3)}, concurrency=1)
    bench.server.scripted = [reply_error(400, "too long")]
    driver = await bench.begin()
    await bench.finish(driver)
    assert driver.view(0).failed == 1
    await bench.close(driver)
    again = await bench.begin()
    await bench.clock.advance(1)
    assert (again.view(0).state, again.view(0).failed) == (RunState.FINISHED, 1)
    assert again.retry_failed() == 1
    await bench.finish(again)
    assert (again.view(0).failed, again.view(0).done) == (0, 3)
    assert verify(again.spec).is_exact


async def test_a_server_that_refuses_every_row_holds_the_run(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(100)})
    bench.server.judge = lambda request: reply_error(400, "unknown field `foo`")
    driver = await bench.begin()
    await bench.clock.advance(30)
    view = driver.view(bench.clock.monotonic())
    assert view.state is RunState.HOLDING and "unknown field `foo`" in view.reason
    assert view.failed <= 24


async def test_a_key_that_is_refused_holds_the_run_and_fails_no_row(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(10)})
    bench.server.judge = lambda request: reply_error(401, "Unauthorized")
    driver = await bench.begin()
    await bench.clock.advance(30)
    assert (driver.view(0).state, driver.view(0).failed) == (RunState.HOLDING, 0)
    bench.server.judge = lambda request: None
    driver.resume()
    await bench.finish(driver)
    assert driver.view(0).done == 10


async def test_a_server_that_fails_with_500_burns_no_row_and_is_tried_with_few(
    bench: Bench,
) -> None:
    write_run(bench.folder, {"B1": ids_rows(60)}, concurrency=20)
    bench.server.judge = lambda request: reply_error(500, "boom")
    driver = await bench.begin()
    await bench.clock.advance(120)
    view = driver.view(bench.clock.monotonic())
    assert (view.state, view.failed) == (RunState.HOLDING, 0)
    assert "boom" in view.reason
    assert len(bench.server.requests) < 60
    bench.server.judge = lambda request: None
    await bench.clock.advance(120)
    assert bench.server.peak == 20
    await bench.finish(driver)
    assert driver.view(0).done == 60


async def test_one_row_that_always_gives_500_fails_alone(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(6)}, concurrency=2)
    bench.server.judge = lambda request: (
        reply_error(500, "no room") if (request.input_ids or (0,))[0] == 2 else None
    )
    driver = await bench.begin()
    await bench.finish(driver)
    assert (driver.view(0).done, driver.view(0).failed) == (5, 1)


async def test_a_held_server_shows_its_target_and_is_not_sent_to(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(40)})
    driver = await bench.begin()
    driver.set_target(9, is_held=True, note="KV-bound, not submitting")
    await bench.clock.advance(6)
    view = driver.view(bench.clock.monotonic())
    assert (view.state, view.target, view.in_flight) == (RunState.RUNNING, 9, 0)
    assert view.reason == "KV-bound, not submitting"
    driver.set_target(9)
    await bench.clock.advance(0.1)
    assert driver.in_flight() == 9


async def test_a_folder_of_another_client_is_refused_and_not_touched(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)})
    theirs = bench.folder / "out" / "raw_responses.jsonl"
    theirs.parent.mkdir()
    theirs.write_text('{"id": "r001", "text": "torn')
    with pytest.raises(CommandRefused, match=r"not written by this run.*done_from"):
        await bench.begin()
    assert theirs.read_text() == '{"id": "r001", "text": "torn'


async def test_answers_in_another_file_count_as_done(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)}, run='done_from = ["old.jsonl"]')
    old = bench.folder / "old.jsonl"
    old.write_text(
        '{"id": "r001", "text": "good", "finish_reason": "stop"}\n'
        '{"id": "r002", "text": "", "finish_reason": "abort"}\n'
    )
    driver = await bench.begin()
    assert driver.view(0).done == 1
    await bench.finish(driver)
    assert answered(bench.folder) == ["r002", "r003", "r004"]
    report = verify(driver.spec)
    assert report.is_exact and (report.done, report.elsewhere) == (4, 1)


async def test_an_unwritable_output_is_one_clear_line(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(4)})
    (bench.folder / "out").write_text("a file")
    with pytest.raises(KvctlError, match="cannot be written") as caught:
        await bench.begin()
    assert "\n" not in str(caught.value)


async def test_an_id_the_server_still_knows_gets_another(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(1)})
    bench.server.scripted = [reply_error(400, "Duplicate request ID detected: x")]
    driver = await bench.begin()
    await bench.finish(driver)
    first, second = (r.rid for r in bench.server.requests)
    assert first != second
    assert driver.view(0).failed == 0


async def test_empty_answers_are_tried_again_and_then_fail(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(1)})
    bench.server.length = lambda request: 0
    driver = await bench.begin()
    await bench.finish(driver)
    assert (driver.view(0).done, driver.view(0).failed) == (0, 1)
    assert len(bench.server.requests) == 5


async def test_a_crash_loses_only_what_was_in_flight(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(30)})
    for seconds in (3.0, 7.3, 11.1):
        driver = await bench.begin()
        await bench.clock.advance(seconds)
        before = answered(bench.folder)
        bench.crash(driver)
        assert answered(bench.folder) == before
        bench.server.running.clear()
    driver = await bench.begin()
    await bench.finish(driver)
    assert answered(bench.folder) == [f"r{n:03d}" for n in range(1, 31)]


async def test_two_servers_are_filled_by_headroom_and_one_goes_on_when_the_other_dies(
    bench: Bench,
) -> None:
    write_run(bench.folder, {"B1": ids_rows(30)}, concurrency=6)
    other = FakeGenerator(bench.clock, url="http://fake:2")
    driver = await bench.begin(bench.server, other)
    assert (driver.in_flight("http://fake:1"), driver.in_flight("http://fake:2")) == (3, 3)
    driver.set_target(1, "http://fake:1")
    other.kill()
    await bench.clock.advance(6)
    assert driver.view(bench.clock.monotonic()).state is RunState.RUNNING
    assert driver.in_flight("http://fake:1") == 1
    other.is_up = True
    await bench.finish(driver)
    assert len(answered(bench.folder)) == 30


async def test_scouts_of_every_partition_come_first(bench: Bench) -> None:
    rows = {"B1": ids_rows(20, 100), "B2": ids_rows(20, 200), "B3": ids_rows(20, 300)}
    write_run(bench.folder, rows, concurrency=6, run="scout = 2\norder = 'file'")
    driver = await bench.begin()
    first = [(r.input_ids or (0,))[0] // 100 for r in bench.server.requests]
    assert sorted(first) == [1, 1, 2, 2, 3, 3]
    await bench.clock.advance(5.2)
    states = [p.state for p in driver.view(bench.clock.monotonic()).partitions]
    assert states == [PartitionState.OPEN, PartitionState.SCOUTED, PartitionState.SCOUTED]


async def test_weights_share_the_slots_and_change_live(bench: Bench) -> None:
    rows = {"B1": ids_rows(200, 1000), "B2": ids_rows(200, 2000)}
    write_run(bench.folder, rows, concurrency=8, run="scout = 0")
    driver = await bench.begin()
    driver.set_weights({"B1": 3, "B2": 1})
    await bench.clock.advance(40)
    done = {p.name: p.done for p in driver.view(bench.clock.monotonic()).partitions}
    assert done["B2"] > 0
    assert 2.0 < (done["B1"] - 8) / done["B2"] < 4.0
    with pytest.raises(CommandRefused, match="no partition B9: there are B1, B2"):
        driver.set_weights({"B9": 1})


async def test_other_sampling_is_refused_on_resume_unless_forced(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(8)})
    driver = await bench.begin()
    await bench.clock.advance(6)
    await bench.close(driver)
    write_run(bench.folder, {"B1": ids_rows(8)}, tokens=60)
    with pytest.raises(ManifestDiffers, match=r"sampling B1.*50.*then.*60.*now"):
        await bench.begin()
    again = await bench.begin(force=True)
    await bench.finish(again)
    assert len(answered(bench.folder)) == 8


async def test_a_second_run_on_a_folder_is_refused_with_the_pid(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(8)})
    await bench.begin()
    with pytest.raises(CommandRefused, match=r"another run writes to it \(pid \d+\)"):
        await bench.begin()


async def test_nothing_is_sent_when_an_input_cannot_be_used(bench: Bench) -> None:
    write_run(bench.folder, {"B1": [*ids_rows(2), *ids_rows(1)], "B2": ids_rows(2)})
    with pytest.raises(Exception, match="come twice"):
        await bench.begin()
    assert bench.server.requests == []
    write_run(bench.folder, {"B1": ids_rows(2), "B2": ids_rows(2)})
    await bench.begin()


async def test_the_view_knows_lengths_rates_and_the_end(bench: Bench) -> None:
    write_run(bench.folder, {"B1": ids_rows(80)})
    driver = await bench.begin()
    view = driver.view(bench.clock.monotonic())
    assert view.remaining_s is None and view.partitions[0].mean_tokens is None
    assert view.effective_tokens_per_s.value is None
    await bench.clock.advance(50.5)
    view = driver.view(bench.clock.monotonic())
    part = view.partitions[0]
    assert (part.done, part.mean_tokens, part.length_capped) == (40, 50.0, 40)
    assert view.effective_tokens_per_s.value == pytest.approx(40, rel=0.05)
    assert view.effective_tokens_per_s.source == "journal, last 51 s"
    assert view.remaining_s == pytest.approx(50, rel=0.1)
    assert view.held_tokens_mean == 3 + 25
    assert view.mean_answer_s == pytest.approx(5.0)
    assert view.disk_free_bytes is not None
