"""Inputs against a real server: what would kill it is never sent; turns follow each other."""

import json
from pathlib import Path

import pytest
from tests.engine.launch import engine_home
from tests.engine.server import EngineServer
from tests.engine.test_runs import driving, finished
from tests.engine.tiny_model import VOCABULARY

from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.opening.verify import verify

pytestmark = pytest.mark.engine


def write_run(folder: Path, name: str, rows: list[dict[str, object]], more: str = "") -> Path:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / f"{name}.toml"
    path.write_text(
        f'[run]\nname = "{name}"\noutput = "{name}"\nconcurrency = 8\n'
        f'tokenizer = "{engine_home().model}"\n'
        f"[sampling]\nmax_new_tokens = 24\ntemperature = 0.0\n"
        f'[[partition]]\nname = "B"\ninput = "{name}.jsonl"\n{more}\n'
    )
    return path


def records(folder: Path, name: str) -> dict[str, dict[str, object]]:
    lines = (folder / name / "raw_responses.jsonl").read_text().splitlines()
    found = {str(record["id"]): record for record in map(json.loads, lines)}
    assert len(found) == len(lines)
    return found


async def test_an_id_outside_the_vocabulary_is_a_rejected_row_and_the_server_stays_up(
    engine: EngineServer, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [{"id": f"r{n}", "input_ids": [n, 2, 3]} for n in range(20)]
    rows[7]["input_ids"] = [1, VOCABULARY, 3]
    rows[13]["input_ids"] = [1, 151_643, 3]
    path = write_run(tmp_path, "outside", rows)
    async with driving(path, engine.url) as driver:
        await finished(driver)
        view = driver.view(0.0)
        assert (view.done, view.skipped, view.failed) == (18, 2, 0)
    skipped = (tmp_path / "outside" / "skipped.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in skipped] == [
        f"token id {VOCABULARY} is outside the vocabulary of {VOCABULARY}",
        f"token id 151643 is outside the vocabulary of {VOCABULARY}",
    ]
    assert engine.process.poll() is None
    assert verify(load_run(path)).is_exact
    again = write_run(tmp_path, "after", [{"id": "a", "input_ids": [1, 2, 3]}])
    async with driving(again, engine.url) as driver:
        await finished(driver)
    assert len(records(tmp_path, "after")) == 1


async def test_conversations_are_made_turn_by_turn_over_a_harvest(
    engine: EngineServer, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {
            "id": f"c{n}",
            "conversations": [
                {"from": speaker, "value": f"{speaker} {n} {turn}"}
                for turn in range(3)
                for speaker in ("human", "gpt")
            ],
        }
        for n in range(6)
    ]
    plain = write_run(tmp_path, "plain", rows, 'turns = "all"')
    async with driving(plain, engine.url) as driver:
        assert driver.view(0.0).total == 18
        await finished(driver)
    cut = write_run(tmp_path, "cut", rows, 'turns = "all"')
    async with driving(cut, engine.url) as driver:
        assert await driver.until(lambda: driver.view(0.0).done >= 5, 60.0)
        driver.hold("restart", "as before a restart")
        await driver.harvest()
        driver.release("restart")
        await finished(driver)
    one, other = records(tmp_path, "plain"), records(tmp_path, "cut")
    assert sorted(one) == sorted(other) and len(one) == 18
    for n in range(6):
        first, second = one[f"c{n}#1"], one[f"c{n}#2"]
        prompt = bytes(i for i in second["input_ids"] if i < 256)  # type: ignore[attr-defined]
        said = str(first["text"]).encode()
        assert said in prompt and b"gpt" not in prompt
    assert verify(load_run(plain)).is_exact and verify(load_run(cut)).is_exact
