"""Inputs: every format, every bad row with its line, nothing sent before all is checked."""

import gzip
import json
from pathlib import Path

import pytest
from tests.engine.tiny_model import BOS_ID, SPECIAL_TOKENS, write_tiny_model
from tests.fakes.runs import write_rows

from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.runs.run_file import InputFormat, PartitionSpec
from kvctl.core.runs.inputs import json_array, templates
from kvctl.core.runs.inputs.indexing import index_entry
from kvctl.core.runs.inputs.partition import ModelFacts, PartitionIndex
from kvctl.core.runs.inputs.templates import load_renderer, vocabulary_of

PROMPTS = Path(__file__).parents[1] / "data" / "prompts"


def index(
    *inputs: Path, facts: ModelFacts | None = None, spool: Path | None = None, **more: object
) -> PartitionIndex:
    spec = PartitionSpec("B", tuple(map(str, inputs)), **more)  # type: ignore[arg-type]
    (found,) = index_entry(spec, facts or ModelFacts(), spool)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return ModelFacts(load_renderer(folder), vocabulary_of(folder), 8192)


@pytest.mark.parametrize(
    ("file", "format", "needs_model"),
    [
        ("B2-code.prompts.jsonl", InputFormat.PROMPT, False),
        ("B3-math.messages.jsonl", InputFormat.MESSAGES, True),
        ("B4-chat.sharegpt.json", InputFormat.SHAREGPT, True),
        ("B5-code.openai-batch.jsonl", InputFormat.OPENAI_BATCH, True),
    ],
)
def test_the_sample_prompts_are_detected_and_read_whole(
    file: str, format: InputFormat, needs_model: bool, model: ModelFacts, tmp_path: Path
) -> None:
    facts = model if needs_model else ModelFacts()
    found = index(PROMPTS / file, facts=facts, spool=tmp_path)
    text = (PROMPTS / file).read_text()
    rows = json.loads(text) if file.endswith(".json") else list(map(json.loads, text.splitlines()))
    assert found.formats == {str(PROMPTS / file): format}
    assert found.skipped == []
    assert list(found.rows) == [str(row.get("id") or row["custom_id"]) for row in rows]
    first, last = found.load(0), found.load(len(found) - 1)
    assert (first.id, last.id) == (found.id_of(0), found.id_of(len(found) - 1))
    assert (first.input_ids is not None) is needs_model


def test_a_chat_is_rendered_by_the_models_template(model: ModelFacts, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": "a", "messages": [{"role": "user", "content": "hi"}]}]
    found = index(write_rows(tmp_path / "m.jsonl", rows), facts=model)
    user, end, assistant = (
        256 + SPECIAL_TOKENS.index(t) for t in ("<|user|>", "<|end|>", "<|assistant|>")
    )
    assert found.load(0).input_ids == (user, *b"hi", end, assistant)


def test_a_rendered_bos_is_not_doubled(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{{ bos_token }}{{ bos_token }}{{ messages[0]['content'] }}"
    )
    renderer = load_renderer(tmp_path)
    assert renderer is not None
    assert renderer.render([{"role": "user", "content": "x"}], None) == (BOS_ID, ord("x"))


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    )
    renderer = load_renderer(tmp_path)
    assert renderer is not None
    rows = write_rows(
        tmp_path / "m.jsonl", [{"id": "a", "messages": [{"role": "user", "content": "x"}]}]
    )
    found = index(rows, facts=ModelFacts(renderer))
    assert len(found) == 0 and "the chat template refuses it" in found.skipped[0].reason


def test_messages_without_the_extra_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path)
    monkeypatch.setattr(templates, "templates_installed", lambda: False)
    facts = ModelFacts(load_renderer(tmp_path))
    with pytest.raises(RunFileError) as caught:
        index(PROMPTS / "B3-math.messages.jsonl", facts=facts)
    assert "pip install 'kvctl[templates]'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(index(PROMPTS / "B2-code.prompts.jsonl", facts=facts)) > 0


def test_conversations_drop_the_answers_at_their_end(model: ModelFacts, tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    found = index(
        write_rows(tmp_path / "c.jsonl", [{"id": "x", "conversations": turns}]), facts=model
    )
    assert found.formats[str(tmp_path / "c.jsonl")] is InputFormat.CONVERSATIONS
    ids = found.load(0).input_ids or ()
    assert ord("c") in ids and ord("d") not in ids


def test_an_openai_batch_line_brings_its_own_sampling(tmp_path: Path) -> None:
    row: dict[str, object] = {
        "custom_id": "c1",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "hello", "max_tokens": 7, "temperature": 0.0, "stop": ["x"]},
    }
    found = index(
        write_rows(tmp_path / "b.jsonl", [row]), sampling={"max_new_tokens": 50, "top_p": 1}
    )
    assert dict(found.load(0).sampling) == {
        "max_new_tokens": 7,
        "top_p": 1,
        "temperature": 0.0,
        "stop": ["x"],
    }


