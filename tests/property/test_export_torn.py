"""Whatever is torn or written twice, an export holds each id once, with its first answer."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.answers import answer, lines_of, write_journal
from tests.fakes.runs import ids_rows, write_run

from kvctl.core.runs.export.export import ExportRequest, export
from kvctl.core.runs.opening.locating import RunPlace, spec_at

PARTITIONS = ("B2", "B1")
ROWS = 4
Record = dict[str, object]


class Taken:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes, /) -> None:
        self.data += data


keys = st.tuples(st.sampled_from(PARTITIONS), st.integers(1, ROWS))
damages = st.one_of(
    st.none(),
    st.binary(max_size=40).map(lambda junk: junk.replace(b"\n", b"?") + b"\n"),
)


def first_answers(lines: list[bytes]) -> dict[tuple[str, str], int]:
    """The mark of the first whole record of every row, by plain json."""
    found: dict[tuple[str, str], int] = {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "partition" in record:
            key = (str(record["partition"]), str(record["id"]))
            found.setdefault(key, record["output_ids"][1])
    return found


@settings(max_examples=150, deadline=None)
@given(
    written=st.lists(st.tuples(keys, damages), max_size=14),
    parts=st.integers(1, 3),
    keep=st.floats(0.0, 1.0),
)
def test_each_accepted_id_is_exported_once_with_its_first_answer(
    written: list[tuple[tuple[str, int], bytes | None]], parts: int, keep: float
) -> None:
    lines: list[bytes] = []
    for mark, ((partition, number), junk) in enumerate(written):
        record = answer(f"r{number:03d}", partition, output_ids=[number, mark, 8])
        lines += [lines_of([record]), *([junk] if junk is not None else [])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = write_run(folder, {p: ids_rows(ROWS) for p in PARTITIONS})
        size = -(-len(lines) // parts) or 1
        for part in range(parts):
            file = write_journal(folder, [], part + 1)
            chosen = lines[part * size : (part + 1) * size]
            if part == parts - 1 and chosen:
                chosen[-1] = chosen[-1][: int(len(chosen[-1]) * keep)]
            file.write_bytes(b"".join(chosen))
            lines[part * size : (part + 1) * size] = chosen
        sink = Taken()
        request = ExportRequest(accepts_damage=True)
        report = export(RunPlace(folder / "out", spec_at(run)), request, sink)
    found = [json.loads(line) for line in sink.data.splitlines()]
    keyed = {(line["partition"], line["id"]): line["output_ids"][1] for line in found}
    expected = first_answers([line for line in lines if line.endswith(b"\n")])
    assert len(keyed) == len(found) == report.written
    assert keyed == expected
    in_order = [(p, f"r{n:03d}") for p in PARTITIONS for n in range(1, ROWS + 1)]
    assert list(keyed) == [key for key in in_order if key in expected]
