"""Damaged and hostile inputs: each gives one clear line, before anything is sent."""

import gzip
import io
import json
import os
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tests.engine.tiny_model import write_tiny_model

from kvctl.core.domain.errors import KvctlError
from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.opening.opening import OpenOptions, open_run
from kvctl.core.runs.opening.run_file import load_run

GOOD = b'{"id":"good","prompt":"x"}\n'
DEEP = 200_000
LONG = 64 << 20


def opened(folder: Path, inputs: str, tokenizer: Path | None = None) -> OpenedRun:
    """Open a run over one input, as a start does before its first request."""
    file = folder / "run.toml"
    model = f"tokenizer = '{tokenizer}'" if tokenizer else ""
    file.write_text(
        f'[run]\nname = "hostile"\noutput = "out"\n{model}\n[sampling]\nmax_new_tokens = 8\n'
        f"[[partition]]\nname = \"B\"\ninput = '{inputs}'\n"
    )
    run = open_run(load_run(file), OpenOptions(vocabulary=320, context_tokens=64), 0.0)
    run.lock.release()
    for index in run.indexes:
        index.close()
    return run


def ids(*values: object) -> bytes:
    return json.dumps({"id": "bad", "input_ids": values}).encode()


ROWS: dict[str, tuple[bytes, str]] = {
    "half a line": (b'{"id":"bad","prompt":"x', "not valid JSON"),
    "two records glued": (b'{"id":"bad","prompt":"x"}{"id":"c","prompt":"y"}', "not valid JSON"),
    "not an object": (b'["bad"]', "not a JSON object but list"),
    "bytes that are no UTF-8": (b'{"id":"bad","prompt":"\xff\xfe"}', "not UTF-8 at byte 22"),
    "half a surrogate pair": (b'{"id":"bad","prompt":"\\ud83d"}', "half a surrogate pair"),
    "zero bytes": (b"\0" * 40, "not valid JSON"),
    "nested too deeply": (
        b'{"id":"bad","prompt":' + b"[" * DEEP + b"]" * DEEP + b"}",
        "nested too deeply",
    ),
    "a number of 10,000 digits": (b'{"id":"bad","prompt":1' + b"0" * 10_000 + b"}", "JSON"),
    "a prompt that is no text": (b'{"id":"bad","prompt":5}', "no text under prompt"),
    "an empty prompt": (b'{"id":"bad","prompt":" \\n "}', "the prompt is empty"),
    "no prompt at all": (b'{"id":"bad","answer":"x"}', "no text under prompt or text or question"),
    "an id that is a list": (b'{"id":["bad"],"prompt":"x"}', "id must be a text or a whole number"),
    "several answers asked": (
        b'{"id":"bad","prompt":"x","sampling_params":{"n":4}}',
        "n above 1 is not supported",
    ),
    "sampling that is no table": (
        b'{"id":"bad","prompt":"x","sampling_params":[1]}',
        "sampling_params is not an object",
    ),
    "a row above 64 MiB": (
        b'{"id":"bad","prompt":"' + b"x" * LONG + b'"}',
        "longer than 64 MiB",
    ),
}

IDS: dict[str, tuple[bytes, str]] = {
    "an id outside the vocabulary": (ids(1, 320), "token id 320 is outside the vocabulary of 320"),
    "a negative id": (ids(1, -1), "token id -1 is negative"),
    "an id beyond every integer": (ids(10**40), "outside the vocabulary"),
    "an id that is a truth value": (ids(1, True), "not a whole number"),
    "an id that is a fraction": (ids(1, 2.0), "not a whole number"),
    "no ids": (ids(), "the prompt is empty"),
    "too long for the context": (ids(*[1] * 60), "too long: 60 prompt + 8 max_new_tokens > 64"),
}

CHATS: dict[str, tuple[dict[str, object], str]] = {
    "no messages": ({"messages": []}, "there are no messages"),
    "a message without a role": ({"messages": [{"content": "x"}]}, "a message has no role"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "only text is supported",
    ),
    "a speaker nobody knows": (
        {"conversations": [{"from": "alien", "value": "x"}]},
        "a turn is from 'alien'",
    ),
    "nothing to answer": (
        {"conversations": [{"role": "assistant", "content": "x"}]},
        "there is no turn to answer",
    ),
    "a template that refuses": (
        {"messages": [{"role": "weird", "content": "x"}]},
        "the chat template refuses it",
    ),
    "tools that are no list": (
        {"messages": [{"role": "user", "content": "x"}], "tools": "{"},
        "tools is text that is not JSON",
    ),
}


