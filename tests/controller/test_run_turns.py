"""Conversations made turn by turn: in order, each after the new answers, over any interruption."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.tiny_model import write_tiny_model
from tests.fakes.bench import Bench
from tests.fakes.generator import full_answer, ids_of, reply_error
from tests.fakes.runs import answered, answers

from kvctl.core.ports import GenerateReply, GenerateRequest
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.export.export import ExportRequest, export
from kvctl.core.runs.opening.locating import RunPlace, spec_at
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.opening.verify import verify
from kvctl.core.runs.outputs.shapes import ExportFormat

TOKENS = 20
VOCABULARY = 1000  # the fake server's ids go beyond the tiny tokenizer's
USERS = {"c1": ["hi", "and", "so"], "c2": ["yes"], "c3": ["why", "no"]}
IDS = ["c1", "c1#1", "c1#2", "c2", "c3", "c3#1"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    write_tiny_model(tmp_path / "model")
    rows = [
        {
            "id": name,
            "conversations": [
                turn
                for said in users
                for turn in ({"from": "human", "value": said}, {"from": "gpt", "value": "OLD"})
            ],
        }
        for name, users in USERS.items()
    ]
    (tmp_path / "B.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(
        '[run]\nname = "turns"\noutput = "out"\nconcurrency = 4\ntokenizer = "model"\n'
        f"[sampling]\nmax_new_tokens = {TOKENS}\n"
        '[[partition]]\nname = "B"\ninput = "B.jsonl"\nturns = "all"\n'
    )
    yield made
    for driver in list(made.open_ones):
        await made.close(driver, keep=False)


def rendered(name: str, before: list[str]) -> list[int]:
    """The ids of a conversation up to its next answer, by the tiny model's template."""
    special = {"user": 260, "assistant": 261}
    ids: list[int] = []
    for n, said in enumerate(USERS[name][: len(before) + 1]):
        ids += [special["user"], *said.encode(), 258]
        if n < len(before):
            ids += [special["assistant"], *before[n].encode(), 258]
    return [*ids, special["assistant"]]


def text_of(ids: list[int]) -> str:
    return "".join(chr(97 + token % 26) for token in ids)


def expected() -> dict[str, list[int]]:
    """What an uninterrupted run answers, by row."""
    found: dict[str, list[int]] = {}
    for name, users in USERS.items():
        before: list[str] = []
        for n in range(len(users)):
            output = full_answer(rendered(name, before), TOKENS)
            found[name if n == len(users) - 1 else f"{name}#{n + 1}"] = output
            before.append(text_of(output))
    return found


def check(folder: Path) -> None:
    assert answered(folder) == IDS
    assert {str(r["id"]): r["output_ids"] for r in answers(folder)} == expected()
    report = verify(load_run(folder / "run.toml"))
    assert report.is_exact and report.total == len(IDS)


def exported(folder: Path, format: ExportFormat) -> list[dict[str, Any]]:
    lines: list[bytes] = []

    class Sink:
        def write(self, data: bytes, /) -> None:
            lines.append(data)

    place = RunPlace(folder / "out", spec_at(folder / "run.toml"))
    report = export(place, ExportRequest(format=format), Sink())
    assert report.in_later_turns == (len(IDS) - len(USERS) if format.is_whole else 0)
    return [json.loads(line) for line in lines]


async def begin(bench: Bench) -> RunDriver:
    return await bench.begin(vocabulary=VOCABULARY)


async def test_every_turn_is_made_after_the_new_answers_before_it(bench: Bench) -> None:
    driver = await begin(bench)
    assert driver.in_flight() == 3 and driver.view(0.0).total == len(IDS)
    await bench.finish(driver)
    check(bench.folder)
    asked = [ids_of(request) for request in bench.server.requests]
    assert len(asked) == len(IDS) and not any(b"OLD" in bytes(i % 256 for i in a) for a in asked)
    assert (driver.view(0.0).done, driver.view(0.0).failed) == (len(IDS), 0)


