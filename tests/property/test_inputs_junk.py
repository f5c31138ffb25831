"""Inputs of any bytes: rows, skipped lines with numbers, or one clear line; never a traceback."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.runs.outcomes import judge_foreign
from kvctl.core.domain.runs.run_file import PartitionSpec
from kvctl.core.runs.inputs.indexing import index_entry
from kvctl.core.runs.inputs.partition import ModelFacts
from kvctl.core.runs.inputs.rows import RowReading, RowRejected, detect, read_row
from kvctl.core.runs.outputs.foreign import scan_foreign

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
NAMES = (
    "id prompt text question messages input_ids conversations custom_id body role content from "
    "value sampling_params finish_reason meta_info"
)
keys = st.sampled_from(NAMES.split())
rows = st.dictionaries(keys, values, max_size=5)


@given(rows)
def test_any_row_is_read_or_rejected_with_a_reason(row: dict[str, object]) -> None:
    try:
        found = read_row(row, RowReading("B", detect(row)))
    except RowRejected as problem:
        assert str(problem) and "\n" not in str(problem)
        return
    assert found.id
    assert sum(x is not None for x in (found.text, found.input_ids, found.messages)) == 1


@given(rows)
def test_any_foreign_record_has_a_class(row: dict[str, object]) -> None:
    assert judge_foreign(row)


junk_lines = st.lists(
    st.binary(max_size=60)
    | rows.map(lambda row: json.dumps(row).encode())
    | st.integers(0, 5).map(lambda n: json.dumps({"id": f"r{n}", "prompt": "x"}).encode()),
    max_size=12,
)


@settings(deadline=None)
@given(junk_lines, st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_any_file_is_indexed_or_refused_in_one_line(
    lines: list[bytes], end: bytes, is_open: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "in.jsonl"
        file.write_bytes(end.join(lines) + (b"" if is_open else end))
        try:
            (found,) = index_entry(PartitionSpec("B", (str(file),)), ModelFacts(), Path(name))
        except RunFileError as error:
            assert "\n" not in str(error)
            return
        assert len(found.rows) == len(found) == len(found.offsets)
        for row in range(len(found)):
            assert found.load(row).id == found.id_of(row)
        found.close()
        assert all(skipped.reason and skipped.line >= 1 for skipped in found.skipped)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_scanned_as_a_foreign_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "raw.jsonl"
        file.write_bytes(data)
        scan = scan_foreign(file)
        assert file.read_bytes() == data
        assert len(set(scan.done)) == len(scan.done)