def one_rejected(run: OpenedRun, file: Path, line: int, reason: str) -> None:
    """Exactly the bad row is rejected, in one line that names place and reason."""
    (index,) = run.indexes
    (skipped,) = index.skipped
    assert (skipped.file, skipped.line) == (str(file), line)
    assert reason in skipped.reason and "\n" not in skipped.reason
    written = (run.folder / "skipped.jsonl").read_text().splitlines()
    assert [json.loads(row)["line"] for row in written] == [line]
    (said,) = run.lines()
    assert f"1 skipped ({file}:{line}: " in said and "\n" not in said


@pytest.mark.parametrize(("row", "reason"), ROWS.values(), ids=ROWS.keys())
def test_a_bad_row_is_one_line(tmp_path: Path, row: bytes, reason: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(GOOD + row + b"\n" + GOOD.replace(b"good", b"last"))
    run = opened(tmp_path, "in.jsonl")
    assert list(run.indexes[0].rows) == ["good", "last"]
    one_rejected(run, file, 2, reason)


@pytest.mark.parametrize(("row", "reason"), IDS.values(), ids=IDS.keys())
def test_a_bad_row_of_token_ids_is_one_line(tmp_path: Path, row: bytes, reason: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b'{"id":"good","input_ids":[0,319]}\n' + row)
    run = opened(tmp_path, "in.jsonl")
    assert list(run.indexes[0].rows) == ["good"]
    one_rejected(run, file, 2, reason)


@pytest.mark.parametrize(("row", "reason"), CHATS.values(), ids=CHATS.keys())
def test_a_bad_conversation_is_one_line(
    tmp_path: Path, row: dict[str, object], reason: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tiny_model(model)
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'weird' %}{{ raise_exception('no weird') }}"
        "{% endif %}{{ m.content }}{% endfor %}"
    )
    key = next(iter(row))
    good = {"messages": [{"role": "user", "content": "a"}]}
    if key == "conversations":
        sharegpt = "from" in str(row)
        turn = {"from": "human", "value": "a"} if sharegpt else {"role": "user", "content": "a"}
        good = {"conversations": [turn]}
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(good) + "\n" + json.dumps(row) + "\n")
    run = opened(tmp_path, "in.jsonl", tokenizer=model)
    one_rejected(run, file, 2, reason)


