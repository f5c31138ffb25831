"""Wrapped inputs: whatever rows are wrapped in, the same rows come out, from any row again."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tests.engine.tiny_model import write_tiny_model

from kvctl.core.domain.runs.run_file import InputFormat, PartitionSpec, Turns
from kvctl.core.runs.inputs.indexing import index_entry
from kvctl.core.runs.inputs.partition import ModelFacts, PartitionIndex
from kvctl.core.runs.inputs.rows import Row, RowRejected
from kvctl.core.runs.inputs.templates import load_renderer, vocabulary_of

PROMPTS = Path(__file__).parents[1] / "data" / "prompts"
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return ModelFacts(load_renderer(folder), vocabulary_of(folder), 8192)


def lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def sample(file: str) -> Rows:
    text = (PROMPTS / file).read_text()
    return list(json.loads(text) if file.endswith(".json") else map(json.loads, text.splitlines()))


def by_speaker(rows: Rows) -> Rows:
    """ShareGPT rows under SpecForge's keys."""
    roles = {"human": "user", "gpt": "assistant"}
    return [
        {
            "id": row["id"],
            "conversations": [
                {"role": roles[t["from"]], "content": t["value"]} for t in row["conversations"]
            ],
        }
        for row in rows
    ]


SAMPLES: dict[InputFormat, Callable[[], Rows]] = {
    InputFormat.PROMPT: lambda: sample("B2-code.prompts.jsonl"),
    InputFormat.MESSAGES: lambda: sample("B3-math.messages.jsonl"),
    InputFormat.SHAREGPT: lambda: sample("B4-chat.sharegpt.json"),
    InputFormat.CONVERSATIONS: lambda: by_speaker(sample("B4-chat.sharegpt.json")),
    InputFormat.OPENAI_BATCH: lambda: sample("B5-code.openai-batch.jsonl"),
    InputFormat.IDS: lambda: [
        {"id": row["id"], "input_ids": list(row["prompt"].encode())}
        for row in sample("B2-code.prompts.jsonl")
    ],
}


def write_parquet(file: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=50)


def write_arrow(file: Path, rows: Rows) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(str(file), table.schema) as writer:
        writer.write_table(table, max_chunksize=50)


def write_stream(file: Path, rows: Rows) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(str(file), table.schema) as writer:
        writer.write_table(table, max_chunksize=50)


WRAPPINGS: dict[str, Callable[[Path, Rows], object]] = {
    "a.jsonl": lambda file, rows: file.write_bytes(lines(rows)),
    "a.json": lambda file, rows: file.write_text(json.dumps(rows, ensure_ascii=False, indent=1)),
    "a.jsonl.gz": lambda file, rows: file.write_bytes(gzip.compress(lines(rows))),
    "a.jsonl.zst": lambda file, rows: file.write_bytes(zstandard.compress(lines(rows))),
    "b.json.gz": lambda file, rows: file.write_bytes(gzip.compress(json.dumps(rows).encode())),
    "gzip-by-its-bytes": lambda file, rows: file.write_bytes(gzip.compress(lines(rows))),
    "a.parquet": write_parquet,
    "a.arrow": write_arrow,
    "b.arrow": write_stream,
}


def index(
    *inputs: Path, facts: ModelFacts | None = None, spool: Path | None = None, **more: object
) -> PartitionIndex:
    spec = PartitionSpec("B", tuple(map(str, inputs)), **more)  # type: ignore[arg-type]
    (found,) = index_entry(spec, facts or ModelFacts(), spool)
    return found


def given(found: PartitionIndex) -> list[Row]:
    """Every row read again, last one first."""
    return [found.row(n) for n in reversed(range(len(found)))][::-1]


@pytest.mark.parametrize("name", WRAPPINGS)
@pytest.mark.parametrize("format", SAMPLES, ids=str)
def test_every_format_in_every_wrapping_gives_the_same_rows(
    name: str, format: InputFormat, model: ModelFacts, tmp_path: Path
) -> None:
    rows = SAMPLES[format]()[:120]
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(lines(rows))
    file = tmp_path / name
    WRAPPINGS[name](file, rows)
    found = index(file, facts=model, spool=tmp_path)
    expected = index(plain, facts=model)
    assert found.formats == {str(file): format} and found.skipped == []
    assert list(found.rows) == [str(row.get("id") or row["custom_id"]) for row in rows]
    assert given(found) == given(expected)
    assert [found.load(n).input_ids for n in range(0, len(rows), 7)] == [
        expected.load(n).input_ids for n in range(0, len(rows), 7)
    ]
    found.close()
    expected.close()


