"""An export holds every accepted answer once, in order, in each format; nothing else."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.engine.tiny_model import BOS_ID, EOS_ID, write_tiny_model
from tests.fakes.answers import answer, lines_of, write_journal
from tests.fakes.runs import ids_rows, write_rows, write_run

from kvctl.core.domain.errors import KvctlError, RunFileError, UsageError
from kvctl.core.domain.runs.run_file import PartitionSpec
from kvctl.core.runs.export.export import ExportOrder, ExportRequest, export
from kvctl.core.runs.export.exported import ExportReport
from kvctl.core.runs.export.outfile import whole_file
from kvctl.core.runs.inputs.columnar import parquet_rows
from kvctl.core.runs.inputs.indexing import index_entry
from kvctl.core.runs.inputs.partition import ModelFacts
from kvctl.core.runs.inputs.templates import load_renderer
from kvctl.core.runs.opening.locating import RunPlace, locate, spec_at
from kvctl.core.runs.outputs.scan import JournalDamaged
from kvctl.core.runs.outputs.shapes import ExportFormat, columns_of

Lines = list[dict[str, object]]


class Taken:
    """A sink that keeps its lines."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes, /) -> None:
        self.data += data


def exported(folder: Path, request: ExportRequest | None = None) -> tuple[Lines, ExportReport]:
    """Export the run of a folder; every line must be whole JSON."""
    request = request or ExportRequest()
    spec = None if request.order is ExportOrder.JOURNAL else spec_at(folder / "run.toml")
    sink = Taken()
    before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    report = export(RunPlace(folder / "out", spec), request, sink)
    assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()} == before
    assert sink.data.count(b"\n") == report.written
    return [json.loads(line) for line in sink.data.splitlines()], report


def as_format(format: str, scratch: Path | None = None) -> ExportRequest:
    return ExportRequest(format=ExportFormat(format), scratch=scratch)


def ids(lines: Lines) -> list[object]:
    return [line["id"] for line in lines]


def test_rows_come_in_input_order_whatever_the_order_of_the_answers(tmp_path: Path) -> None:
    write_run(tmp_path, {"B2": ids_rows(3), "B1": ids_rows(2)})
    write_journal(tmp_path, [answer("r002", "B1"), answer("r003", "B2"), answer("r001", "B2")])
    write_journal(tmp_path, [answer("r001", "B1"), answer("r002", "B2")], part=2)
    lines, report = exported(tmp_path)
    found = [(line["partition"], line["id"]) for line in lines]
    assert found == [
        ("B2", "r001"),
        ("B2", "r002"),
        ("B2", "r003"),
        ("B1", "r001"),
        ("B1", "r002"),
    ]
    assert (report.written, report.rows, report.unanswered) == (5, 5, 0)
    assert report.line("x") == "exported 5 of 5 rows as ids to x (B2 3, B1 2)"


def test_a_line_of_ids_holds_what_was_sampled(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(1)})
    write_journal(tmp_path, [answer("r001")])
    assert exported(tmp_path)[0] == [
        {"id": "r001", "partition": "B", "input_ids": [1, 2, 3], "output_ids": [1, 7, 8]}
    ]


def test_the_first_record_wins_and_duplicates_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(2)})
    again = answer("r001", output_ids=[9, 9, 9])
    write_journal(tmp_path, [answer("r001"), again, answer("r002"), again])
    lines, report = exported(tmp_path)
    assert [line["output_ids"] for line in lines] == [[1, 7, 8], [2, 7, 8]]
    assert report.duplicates == 2
    assert report.line("x").endswith("; left out: 2 duplicates")


def test_the_same_id_in_two_partitions_is_two_rows(tmp_path: Path) -> None:
    write_run(tmp_path, {"B1": ids_rows(1), "B2": ids_rows(1)})
    write_journal(tmp_path, [answer("r001", "B2"), answer("r001", "B1")])
    assert exported(tmp_path)[1].written == 2


def test_rows_without_an_answer_and_answers_without_a_row_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(3)})
    write_journal(tmp_path, [answer("r003"), answer("stranger9"), answer("r003", "B9")])
    lines, report = exported(tmp_path)
    assert ids(lines) == ["r003"]
    assert (report.unanswered, report.unknown) == (2, 2)