def test_bad_rows_are_skipped_with_file_line_and_reason(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(
        b'{"id":"ok","prompt":"x"}\n\n'
        b'{"id":"empty","prompt":"  "}\n'
        b'{"id":"torn","prompt":"x\n'
        b"[1,2]\n"
        b'{"id":"other","messages":[]}\n'
        b'{"id":{"a":1},"prompt":"x"}\n'
        b'{"id":"half","prompt":"\\ud83d"}\n'
        b'{"id":"latin","prompt":"\xff"}\n'
        b'{"id":"last","prompt":"y"}'
    )
    found = index(file)
    assert list(found.rows) == ["ok", "last"]
    assert {s.line: s.reason.split(":")[0] for s in found.skipped} == {
        3: "the prompt is empty",
        4: "not valid JSON",
        5: "not a JSON object but list",
        6: "no text under prompt or text or question",
        7: "id must be a text or a whole number, found dict",
        8: "holds half a surrogate pair, which is not valid Unicode",
        9: "not UTF-8 at byte 24 of the line",
    }
    assert {s.file for s in found.skipped} == {str(file)}
    assert found.load(1).text == "y"


def test_token_ids_are_checked_against_vocabulary_and_context(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": "ok", "input_ids": [0, 319]},
        {"id": "outside", "input_ids": [5, 320]},
        {"id": "negative", "input_ids": [-1]},
        {"id": "empty", "input_ids": []},
        {"id": "words", "input_ids": ["a"]},
        {"id": "long", "input_ids": [1] * 80},
    ]
    facts = ModelFacts(vocabulary=320, context_tokens=100)
    found = index(
        write_rows(tmp_path / "i.jsonl", rows), facts=facts, sampling={"max_new_tokens": 30}
    )
    assert list(found.rows) == ["ok"]
    assert [s.reason for s in found.skipped] == [
        "token id 320 is outside the vocabulary of 320",
        "token id -1 is negative",
        "the prompt is empty",
        "input_ids holds something that is not a whole number",
        "too long: 80 prompt + 30 max_new_tokens > 100 tokens of context",
    ]


def test_an_id_that_comes_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    one = write_rows(tmp_path / "1.jsonl", [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "y"}])
    two = write_rows(tmp_path / "2.jsonl", [{"id": "c", "prompt": "x"}, {"id": "a", "prompt": "z"}])
    with pytest.raises(RunFileError) as caught:
        index(tmp_path / "*.jsonl")
    assert f"'a' at {one}:1 and {two}:2" in str(caught.value)


def test_a_missing_id_comes_from_the_content_wherever_the_row_stands(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": "one"}, {"prompt": "two"}]
    forth = index(write_rows(tmp_path / "a.jsonl", rows))
    back = index(write_rows(tmp_path / "b.jsonl", rows[::-1]))
    assert list(forth.rows) == list(back.rows)[::-1]
    assert all(len(name) == 64 for name in forth.rows)
    assert forth.digest == back.digest


def test_the_digest_changes_with_the_content(tmp_path: Path) -> None:
    one = index(write_rows(tmp_path / "a.jsonl", [{"id": "a", "prompt": "x"}]))
    two = index(write_rows(tmp_path / "b.jsonl", [{"id": "a", "prompt": "y"}]))
    assert one.digest != two.digest


def test_packed_files_and_arrays_are_read_at_any_row(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "prompt": "π" * n + str(n)} for n in range(1, 50)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "b.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1))
    for name in ("a.jsonl.gz", "b.json"):
        found = index(tmp_path / name, spool=tmp_path)
        assert [found.load(n).text for n in (48, 0, 7)] == ["π" * 49 + "49", "π1", "π" * 8 + "8"]


def test_a_large_array_is_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "_CHUNK_BYTES", 7)
    rows = [{"id": f"é{n}", "prompt": "日本" * n} for n in range(1, 12)]
    (tmp_path / "b.json").write_text(json.dumps(rows, ensure_ascii=False))
    found = index(tmp_path / "b.json", spool=tmp_path)
    assert [found.load(n).text for n in range(len(found))] == [row["prompt"] for row in rows]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl.gz", gzip.compress(b'{"id":"a","prompt":"x"}\n')[:-9], "damaged or cut gzip"),
        ("a.jsonl.gz", b"not gzip at all", "damaged or cut gzip"),
        ("b.json", b'[{"id":"a","prompt":"x"},', "JSON array is damaged or cut"),
        ("c.jsonl.zst", b"\x28\xb5\x2f\xfd", "c.jsonl.zst"),
    ],
)
def test_a_damaged_container_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunFileError) as caught:
        index(tmp_path / name, spool=tmp_path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_folders_globs_and_files_are_found_in_order_each_once(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", ".hidden.jsonl", "notes.txt"):
        write_rows(tmp_path / name, [{"id": name, "prompt": "x"}])
    found = index(tmp_path, tmp_path / "a*.jsonl", tmp_path / "b.jsonl")
    assert list(found.rows) == ["a.jsonl", "b.jsonl"]


def test_an_input_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="no input at"):
        index(tmp_path / "no*.jsonl")


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"id":"a","prompt":"x"}\r\n{"id":"b","prompt":"y"}\r\n')
    found = index(file)
    assert [found.load(n).text for n in (0, 1)] == ["x", "y"]


def test_the_prompt_key_and_the_chat_wrap_are_explicit(model: ModelFacts, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "q.jsonl", [{"id": "a", "text": "wrong", "ask": "right"}])
    assert index(file, prompt_key="ask").load(0).text == "right"
    wrapped = index(file, prompt_key="ask", as_chat=True, facts=model).load(0)
    assert wrapped.input_ids is not None and wrapped.input_ids[0] >= 256


def test_a_very_long_line_is_read_whole(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    file = write_rows(
        tmp_path / "l.jsonl", [{"id": "a", "prompt": long}, {"id": "b", "prompt": "y"}]
    )
    found = index(file)
    assert found.load(0).text == long and found.load(1).text == "y"
