"""Partitions by file name and by a column: their rows, names, weights and sampling."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvctl.core.domain.errors import KvctlError, RunFileError
from kvctl.core.domain.runs.run_file import Order
from kvctl.core.runs.inputs.partition import ModelFacts, PartitionIndex
from kvctl.core.runs.opening.opening import index_run
from kvctl.core.runs.opening.run_file import load_run


def run(folder: Path, partitions: str) -> Path:
    file = folder / "run.toml"
    file.write_text(
        '[run]\nname = "x"\noutput = "out"\n[sampling]\nmax_new_tokens = 100\ntop_p = 0.9\n'
        + partitions
    )
    return file


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(exist_ok=True)
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)


def indexed(file: Path) -> dict[str, PartitionIndex]:
    found = index_run(load_run(file), ModelFacts(), file.parent)
    return {index.spec.name: index for index in found}


BY_FILE = """
[[partition]]
input = "data"
by_file = true
max_new_tokens = 50
[[partition]]
name = "B2"
weight = 3.0
max_new_tokens = 20
"""


def test_every_file_of_a_folder_is_a_partition(tmp_path: Path) -> None:
    write(tmp_path / "data" / "B1.jsonl", [{"id": "a", "prompt": "x"}])
    write(tmp_path / "data" / "B2.jsonl.gz", [{"id": "a", "prompt": "y"}])
    write(tmp_path / "data" / "B3.more.jsonl", [{"id": "a", "prompt": "z"}])
    file = run(tmp_path, BY_FILE)
    found = indexed(file)
    assert list(found) == ["B1", "B2", "B3.more"]
    assert [index.load(0).text for index in found.values()] == ["x", "y", "z"]
    assert [index.spec.weight for index in found.values()] == [1.0, 3.0, 1.0]
    assert found["B1"].spec.sampling == {"max_new_tokens": 50, "top_p": 0.9}
    assert found["B2"].spec.sampling == {"max_new_tokens": 20, "top_p": 0.9}
    assert load_run(file).order is Order.LONGEST


BY_COLUMN = '[[partition]]\ninput = "all.jsonl"\nby_column = "partition"\n'


def test_a_column_shares_rows_among_partitions(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": f"{n}", "partition": n} for n in ("B1", "B2", 7)]
    rows += [{"id": "b", "prompt": "b", "partition": "B1"}, {"id": "c", "prompt": "lost"}]
    write(tmp_path / "all.jsonl", rows)
    found = indexed(run(tmp_path, BY_COLUMN))
    assert {name: list(index.rows) for name, index in found.items()} == {
        "B1": ["a", "b"],
        "B2": ["a"],
        "7": ["a"],
    }
    assert found["B2"].load(0).text == "B2"
    (skipped,) = found["B1"].skipped
    assert (skipped.line, skipped.reason) == (5, "no partition under 'partition'")


@pytest.mark.parametrize(
    ("partitions", "said"),
    [
        (BY_COLUMN.replace('"partition"', '"lang"'), "no row can be used: .*no partition under"),
        (BY_COLUMN + '[[partition]]\nname = "B9"\nweight = 2\n', "'B9': no input has it"),
        (BY_COLUMN + '[[partition]]\nname = "B1"\ninput = "all.jsonl"\n', "two entries"),
        (BY_COLUMN.replace('"partition"', '"id"'), "more than 1,000 partitions by id"),
        (BY_COLUMN + "by_file = true\n", "either by_file or by_column"),
        (BY_COLUMN + 'name = "B1"\n', "no name: the inputs give it"),
        ('[[partition]]\nname = "B1"\nweight = 2\n', "partition 1.input: expected"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_one_line(
    tmp_path: Path, partitions: str, said: str
) -> None:
    rows = [{"id": f"r{n}", "prompt": "x", "partition": "B1"} for n in range(1001)]
    write(tmp_path / "all.jsonl", rows)
    with pytest.raises(KvctlError, match=said) as caught:
        indexed(run(tmp_path, partitions))
    assert "\n" not in str(caught.value)


def test_an_id_twice_in_one_partition_is_an_error_and_in_two_is_none(tmp_path: Path) -> None:
    twice = [{"id": "a", "prompt": "x", "partition": p} for p in ("B1", "B2")]
    write(tmp_path / "all.jsonl", twice)
    assert len(indexed(run(tmp_path, BY_COLUMN))) == 2
    write(tmp_path / "all.jsonl", [*twice, twice[1]])
    with pytest.raises(RunFileError, match=r"B2: 1 ids come twice: 'a' at .*:2 and .*:3"):
        indexed(run(tmp_path, BY_COLUMN))