def test_skipped_rows_are_not_counted_as_unanswered(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(2)})
    write_journal(tmp_path, [answer("r002")])
    skipped = {"file": str(tmp_path / "B.jsonl"), "line": 1, "partition": "B", "reason": "long"}
    (tmp_path / "out" / "skipped.jsonl").write_text(json.dumps(skipped) + "\n")
    report = exported(tmp_path)[1]
    assert (report.rows, report.unanswered) == (1, 0)


def test_partitions_can_be_chosen_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    write_run(tmp_path, {"B1": ids_rows(1), "B2": ids_rows(1), "B3": ids_rows(1)})
    write_journal(tmp_path, [answer("r001", name) for name in ("B1", "B2", "B3")])
    lines, report = exported(tmp_path, ExportRequest(partitions=("B3", "B1")))
    assert [line["partition"] for line in lines] == ["B1", "B3"]
    assert (report.unknown, report.rows) == (0, 2)
    with pytest.raises(UsageError, match="no partition 'B9'; there are: B1, B2, B3"):
        exported(tmp_path, ExportRequest(partitions=("B9",)))


def test_a_condition_chooses_after_the_first_record_won(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(3)})
    capped = {"type": "length", "length": 3}
    records = [
        answer("r001", finish_reason=capped),
        answer("r001"),
        answer("r002"),
        answer("r003", finish_reason=capped, segments=[{"n": 1}, {"n": 2}]),
    ]
    write_journal(tmp_path, records)
    lines, report = exported(tmp_path, ExportRequest(where="finish == 'stop'"))
    assert ids(lines) == ["r002"]
    assert (report.filtered, report.duplicates, report.unanswered) == (2, 1, 0)
    assert ids(exported(tmp_path, ExportRequest(where="segments > 1"))[0]) == ["r003"]


def test_a_torn_tail_is_left_out_and_told(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(2)})
    file = write_journal(tmp_path, [answer("r001"), answer("r002")])
    file.write_bytes(file.read_bytes()[:-20])
    lines, report = exported(tmp_path)
    assert ids(lines) == ["r001"]
    assert (report.torn, report.damaged, report.unanswered) == (1, 0, 1)


class Growing(Taken):
    """A sink during whose first line the run appends another record."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def write(self, data: bytes, /) -> None:
        if not self.data:
            with self.file.open("ab") as journal:
                journal.write(lines_of([answer("r003")]))
        super().write(data)


def test_a_run_that_goes_on_writing_is_exported_as_it_stood(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"B": ids_rows(3)})
    file = write_journal(tmp_path, [answer("r002"), answer("r001")])
    sink = Growing(file)
    report = export(RunPlace(tmp_path / "out", spec_at(run)), ExportRequest(), sink)
    assert [json.loads(line)["id"] for line in sink.data.splitlines()] == ["r001", "r002"]
    assert (report.written, report.unanswered, report.torn) == (2, 1, 0)


class Replacing(Taken):
    """A sink during whose first line someone rewrites the journal."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def write(self, data: bytes, /) -> None:
        self.file.write_bytes(lines_of([answer("r003"), answer("r001")]))
        super().write(data)


def test_a_journal_that_changes_under_the_export_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"B": ids_rows(3)})
    file = write_journal(tmp_path, [answer("r002"), answer("r001")])
    place = RunPlace(tmp_path / "out", spec_at(run))
    with pytest.raises(KvctlError, match="changed at byte 0 while it was read"):
        export(place, ExportRequest(), Replacing(file))


@pytest.mark.parametrize(
    "bad",
    [
        b'{"id":"r002","part\n',
        lines_of([answer("r002", completion_tokens=9)]),
        lines_of([answer("r002", finish_reason={"type": "abort", "message": "cut"})]),
        lines_of([{"id": "r002", "partition": "B"}]),
    ],
    ids=["half a line", "wrong count", "aborted", "no answer"],
)
def test_damage_inside_is_refused_with_its_offset_until_accepted(
    tmp_path: Path, bad: bytes
) -> None:
    write_run(tmp_path, {"B": ids_rows(3)})
    file = write_journal(tmp_path, [answer("r001")])
    first = file.read_bytes()
    file.write_bytes(first + bad + lines_of([answer("r003")]))
    with pytest.raises(JournalDamaged, match=f"at byte {len(first)}: .*--accept-damage"):
        exported(tmp_path)
    lines, report = exported(tmp_path, ExportRequest(accepts_damage=True))
    assert ids(lines) == ["r001", "r003"]
    assert (report.damaged, report.unanswered) == (1, 1)


