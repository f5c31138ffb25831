"""`kvctl run export` and `run verify` as they are typed, without any kvctld."""

import gzip
import io
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import KVCTL, Kvctl, Said
from tests.fakes.answers import answer, write_journal
from tests.fakes.runs import ids_rows, write_run

from kvctl.core.cli import exporting
from kvctl.core.cli.parser import build_parser
from kvctl.core.cli.session import Session
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.domain.errors import KvctlError

Here = Callable[..., Said]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Carry out one command line in this process: as `kvctl` does it, without the start of one."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Said:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        try:
            session = Session(build_parser().parse_args(words), {}, stdout=out, stderr=err)
            verb = getattr(exporting, session.words.function.removeprefix("exporting:"))
            status = verb(session)
        except KvctlError as error:
            status = error.exit_status
            print(f"kvctl: {error}", file=err)
        out.flush()
        assert isinstance(out.buffer, io.BytesIO)
        return Said(status, out.buffer.getvalue().decode(), err.getvalue())

    return run


@pytest.fixture
def folder(tmp_path: Path, paths: DaemonPaths) -> Path:
    """A run of four rows of which three are answered, one of them twice."""
    write_run(tmp_path, {"B2": ids_rows(2), "B1": ids_rows(2)})
    records = [answer("r001", "B1"), answer("r002", "B2"), answer("r001", "B2")]
    write_journal(tmp_path, [*records, answer("r001", "B1")])
    return tmp_path


def complete(folder: Path) -> Path:
    """The journal of the same run with every row answered once."""
    rows = [("B1", "r001"), ("B2", "r002"), ("B2", "r001"), ("B1", "r002")]
    return write_journal(folder, [answer(name, partition) for partition, name in rows])


def test_answers_go_to_stdout_and_the_summary_to_stderr(kvctl: Kvctl, folder: Path) -> None:
    said = kvctl("run", "export", "run.toml")
    assert said.status == 0
    found = [json.loads(line) for line in said.out.splitlines()]
    assert [(f["partition"], f["id"]) for f in found] == [
        ("B2", "r001"),
        ("B2", "r002"),
        ("B1", "r001"),
    ]
    assert said.err == (
        "kvctl: exported 3 of 4 rows as ids to stdout (B2 2, B1 1); "
        "left out: 1 not answered, 1 duplicates\n"
    )


def test_no_kvctld_is_started_where_the_run_is_named(
    kvctl: Kvctl, folder: Path, paths: DaemonPaths
) -> None:
    assert kvctl("run", "export", "out").status == 0
    assert kvctl("run", "verify", "out").status == 1
    assert not paths.state.exists()


def test_a_file_is_written_packed_by_its_name_and_kept(here: Here, folder: Path) -> None:
    words = ("run", "export", "run.toml", "-o", "data.jsonl.gz")
    assert here(*words).status == 0
    before = (folder / "data.jsonl.gz").read_bytes()
    assert len(gzip.decompress(before).splitlines()) == 3
    assert "--force replaces it" in here(*words, "--partition", "B1").one_error(4)
    assert (folder / "data.jsonl.gz").read_bytes() == before
    assert here(*words, "--partition", "B1", "--force").status == 0
    assert len(gzip.decompress((folder / "data.jsonl.gz").read_bytes()).splitlines()) == 1


