"""A file that is there whole or not at all, of the kind its name says (.gz, .zst, .parquet).

It is written beside its place under a hidden name and moved there at the end. A file that is
there already is only replaced when that was asked for.
"""

import gzip
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Protocol, cast

from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.runs.inputs.columnar import NEEDS_PYARROW, ParquetSink
from kvctl.core.runs.outputs.journal import fsync_folder

_GZIP_LEVEL = 6


class Sink(Protocol):
    """What lines are written to."""

    def write(self, data: bytes, /) -> object:
        """Take the bytes of a line."""


@contextmanager
def whole_file(
    target: Path, *, force: bool = False, columns: Mapping[str, str] | None = None
) -> Iterator[Sink]:
    """Open a file for writing; it appears when the block ends well.

    A device or a pipe is written to directly. `columns` are those of a table, as
    `kvctl.core.runs.inputs.columnar.ParquetSink` has them; None: no table can be written.

    Raises:
        CommandRefused: It is there and `force` was not given.
        UsageError: It is a folder, its folder is missing, or its suffix needs a missing package.
        KvctlError: It cannot be written; nothing of it is left.
    """
    target = Path(os.path.realpath(target))
    _check(target, force=force)
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as device, _packed(device, target.suffix, columns) as sink:
                yield sink
            return
        beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            with beside.open("xb", buffering=1 << 20) as stream:
                with _packed(stream, target.suffix, columns) as sink:
                    yield sink
                stream.flush()
                os.fsync(stream.fileno())
            _move(beside, target, force=force)
        finally:
            beside.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise KvctlError(
            f"{target}: cannot be written: {error.strerror or error}: nothing of it was left"
        ) from error


def _check(target: Path, *, force: bool) -> None:
    if target.is_dir():
        raise UsageError(f"{target} is a folder: name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent}: there is no such folder: make it first")
    if target.is_file() and not force:
        raise _is_there(target)
    if target.suffix == ".zst":
        _zstd()
    if target.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UsageError(f"{target}: parquet cannot be written here: {NEEDS_PYARROW}")


def _is_there(target: Path) -> CommandRefused:
    return CommandRefused(f"{target} is there already: choose another name, or --force replaces it")


def _move(beside: Path, target: Path, *, force: bool) -> None:
    if force:
        beside.replace(target)
    else:
        _move_if_free(beside, target)
    fsync_folder(target.parent)


def _move_if_free(beside: Path, target: Path) -> None:
    # A link never replaces what came there meanwhile; a rename would.
    try:
        os.link(beside, target)
    except FileExistsError:
        raise _is_there(target) from None
    except OSError:  # a file system without links
        if target.exists():
            raise _is_there(target) from None
        beside.replace(target)


@contextmanager
def _packed(stream: IO[bytes], suffix: str, columns: Mapping[str, str] | None) -> Iterator[Sink]:
    if suffix == ".parquet" and columns is not None:
        table = ParquetSink(stream, columns)
        yield table
        table.close()
    elif suffix == ".gz":
        # No name and no time in it: the same answers make the same bytes.
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, stream, mtime=0) as packed:
            yield packed
    elif suffix == ".zst":
        with _zstd()(stream) as packed:
            yield packed
    else:
        yield stream


def _zstd() -> Callable[[IO[bytes]], AbstractContextManager[Sink]]:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return _zstandard()
    return lambda stream: cast(AbstractContextManager[Sink], zstd.ZstdFile(stream, "wb"))


def _zstandard() -> Callable[[IO[bytes]], AbstractContextManager[Sink]]:
    try:
        import zstandard  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UsageError(
            "zstd cannot be written here: pip install 'kvctl[zstd]', or name a file ending in .gz"
        ) from None
    return lambda stream: cast(
        AbstractContextManager[Sink],
        zstandard.ZstdCompressor().stream_writer(stream, closefd=False),
    )