def test_a_torn_part_that_is_not_the_last_one_is_damage(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(2)})
    file = write_journal(tmp_path, [answer("r001"), answer("r002")])
    file.write_bytes(file.read_bytes()[:-20])
    write_journal(tmp_path, [answer("r002")], part=2)
    with pytest.raises(JournalDamaged, match="no line end"):
        exported(tmp_path)


def test_an_id_outside_the_vocabulary_is_damage(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(1)})
    write_journal(tmp_path, [answer("r001")], vocabulary=8)
    with pytest.raises(JournalDamaged, match="outside the vocabulary"):
        exported(tmp_path)


CHAT: list[dict[str, object]] = [
    {
        "id": "m1",
        "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi ü"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
    {
        "id": "c2",
        "conversations": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "old"},
        ],
    },
    {
        "id": "s3",
        "conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "old"}],
    },
    {
        "custom_id": "o4",
        "body": {"messages": [{"role": "user", "content": "c"}], "max_tokens": 5},
    },
]


def write_chat_run(folder: Path) -> None:
    write_run(folder, {f"B{n}": [row] for n, row in enumerate(CHAT, 1)})
    names = [str(row.get("id") or row["custom_id"]) for row in CHAT]
    write_journal(folder, [answer(name, f"B{n}") for n, name in enumerate(names, 1)])