def test_the_summary_is_one_json_document(here: Here, folder: Path) -> None:
    said = here(
        *("run", "export", "run.toml", "--json", "-o", "a.jsonl"),
        *("--where", "completion_tokens < 8000 and id == 'r001'"),
    )
    found = json.loads(said.out)
    assert (said.status, said.err) == (0, "")
    assert found["output"] == str(folder / "a.jsonl")
    assert (found["written"], found["rows"], found["unanswered"]) == (2, 4, 1)
    assert (found["duplicates"], found["filtered"]) == (1, 1)
    assert found["partitions"][0] == {"name": "B2", "rows": 2, "answered": 2, "written": 1}
    assert "stdout" in here("run", "export", "run.toml", "--json").one_error(2)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["run.toml", "--where", "finish = 'stop'"], 2, "use == to compare; allowed:"),
        (["run.toml", "--partition", "B7"], 2, "there are: B2, B1"),
        (["run.toml", "--format", "csv"], 2, "'csv'"),
        (["none.toml"], 2, "none.toml: no such run file"),
        (["."], 2, "no manifest.json in it"),
        (["run.toml", "-o", "none/a.jsonl"], 2, "there is no such folder"),
        (["run.toml", "-o", "out"], 2, "is a folder"),
        (["run.toml", "-o", "out/raw_responses.0002.jsonl"], 4, "is read as a file of the run"),
        (["run.toml", "-o", "out/raw_responses.jsonl", "--force"], 4, "a file of the run"),
        (["run.toml", "-o", "out/manifest.json", "--force"], 4, "a file of the run"),
        (["run.toml", "-o", "B1.jsonl", "--force"], 4, "a file of the run"),
        (["run.toml", "-o", "run.toml", "--force"], 4, "a file of the run"),
        (["run.toml", "--format", "messages"], 1, "none of the 3 answers"),
        (["out", "--order", "journal", "--format", "messages"], 2, "messages of the inputs"),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    here: Here, folder: Path, words: list[str], status: int, says: str
) -> None:
    before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    said = here("run", "export", *words)
    assert says in said.one_error(status) and said.out == ""
    assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()} == before


def test_an_input_folder_or_glob_gets_no_new_input(here: Here, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "B1.jsonl").rename(folder / "in" / "B1.jsonl")
    run = folder / "run.toml"
    text = run.read_text()
    for pattern in ("in", "in/*.jsonl"):
        run.write_text(text.replace('"B1.jsonl"', f'"{pattern}"'))
        said = here("run", "export", "run.toml", "-o", "in/out.jsonl")
        assert "a file of the run" in said.one_error(4)


def test_damage_is_refused_with_its_offset_until_accepted(kvctl: Kvctl, folder: Path) -> None:
    file = complete(folder)
    first, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first, b'{"id":"torn{\n', *rest[:-1]]))
    words = ("run", "export", "run.toml", "-o", "a.jsonl")
    line = kvctl(*words).one_error(4)
    assert f"raw_responses.jsonl: line 2 at byte {len(first)}" in line
    assert not (folder / "a.jsonl").exists()
    said = kvctl(*words, "--accept-damage")
    assert said.status == 0 and "1 not answered, 1 damaged" in said.err


@pytest.mark.parametrize(
    ("into", "out", "says"),
    [("| head -c 10", '{"id":"r00', ""), ("> /dev/full", "", "No space left on device")],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_stdout_that_takes_no_more_ends_it_in_one_line_at_most(
    folder: Path, into: str, out: str, says: str, unbuffered: str
) -> None:
    command = f"{KVCTL} --state-dir s run export run.toml --where \"id=='r001'\" {into}"
    write_journal(
        folder, [answer("r001", "B1", output_ids=[1] * 200_000, completion_tokens=200_000)]
    )
    done = subprocess.run(
        f"set -o pipefail; {command}",
        shell=True,
        executable="/bin/bash",
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, out)
    assert says in done.stderr and len(done.stderr.splitlines()) == bool(says)


def test_verify_says_0_where_every_id_is_there_once(here: Here, folder: Path) -> None:
    complete(folder)
    said = here("run", "verify", "run.toml")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("every id exactly once: 4 of 4 answered")
    found = json.loads(here("run", "verify", "out", "--json").out)
    assert found["exact"] and (found["total"], found["done"], found["tokens"]) == (4, 4, 12)


def test_verify_says_1_and_names_what_is_missing_or_twice(kvctl: Kvctl, folder: Path) -> None:
    said = kvctl("run", "verify", "run.toml")
    assert said.one_error(1).endswith("is not complete: 1 missing, 1 twice")
    assert "missing: B1 r002" in said.out and "twice: B1 r001" in said.out
    found = kvctl("run", "verify", "run.toml", "--json")
    document = json.loads(found.out)
    assert not document["exact"] and document["missing"] == [["B1", "r002"]]
    assert found.one_error(1) == said.err.strip()


def test_verify_tells_a_torn_tail_from_damage(here: Here, folder: Path) -> None:
    file = complete(folder)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:30])
    said = here("run", "verify", "run.toml")
    assert said.one_error(1).endswith("is not complete: 1 torn last lines")
    assert f"torn: raw_responses.jsonl: line 5 at byte {len(whole)}" in said.out
    file.write_bytes(whole[:30] + b"\n" + whole)
    said = here("run", "verify", "run.toml")
    assert said.one_error(1).endswith("is not complete: 1 damaged lines")
    assert "damaged: raw_responses.jsonl: line 1 at byte 0" in said.out