def test_the_format_that_is_stated_goes_before_the_one_that_is_found(
    model: ModelFacts, tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(lines([{"id": "a", "prompt": "p", "messages": [{"role": "user"}]}]))
    assert len(index(file, format=InputFormat.PROMPT)) == 1
    assert index(file, facts=model).skipped[0].reason == "the messages are empty"


def test_a_folder_that_datasets_saved_is_read_in_its_order(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for n, name in enumerate(names):
        write_stream(folder / name, [{"id": f"r{n}", "prompt": "x", "score": None}])
    (folder / "dataset_info.json").write_text("{}")
    state = {"_data_files": [{"filename": name} for name in reversed(names)]}
    (folder / "state.json").write_text(json.dumps(state))
    assert list(index(folder, spool=tmp_path).rows) == ["r1", "r0"]


def test_tools_in_a_table_are_text(model: ModelFacts, tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    row = {"id": "a", "messages": [{"role": "user", "content": "x"}], "tools": json.dumps(tools)}
    write_parquet(tmp_path / "a.parquet", [row])
    assert given(index(tmp_path / "a.parquet", facts=model, spool=tmp_path))[0].tools == (tools[0],)


def test_a_pattern_may_match_folders(tmp_path: Path) -> None:
    for name in ("b1", "b2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jsonl").write_bytes(lines([{"id": name, "prompt": "x"}]))
    assert list(index(tmp_path / "b*").rows) == ["b1", "b2"]


def test_two_partitions_never_share_a_spool(tmp_path: Path) -> None:
    found: list[PartitionIndex] = []
    for name in ("a/b", "a_b"):
        file = tmp_path / f"{len(found)}.jsonl.gz"
        file.write_bytes(gzip.compress(lines([{"id": name, "prompt": name}])))
        found += index_entry(PartitionSpec(name, (str(file),)), ModelFacts(), tmp_path)
    assert [one.load(0).text for one in found] == ["a/b", "a_b"]


def conversation(*turns: str) -> Rows:
    """u…, a… and s… are turns by who speaks."""
    roles = {"u": "user", "a": "assistant", "s": "system"}
    messages = [{"role": roles[turn[0]], "content": turn} for turn in turns]
    return [{"id": "c", "conversations": messages}]


def test_turn_by_turn_a_conversation_is_a_row_a_user_turn(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(lines(conversation("s", "a0", "u1", "a1", "u2", "a2", "u3", "a3")))
    found = index(file, turns=Turns.ALL, facts=ModelFacts(Refusing()))  # type: ignore[arg-type]
    assert list(found.rows) == ["c#1", "c#2", "c"]
    assert [list(found.later(n)) for n in range(3)] == [[1, 2], [2], []]
    assert [list(found.earlier(n)) for n in range(3)] == [[], [0], [0, 1]]

    def said(row: int, *answers: str) -> list[str]:
        return [m["content"] for m in found.row(row, answers).messages or ()]

    assert said(0) == ["s", "u1"]
    assert said(1, "new 1") == ["s", "u1", "new 1", "u2"]
    assert said(2, "new 1", "new 2") == ["s", "u1", "new 1", "u2", "new 2", "u3"]


class Refusing:
    """A renderer of one token a message, which says no to two turns of the same speaker."""

    has_template = True
    folder = "here"

    def render(self, messages: list[dict[str, str]], _tools: object) -> tuple[int, ...]:
        spoken = [m["role"] for m in messages if m["role"] != "system"]
        if any(one == other for one, other in itertools.pairwise(spoken)):
            raise RowRejected("the chat template refuses it: roles must alternate")
        return tuple(len(m["content"]) for m in messages)


def test_turns_of_the_same_user_get_an_answer_each_so_that_roles_alternate(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(lines(conversation("u1", "u2", "a", "u3")))
    facts = ModelFacts(Refusing())  # type: ignore[arg-type]
    assert index(file, facts=facts).skipped[0].reason.endswith("roles must alternate")
    assert len(index(file, facts=facts, turns=Turns.ALL)) == 3


def test_a_conversation_with_tools_is_not_made_turn_by_turn(tmp_path: Path) -> None:
    rows = conversation("u1")
    rows[0]["conversations"].append({"role": "tool", "content": "42"})
    file = tmp_path / "c.jsonl"
    file.write_bytes(lines(rows))
    found = index(file, turns=Turns.ALL, facts=ModelFacts(Refusing()))  # type: ignore[arg-type]
    assert "uses tools" in found.skipped[0].reason


def test_a_turn_that_becomes_too_long_is_told_when_its_prompt_is_known(tmp_path: Path) -> None:
    class Counting(Refusing):
        def render(self, messages: list[dict[str, str]], _tools: object) -> tuple[int, ...]:
            return (1,) * sum(len(m["content"]) for m in messages)

    file = tmp_path / "c.jsonl"
    file.write_bytes(lines(conversation("u1", "u2")))
    found = index(
        file,
        turns=Turns.ALL,
        sampling={"max_new_tokens": 5},
        facts=ModelFacts(Counting(), None, 20),  # type: ignore[arg-type]
    )
    assert found.load(1, ["x" * 11]).input_ids == (1,) * 15
    with pytest.raises(RowRejected, match=r"too long: 16 prompt \+ 5 max_new_tokens > 20"):
        found.load(1, ["x" * 12])
