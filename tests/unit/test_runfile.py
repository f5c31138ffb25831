"""Run files: everything that is wrong is said at once, with file and key."""

from pathlib import Path

import pytest

from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.runs.run import CeilingPolicy
from kvctl.core.domain.runs.run_file import InputFormat, Order, RunFileProblems
from kvctl.core.runs.opening.run_file import load_run

WHOLE = """
[run]
name = "eagle3"
output = "out/eagle3"
server = "http://127.0.0.1:30000/"
concurrency = "auto"
on_ceiling = "pause"
pause_above = 0.95
resume_below = 0.80
done_from = ["old/raw_responses.jsonl"]
scout = 12
[sampling]
max_new_tokens = 8192
temperature = 0.7
[[partition]]
name = "B2"
input = ["data/b2/*.jsonl"]
format = "auto"
weight = 2.0
[[partition]]
name = "B3"
input = "data/b3.jsonl.gz"
max_new_tokens = 2048
sampling = { top_p = 0.9 }
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "run.toml"
    file.write_text(text)
    return file


def test_the_contract_file_is_read_whole(tmp_path: Path) -> None:
    spec = load_run(write(tmp_path, WHOLE))
    assert (spec.name, spec.output) == ("eagle3", str(tmp_path / "out/eagle3"))
    assert spec.servers == ("http://127.0.0.1:30000",)
    assert (spec.concurrency, spec.policy, spec.scout) == (None, CeilingPolicy.PAUSE, 12)
    assert spec.done_from == (str(tmp_path / "old/raw_responses.jsonl"),)
    assert spec.order is Order.WEIGHTS
    two, three = spec.partitions
    assert two.inputs == (str(tmp_path / "data/b2/*.jsonl"),)
    assert (two.format, two.weight) == (InputFormat.AUTO, 2.0)
    assert two.sampling == {"max_new_tokens": 8192, "temperature": 0.7}
    assert three.sampling == {"max_new_tokens": 2048, "temperature": 0.7, "top_p": 0.9}


def test_every_problem_is_one_line_with_file_and_key(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        [run]
        nmae = "x"
        output = 3
        concurrency = "lots"
        on_ceiling = "stop"
        pause_above = 2
        [sampling]
        max_tokens = 100
        n = 4
        [[partition]]
        name = "B1"
        [[partition]]
        name = "B1"
        input = []
        weight = -1
        [extra]
        """,
    )
    with pytest.raises(RunFileProblems) as caught:
        load_run(file)
    lines = caught.value.problems
    assert all(line.startswith(f"{file}: ") for line in lines)
    for key in (
        "run.nmae: this key is not known",
        "run.name: expected a text, it is missing",
        "run.output: expected a text, found 3",
        'run.concurrency: expected "auto" or a whole number from 1',
        'run.on_ceiling: expected "throttle" or "pause" or "notify", found \'stop\'',
        "run.pause_above: expected a number",
        "sampling.max_tokens: expected SGLang's name for it, max_new_tokens",
        "sampling.n: expected 1",
        "partition 1.input: expected",
        "partition 2.input: expected",
        "partition 2.weight: expected",
        "partition 2.name: expected a name of its own",
        "extra: this key is not known",
    ):
        assert sum(key in line for line in lines) == 1, key
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run\n", "not valid TOML"),
        ("", "run.name"),
        ("[run]\nname='x'\noutput='o'\n", "at least one [[partition]]"),
        ("[run]\nname='x'\noutput='o'\n[partition]\nname='B'\n", "two brackets"),
        ("run = 3\n", "[run] must be a table"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RunFileError, match=r"run\.toml") as caught:
        load_run(write(tmp_path, text))
    assert said in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="no such run file"):
        load_run(tmp_path / "no.toml")


def test_without_weights_the_longest_partition_goes_first(tmp_path: Path) -> None:
    text = "[run]\nname='x'\noutput='o'\n[[partition]]\nname='B'\ninput='a'\n"
    assert load_run(write(tmp_path, text)).order is Order.LONGEST


def test_marks_that_cross_are_refused(tmp_path: Path) -> None:
    text = WHOLE.replace("resume_below = 0.80", "resume_below = 0.97")
    with pytest.raises(RunFileError, match="at most pause_above"):
        load_run(write(tmp_path, text))


def test_an_attached_run_needs_no_partitions_and_only_notifies(tmp_path: Path) -> None:
    spec = load_run(write(tmp_path, "[attach]\nfile = 'out/raw.jsonl'\nid = 'key'\n"))
    assert spec.attach is not None
    assert spec.attach.file == str(tmp_path / "out/raw.jsonl")
    assert (spec.attach.id_key, spec.policy) == ("key", CeilingPolicy.NOTIFY)