def test_verify_says_0_once_the_damage_was_accepted(here: Here, folder: Path) -> None:
    file = complete(folder)
    file.write_bytes(b'{"id":"r0\n' + file.read_bytes())
    assert here("run", "verify", "run.toml").status == 1
    manifest = folder / "out" / "manifest.json"
    place = "raw_responses.jsonl@0"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"accepted_damage": [place]}))
    said = here("run", "verify", "run.toml")
    assert (said.status, said.err) == (0, "")
    assert "1 damaged lines, accepted with --accept-damage" in said.out.splitlines()
    assert here("run", "export", "run.toml", "-o", "all.jsonl").status == 0


@pytest.mark.parametrize("stream", ["errors", "partials"])
def test_verify_reads_the_other_files_too(here: Here, folder: Path, stream: str) -> None:
    complete(folder)
    (folder / "out" / f"{stream}.jsonl").write_bytes(b'{"id":"r0\n{"id"\n')
    said = here("run", "verify", "run.toml")
    assert said.one_error(1).endswith("1 damaged lines, 1 torn last lines")


def test_verify_reads_packed_inputs_again(here: Here, folder: Path) -> None:
    complete(folder)
    plain = folder / "B1.jsonl"
    (folder / "B1.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    run = folder / "run.toml"
    run.write_text(run.read_text().replace("B1.jsonl", "B1.jsonl.gz"))
    assert here("run", "verify", "run.toml").status == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such run file"),
        ("[run", "not valid TOML"),
        ('[run]\n[attach]\nfile = "a.jsonl"\n', "another client's"),
        ('[run]\nname = "x"\noutput = "out"\n[[partition]]\nname="B"\ninput="no"\n', "no input"),
    ],
    ids=["missing", "broken", "attached", "no input"],
)
def test_verify_says_2_where_the_run_file_is_no_use(
    here: Here, tmp_path: Path, content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "run.toml").write_text(content)
    assert says in here("run", "verify", "run.toml").one_error(2)


def test_verify_of_a_run_that_never_began_names_every_row(here: Here, tmp_path: Path) -> None:
    write_run(tmp_path, {"B": ids_rows(3)})
    assert here("run", "verify", "run.toml").one_error(1).endswith("3 missing")


def test_hostile_ids_do_not_reach_the_terminal(kvctl: Kvctl, tmp_path: Path) -> None:
    name = "\x1b[2J\r\n\u202ex"
    write_run(tmp_path, {"B": [{"id": name, "input_ids": [1]}]})
    said = kvctl("run", "verify", "run.toml")
    assert "\x1b" not in said.out and "\u202e" not in said.out and said.status == 1
    write_journal(tmp_path, [answer(name, completion_tokens=9)])
    line = kvctl("run", "export", "run.toml").one_error(4)
    assert "\x1b" not in line and "\u202e" not in line


def test_an_unreadable_journal_is_one_line(here: Here, folder: Path) -> None:
    (folder / "out" / "raw_responses.0002.jsonl").mkdir()
    for verb in ("export", "verify"):
        assert "cannot be read: Is a directory" in here("run", verb, "run.toml").one_error(1)


def test_answers_can_be_a_table(here: Here, folder: Path) -> None:
    said = here("run", "export", "run.toml", "-o", "a.parquet", "--where", "partition == 'B2'")
    assert (said.status, said.out) == (0, "")
    assert "exported 2 of 4 rows as ids to" in said.err
    table = pq.read_table(folder / "a.parquet")
    assert table.to_pylist() == [
        {
            "id": f"r00{n}",
            "partition": "B2",
            "input_ids": [n, 2, 3],
            "output_ids": [n, 7, 8],
            "prompt": None,
        }
        for n in (1, 2)
    ]
    assert str(table.schema.field("output_ids").type) == "list<element: int32>"
    assert here("run", "export", "run.toml", "-o", "a.parquet").status == 4