async def test_a_whole_conversation_is_exported_with_all_its_new_answers(bench: Bench) -> None:
    await bench.finish(await begin(bench))
    lines = exported(bench.folder, ExportFormat.CONVERSATIONS)
    made = expected()
    assert [line["id"] for line in lines] == list(USERS)
    assert [turn["content"] for turn in lines[0]["conversations"]] == [
        "hi", text_of(made["c1#1"]), "and", text_of(made["c1#2"]), "so", text_of(made["c1"])
    ]  # fmt: skip
    assert sorted(line["id"] for line in exported(bench.folder, ExportFormat.IDS)) == IDS
    whole = exported(bench.folder, ExportFormat.PREFORMATTED)
    assert [line["id"] for line in whole] == list(USERS)
    assert "<|user|>and<|end|>" in whole[0]["text"]


@pytest.mark.parametrize("seconds", [0.5, 1.9, 2.05, 3.0, 4.05, 5.5])
async def test_a_crash_at_any_time_changes_no_answer(bench: Bench, seconds: float) -> None:
    driver = await begin(bench)
    await bench.clock.advance(seconds)
    bench.crash(driver)
    bench.server.running.clear()
    await bench.finish(await begin(bench))
    check(bench.folder)


async def test_a_harvested_turn_is_continued_and_the_next_follows(bench: Bench) -> None:
    driver = await begin(bench)
    await bench.clock.advance(3.0)
    driver.hold("restart", "as before a restart")
    report = await bench.during(driver.harvest())
    assert report.kept == 2
    await bench.close(driver)
    await bench.finish(await begin(bench))
    assert answered(bench.folder) == IDS
    records = {str(r["id"]): r for r in answers(bench.folder)}
    assert sum("segments" in r for r in records.values()) == 2
    # The text of a continued answer is that of its ids: the next turn stands on the journal's.
    for name, users in USERS.items():
        turns = [*(f"{name}#{n}" for n in range(1, len(users))), name]
        texts = [str(records[turn]["text"]) for turn in turns]
        for n, turn in enumerate(turns):
            assert records[turn]["input_ids"] == rendered(name, texts[:n])


async def test_turns_behind_one_that_failed_count_as_failed_until_it_is_retried(
    bench: Bench,
) -> None:
    second = rendered("c1", [text_of(expected()["c1#1"])])

    def refuse(request: GenerateRequest) -> GenerateReply | None:
        return reply_error(400, "no") if ids_of(request) == second else None

    bench.server.judge = refuse
    driver = await begin(bench)
    await bench.finish(driver)
    assert (driver.view(0.0).done, driver.view(0.0).failed) == (4, 2)
    report = verify(load_run(bench.folder / "run.toml"))
    assert (report.failed, report.missing_count) == (2, 0)
    await bench.close(driver)
    driver = await begin(bench)
    assert (driver.view(0.0).done, driver.view(0.0).failed) == (4, 2)
    bench.server.judge = lambda request: None
    assert driver.retry_failed() == 1
    assert driver.view(0.0).failed == 0
    await bench.finish(driver)
    check(bench.folder)


async def test_earlier_turns_may_be_answered_in_another_file(bench: Bench) -> None:
    old = [{"id": "c1#1", "partition": "B", "text": "from before", "finish_reason": "stop"}]
    (bench.folder / "old.jsonl").write_text("".join(json.dumps(row) + "\n" for row in old))
    run = bench.folder / "run.toml"
    run.write_text(run.read_text().replace("[sampling]", 'done_from = ["old.jsonl"]\n[sampling]'))
    await bench.finish(await begin(bench))
    lines = exported(bench.folder, ExportFormat.MESSAGES)
    assert lines[0]["messages"][1] == {"role": "assistant", "content": "from before"}
    asked = [ids_of(request) for request in bench.server.requests]
    assert rendered("c1", ["from before"]) in asked and len(asked) == len(IDS) - 1


async def test_a_turn_that_outgrows_the_context_fails_and_is_not_sent(bench: Bench) -> None:
    second = len(rendered("c1", [text_of(expected()["c1#1"])]))
    driver = await bench.begin(vocabulary=VOCABULARY, context_tokens=second + TOKENS - 1)
    await bench.finish(driver)
    errors = (bench.folder / "out" / "errors.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["id"] for line in errors) == ["c1#2", "c3"]
    assert "too long" in errors[0] and len(bench.server.requests) == 3
    assert answered(bench.folder) == ["c1#1", "c2", "c3#1"]