def packed(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    return name


def table(folder: Path, cut: int) -> str:
    stream = io.BytesIO()
    pq.write_table(pa.table({"id": ["a"], "prompt": ["x"]}), stream)
    return packed(folder, "t.parquet", stream.getvalue()[:cut])


def arrow(folder: Path) -> str:
    rows = pa.table({"id": ["a"] * 500, "prompt": ["x" * 50] * 500})
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    return packed(folder, "t.arrow", stream.getvalue()[: stream.tell() // 2])


def zipped(folder: Path) -> str:
    with zipfile.ZipFile(folder / "in.jsonl", "w") as archive:
        archive.writestr("in.jsonl", GOOD)
    return "in.jsonl"


def listening(folder: Path) -> str:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(folder / "in.jsonl"))
    return "in.jsonl"


def looped(folder: Path) -> str:
    (folder / "in.jsonl").symlink_to("in.jsonl")
    return "in.jsonl"


def empty_folder(folder: Path) -> str:
    (folder / "d").mkdir()
    return "d"


def piped(folder: Path) -> str:
    os.mkfifo(folder / "in.jsonl")
    return "in.jsonl"


def bomb(folder: Path) -> str:
    return packed(folder, "in.jsonl.gz", gzip.compress(b'{"id":"a","prompt":"' + bytes(200 << 20)))


Make = Callable[[Path], str]
FILES: dict[str, tuple[Make, str]] = {
    "no such file": (lambda f: "none.jsonl", "no input at .*none.jsonl"),
    "an empty folder": (empty_folder, "no input at"),
    "an empty file": (lambda f: packed(f, "in.jsonl", b""), "hold no rows"),
    "blank lines only": (lambda f: packed(f, "in.jsonl", b"\n \n\n"), "hold no rows"),
    "a pipe": (piped, "neither a file nor a folder"),
    "a socket": (listening, "neither a file nor a folder"),
    "a link to itself": (looped, "no input"),
    "a wrong pattern": (lambda f: "**x.jsonl", "cannot be looked up"),
    "cut gzip": (lambda f: packed(f, "a.gz", gzip.compress(GOOD * 99)[:-9]), "damaged or cut gzip"),
    "gzip in name only": (lambda f: packed(f, "a.jsonl.gz", GOOD), "damaged or cut gzip"),
    "spoilt gzip": (
        lambda f: packed(f, "a.gz", gzip.compress(os.urandom(900))[:400] + b"\0" * 600),
        "damaged or cut gzip",
    ),
    "cut zstd": (
        lambda f: packed(f, "a.zst", zstandard.compress(GOOD * 9_000)[:-5]),
        "damaged or cut zstd: it ends within a frame",
    ),
    "zstd in name only": (lambda f: packed(f, "a.jsonl.zst", GOOD), "damaged or cut zstd"),
    "a cut array": (lambda f: packed(f, "a.json", b'[{"id":"a","prompt":"x"},'), "damaged or cut"),
    "two arrays": (
        lambda f: packed(f, "a.json", b'[{"id":"a","prompt":"x"}]\n[{"id":"b","prompt":"y"}]'),
        "ends and something follows it",
    ),
    "an array nested too deeply": (
        lambda f: packed(f, "a.json", b"[" * DEEP + b"]" * DEEP),
        "nested too deeply",
    ),
    "cut parquet": (lambda f: table(f, -20), "damaged or cut parquet"),
    "parquet in name only": (lambda f: packed(f, "t.parquet", GOOD), "damaged or cut parquet"),
    "cut Arrow": (arrow, "damaged or cut Arrow"),
    "a zip archive": (zipped, "a zip archive: unpack it"),
    "UTF-16": (lambda f: packed(f, "a.jsonl", GOOD.decode().encode("utf-16")), "UTF-16"),
    "a table of text": (lambda f: packed(f, "a.csv", b"id,prompt\na,x\n"), "JSON lines"),
    "a pickle": (lambda f: packed(f, "a.jsonl", b"\x80\x04\x95"), "pickle, which is never loaded"),
    "a binary": (lambda f: packed(f, "a.jsonl", bytes(range(128, 256)) * 3), "none of its"),
    "a gzip bomb": (bomb, "none of its 1 rows can be sent: .*longer than 64 MiB"),
    "ids that come twice": (lambda f: packed(f, "a.jsonl", GOOD * 3), "2 ids come twice: 'good'"),
    "keys of no format": (
        lambda f: packed(f, "a.jsonl", b'{"a":1}\n{"a":2}\n'),
        "none of its 2 rows can be sent: .*a.jsonl:1: no format has these keys: a",
    ),
    "messages and no tokenizer": (
        lambda f: packed(f, "a.jsonl", b'{"messages":[{"role":"user","content":"x"}]}\n'),
        "messages need a chat template",
    ),
}


@pytest.mark.parametrize(("make", "said"), FILES.values(), ids=FILES.keys())
def test_a_file_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, make: Make, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = make(tmp_path)
    with pytest.raises(KvctlError) as caught:
        opened(tmp_path, name)
    line = str(caught.value)
    assert re.search(said, line) and "\n" not in line
    assert str(tmp_path / "run.toml") in line and len(line) < 1000


def test_a_bomb_of_rows_costs_no_memory(tmp_path: Path) -> None:
    """A thousand million zero bytes in one zstd line: passed over in pieces."""
    with (tmp_path / "in.jsonl.zst").open("wb") as file:
        packer = zstandard.ZstdCompressor().compressobj()
        for _ in range(1000):
            file.write(packer.compress(bytes(1_000_000)))
        file.write(packer.compress(b"\n" + GOOD) + packer.flush())
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tests.unit.test_hostile_inputs import opened\n"
        "run = opened(Path(sys.argv[1]), 'in.jsonl.zst')\n"
        "print(list(run.indexes[0].rows), run.indexes[0].skipped[0].reason)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    found, peak = done.stdout.splitlines()
    assert found == "['good'] longer than 64 MiB"
    assert int(peak) < 600_000  # KiB; of it Arrow and the row itself