@pytest.mark.parametrize(("format", "key"), [("messages",) * 2, ("conversations",) * 2])
def test_turns_are_the_input_with_the_new_answer_at_the_end(
    tmp_path: Path, format: str, key: str
) -> None:
    write_chat_run(tmp_path)
    lines, _ = exported(tmp_path, as_format(format))
    first, *others = lines
    assert first == {
        "id": "m1",
        key: [
            {"role": "system", "content": "be"},
            {"role": "user", "content": "hi ü"},
            {"role": "assistant", "content": "answer 1"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    for line, said in zip(others, "abc", strict=True):
        assert line[key] == [
            {"role": "user", "content": said},
            {"role": "assistant", "content": f"answer {str(line['id'])[1:]}"},
        ]
        assert set(line) == {"id", key}


def test_messages_of_packed_inputs_are_read_through_a_passing_folder(tmp_path: Path) -> None:
    write_chat_run(tmp_path)
    plain = tmp_path / "B1.jsonl"
    (tmp_path / "B1.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    run = tmp_path / "run.toml"
    run.write_text(run.read_text().replace("B1.jsonl", "B1.jsonl.gz"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    lines, _ = exported(tmp_path, as_format("messages", scratch))
    assert ids(lines) == ["m1", "c2", "s3", "o4"]
    assert list(scratch.iterdir()) == []


def test_a_prompt_wrapped_as_a_user_turn_is_a_message_and_raw_text_is_none(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": "p1", "prompt": "why"}]
    run = write_run(tmp_path, {"B1": rows, "B2": rows})
    run.write_text(run.read_text().replace('name = "B1"', 'name = "B1"\nas_chat = true'))
    write_journal(tmp_path, [answer("p1", "B1"), answer("p1", "B2")])
    lines, report = exported(tmp_path, as_format("messages"))
    assert [line["messages"] for line in lines] == [
        [{"role": "user", "content": "why"}, {"role": "assistant", "content": "answer 1"}]
    ]
    assert report.unusable == {"its prompt is raw text or token ids, not messages": 1}
    assert report.warnings()[0].startswith("1 answers left out: its prompt is raw text")


def test_nothing_that_fits_the_format_is_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(2)})
    write_journal(tmp_path, [answer("r001"), answer("r002")])
    with pytest.raises(KvctlError, match="none of the 2 answers can be exported as messages"):
        exported(tmp_path, as_format("messages"))
    with pytest.raises(KvctlError, match=r"none of the 2 answers .* `tokenizer`"):
        exported(tmp_path, as_format("preformatted"))


def test_text_is_prompt_and_answer_where_the_prompt_was_sent_as_text(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": [{"id": "p1", "prompt": "why "}]})
    sent = answer("p1", prompt="why ")
    del sent["input_ids"]
    write_journal(tmp_path, [sent])
    assert exported(tmp_path, as_format("preformatted"))[0] == [
        {"id": "p1", "text": "why answer 1"}
    ]
    lines, report = exported(tmp_path)
    assert lines[0]["input_ids"] is None and lines[0]["prompt"] == "why "
    assert report.text_prompts == 1 and "`prompt` holds them" in report.warnings()[0]


@pytest.fixture
def modelled(tmp_path: Path) -> Iterator[Path]:
    """A run whose answers end with the model's end token, and the model's folder."""
    model = tmp_path / "model"
    model.mkdir()
    write_tiny_model(model)
    renderer = load_renderer(model)
    assert renderer is not None
    write_run(tmp_path, {"B": ids_rows(1)}, run=f'tokenizer = "{model}"')
    record = answer(
        "r001",
        input_ids=[BOS_ID, *b"hi \xc3"],
        output_ids=[*b"\xbc ok", EOS_ID],
        completion_tokens=5,
        text=None,
    )
    write_journal(tmp_path, [record], prompts_as=f"ids of {renderer.sha256}")
    yield tmp_path


def test_text_of_token_ids_keeps_special_tokens_and_characters_across_the_seam(
    modelled: Path,
) -> None:
    lines, _ = exported(modelled, as_format("preformatted"))
    assert lines == [{"id": "r001", "text": "<|bos|>hi ü ok<|eos|>"}]


def test_text_by_another_tokenizer_than_the_runs_is_refused(modelled: Path) -> None:
    write_journal(modelled, [answer("r001")], prompts_as="ids of 0123456789abcdef")
    with pytest.raises(KvctlError, match="not the tokenizer of this run"):
        exported(modelled, as_format("preformatted"))
    assert exported(modelled)[1].written == 1


def test_answers_of_done_from_files_are_exported_where_the_run_has_none(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"id": name, "messages": [{"role": "user", "content": name}]} for name in "abcdef"
    ]
    write_run(tmp_path, {"B": rows}, run='done_from = ["old.jsonl", "before"]')
    write_journal(tmp_path, [answer("b", text="own b")])
    foreign: Lines = [
        {"id": "a", "content": "foreign a", "finish_reason": "stop"},
        {"id": "a", "content": "foreign a again", "finish_reason": "stop"},
        {"id": "b", "content": "foreign b", "finish_reason": "stop"},
        {"id": "c", "content": "foreign c", "finish_reason": "length"},
        {"id": "d", "text": "foreign \ud83d d", "meta_info": {"finish_reason": {"type": "stop"}}},
    ]
    write_rows(tmp_path / "old.jsonl", foreign)
    before = tmp_path / "before"
    before.mkdir()
    capped = answer("e", "B", finish_reason={"type": "length", "length": 3}, text="before e")
    (before / "raw_responses.jsonl").write_bytes(lines_of([capped]))
    lines, report = exported(tmp_path, as_format("messages"))
    said = {line["id"]: line["messages"][-1]["content"] for line in lines}  # type: ignore[index]
    assert said == {"a": "foreign a", "b": "own b", "d": "foreign \ufffd d", "e": "before e"}
    assert (report.elsewhere, report.unanswered) == (3, 2)
    chosen = ExportRequest(ExportFormat.MESSAGES, where="source == 'done_from'")
    assert ids(exported(tmp_path, chosen)[0]) == ["a", "d", "e"]
    chosen = ExportRequest(ExportFormat.MESSAGES, where="finish == 'length'")
    assert ids(exported(tmp_path, chosen)[0]) == ["e"]
    by_ids, report = exported(tmp_path)
    assert ids(by_ids) == ["b", "e"]
    assert report.unusable == {"its answer was kept as text, without token ids": 2}


def test_the_order_of_the_journal_needs_no_inputs(tmp_path: Path) -> None:
    write_run(tmp_path, {"B1": ids_rows(2), "B2": ids_rows(2)})
    records = [answer("r002", "B2"), answer("r002", "B1"), answer("r001", "B2"), answer("r002")]
    write_journal(tmp_path, [*records, answer("r002", "B2")], input_sha256={"B1": "", "B2": ""})
    for name in ("run.toml", "B1.jsonl", "B2.jsonl"):
        (tmp_path / name).unlink()
    lines, report = exported(tmp_path, ExportRequest(order=ExportOrder.JOURNAL))
    found = [(line["partition"], line["id"]) for line in lines]
    assert found == [("B1", "r002"), ("B2", "r002"), ("B2", "r001"), ("B", "r002")]
    assert (report.rows, report.unanswered, report.duplicates) == (None, None, 1)
    with pytest.raises(UsageError, match="messages of the inputs"):
        exported(tmp_path, ExportRequest(ExportFormat.MESSAGES, order=ExportOrder.JOURNAL))


def test_an_output_folder_leads_to_its_run_file(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"B": ids_rows(1)})
    write_journal(tmp_path, [answer("r001")])
    assert spec_at(tmp_path / "out").path == str(run)
    assert locate(run).folder == locate(tmp_path / "out").folder == tmp_path / "out"
    run.write_text(run.read_text().replace('output = "out"', 'output = "other"'))
    with pytest.raises(RunFileError, match=r"writes to .*other now"):
        spec_at(tmp_path / "out")
    with pytest.raises(RunFileError, match=r"no manifest\.json in it"):
        locate(tmp_path)


def test_a_run_that_never_began_is_told(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(1)})
    with pytest.raises(KvctlError, match="no answers yet"):
        exported(tmp_path)


def test_an_attached_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[run]\n[attach]\nfile = "a.jsonl"\n')
    with pytest.raises(RunFileError, match="another client's"):
        spec_at(tmp_path / "run.toml")


def test_text_is_prompt_and_response_apart(tmp_path: Path) -> None:
    write_run(tmp_path, {"B": [{"id": "p1", "prompt": "why "}]})
    sent = answer("p1", prompt="why ")
    del sent["input_ids"]
    write_journal(tmp_path, [sent])
    assert exported(tmp_path, as_format("text"))[0] == [
        {"id": "p1", "partition": "B", "prompt": "why ", "response": "answer 1"}
    ]


@pytest.mark.parametrize("format", ExportFormat)
def test_a_table_holds_what_the_lines_hold(tmp_path: Path, format: ExportFormat) -> None:
    if format.needs_turns:
        write_chat_run(tmp_path)
    else:
        write_run(tmp_path, {"B": [{"id": f"p{n}", "prompt": f"ü {n}"} for n in range(1, 4)]})
        records = [answer(f"p{n}", prompt=f"ü {n}", input_ids=None) for n in (1, 2, 3)]
        write_journal(tmp_path, records)
    lines, _ = exported(tmp_path, ExportRequest(format=format))
    assert len(lines) > 2
    with whole_file(tmp_path / "a.parquet", columns=columns_of(format)) as sink:
        for line in lines:
            sink.write(json.dumps(line).encode() + b"\n")
    rows = list(map(json.loads, parquet_rows(tmp_path / "a.parquet")))
    assert [
        {**row, "tools": json.loads(row["tools"])} if "tools" in row else row for row in rows
    ] == [{key: value for key, value in line.items() if value is not None} for line in lines]


def test_a_table_of_turns_is_an_input_again(tmp_path: Path) -> None:
    write_chat_run(tmp_path)
    lines, _ = exported(tmp_path, as_format("messages"))
    with whole_file(tmp_path / "a.parquet", columns=columns_of(ExportFormat.MESSAGES)) as sink:
        for line in lines:
            sink.write(json.dumps(line).encode() + b"\n")
    spec = PartitionSpec("B", (str(tmp_path / "a.parquet"),))
    (found,) = index_entry(spec, ModelFacts(), tmp_path, is_checked=False)
    rows = [found.row(n) for n in range(len(found))]
    assert [list(row.messages or ()) for row in rows] == [line["messages"] for line in lines]
    assert [list(row.tools or ()) for row in rows] == [line.get("tools", []) for line in lines]


def test_a_table_of_many_megabytes_is_written_in_groups(tmp_path: Path) -> None:
    ids = list(range(3000))
    with whole_file(tmp_path / "a.parquet", columns=columns_of(ExportFormat.IDS)) as sink:
        for n in range(1200):
            sink.write(json.dumps({"id": f"r{n}", "partition": "B", "output_ids": ids}).encode())
    table = pq.ParquetFile(tmp_path / "a.parquet")
    assert table.num_row_groups > 1 and table.metadata.num_rows == 1200
