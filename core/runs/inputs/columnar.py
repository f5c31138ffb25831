"""Parquet and Arrow files as JSON lines, and JSON lines as parquet; needs the extra `parquet`.

A batch of rows is in memory at a time. Arrow has no absent keys, so nulls are left out wherever
they stand. Read: parquet, Arrow IPC files
and streams; a folder that the library `datasets` saved holds such streams and its own list of them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from kvctl.core.domain.errors import RunFileError

NEEDS_PYARROW = "pip install 'kvctl[parquet]'"
_BATCH_ROWS = 512
_DATASET_STATE = "state.json"


def parquet_rows(file: Path) -> Iterator[bytes]:
    """Yield the rows of a parquet file.

    Raises:
        ImportError: pyarrow is not installed.
        RunFileError: The file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, memory_map=True) as opened:
            for batch in opened.iter_batches(_BATCH_ROWS):
                yield from _lines(batch)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, "parquet", error) from error


def arrow_rows(file: Path) -> Iterator[bytes]:
    """Yield the rows of an Arrow IPC file or stream. Raises as `parquet_rows`."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(file), "r") as source:
            if source.read(6) == b"ARROW1":
                opened = pa.ipc.open_file(source)
                batches = (opened.get_batch(n) for n in range(opened.num_record_batches))
            else:
                source.seek(0)
                batches = iter(pa.ipc.open_stream(source))
            for batch in batches:
                for at in range(0, batch.num_rows, _BATCH_ROWS):
                    yield from _lines(batch.slice(at, _BATCH_ROWS))
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, "Arrow", error) from error


def _damaged(file: Path, kind: str, error: Exception) -> RunFileError:
    said = " ".join(str(error).split())[:200]
    return RunFileError(f"{file}: damaged or cut {kind}: {said}")


def _lines(batch: Any) -> Iterator[bytes]:  # noqa: ANN401 - pyarrow has no types
    for row in batch.to_pylist():
        yield msgspec.json.encode(_without_nulls(row), enc_hook=str)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {str(k): _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list) and any(isinstance(v, dict | list) for v in value[:1]):
        return [_without_nulls(item) for item in value]
    return value


def dataset_files(folder: Path) -> list[Path] | None:
    """Return the files of a folder that `datasets` saved, in its order; None: it is none.

    Raises:
        RunFileError: Its list of files cannot be read.
    """
    state = folder / _DATASET_STATE
    if not (folder / "dataset_info.json").is_file() or not state.is_file():
        return None
    try:
        names = [entry["filename"] for entry in json.loads(state.read_bytes())["_data_files"]]
        return [folder / Path(name).name for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFileError(f"{state}: not as `datasets` writes it: {error}") from error


_FLUSH_BYTES = 8 << 20


class ParquetSink:
    """Takes JSON lines and writes them as a parquet table, some megabytes at a time.

    Columns: `text`, `ids` (int32), `turns` (role, content, and in `more` what else a turn has, as
    JSON) and `json` (anything, as JSON).
    """

    def __init__(self, stream: IO[bytes], columns: Mapping[str, str]) -> None:
        """Begin a table. Raises ImportError where pyarrow is not installed."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        text = pa.string()
        turn = pa.struct([("role", text), ("content", text), ("more", text)])
        kinds = {"text": text, "json": text, "ids": pa.list_(pa.int32()), "turns": pa.list_(turn)}
        self._schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
        self._columns = columns
        self._table = pa.Table
        self._writer = pq.ParquetWriter(stream, self._schema, compression="zstd")
        self._rows: list[dict[str, object]] = []
        self._bytes = 0

    def write(self, line: bytes, /) -> None:
        """Take the bytes of one line."""
        record = msgspec.json.decode(line)
        row = {name: _cell(record.get(name), kind) for name, kind in self._columns.items()}
        self._rows.append(row)
        self._bytes += len(line)
        if self._bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._table.from_pylist(self._rows, self._schema))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        """Write what is left and the table's end."""
        self._flush()
        self._writer.close()


def _cell(value: Any, kind: str) -> object:  # noqa: ANN401 - whatever a line holds
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return [_turn(turn) for turn in value] if kind == "turns" else value


def _turn(turn: Mapping[str, object]) -> dict[str, object]:
    content = turn.get("content")
    more = {k: v for k, v in turn.items() if k not in ("role", "content")}
    if content is not None and not isinstance(content, str):
        more["content"], content = content, None
    found: dict[str, object] = {"role": turn.get("role"), "content": content}
    return {**found, "more": json.dumps(more, ensure_ascii=False) if more else None}
