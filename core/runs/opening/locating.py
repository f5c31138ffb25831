"""Finds a run on disk by its run file or its output folder, without kvctld."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from kvctl.core.domain.errors import CommandRefused, KvctlError, RunFileError
from kvctl.core.domain.runs.run_file import RunSpec
from kvctl.core.runs.inputs.places import SUFFIXES
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.outputs.folder import LOCK, MANIFEST, SKIPPED, SPOOL, STATE, read_object
from kvctl.core.runs.outputs.index import INDEX
from kvctl.core.runs.outputs.journal import STREAMS

_OWN = {INDEX, LOCK, MANIFEST, SKIPPED, SPOOL, STATE}


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run on disk."""

    folder: Path
    """Its output."""
    spec: RunSpec | None
    """None where only the folder is known."""


def locate(path: Path) -> RunPlace:
    """Return the output folder that a run file names, or that is given itself.

    Raises:
        RunFileError: It is neither, or another client's run.
    """
    if not path.is_dir():
        spec = spec_at(path)
        return RunPlace(Path(spec.output), spec)
    _run_file_of(path)
    return RunPlace(path, None)


def spec_at(path: Path) -> RunSpec:
    """Return the run of a run file, or of the run file that an output folder was made by.

    Raises:
        RunFileError: It is neither, or another client's run.
    """
    if not path.is_dir():
        return refuse_attached(load_run(path))
    run_file = _run_file_of(path)
    spec = load_run(run_file)
    if os.path.realpath(spec.output) != os.path.realpath(path):
        raise RunFileError(f"{run_file}: writes to {spec.output} now, not to {path}: name the one")
    return spec


def _run_file_of(folder: Path) -> str:
    manifest = read_object(folder / MANIFEST)
    if manifest is None:
        raise RunFileError(
            f"{folder}: no {MANIFEST} in it, so not the output folder of a run: name the run file"
        )
    found = manifest.get("run_file")
    if not isinstance(found, str):
        raise RunFileError(f"{folder / MANIFEST}: names no run file: name it yourself")
    return found


def refuse_attached(spec: RunSpec) -> RunSpec:
    """Return a run of kvctl's own.

    Raises:
        RunFileError: Another client writes the answers.
    """
    if spec.attach is not None:
        raise RunFileError(
            f"{spec.path}: its answers are another client's, which kvctl only counts: name them "
            "in `done_from` of a run of your own"
        )
    return spec


@contextmanager
def readable(place: Path) -> Iterator[None]:
    """Tell what cannot be read in one line.

    Raises:
        KvctlError: Instead of OSError.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or place
        raise KvctlError(f"{where}: cannot be read: {error.strerror or error}") from error


def refuse_target(target: Path, place: RunPlace) -> None:
    """Refuse to write where it would be taken for a file of the run, or replace one.

    Raises:
        CommandRefused: The file or name belongs to the run.
    """
    target = Path(os.path.realpath(target))
    is_own = target.parent == Path(os.path.realpath(place.folder)) and _is_own_name(target.name)
    if is_own or (place.spec is not None and _is_source(target, place.spec)):
        raise CommandRefused(f"{target}: is read as a file of the run: choose another name")


def _is_own_name(name: str) -> bool:
    is_part = name.startswith(tuple(f"{stream}." for stream in STREAMS))
    return name in _OWN or is_part or name.startswith("torn-")


def _is_source(target: Path, spec: RunSpec) -> bool:
    patterns = [pattern for partition in spec.partitions for pattern in partition.inputs]
    if target == Path(os.path.realpath(spec.path)):
        return True
    return any(_is_read_by(target, pattern) for pattern in (*patterns, *spec.done_from))


def _is_read_by(target: Path, pattern: str) -> bool:
    place = Path(os.path.realpath(pattern))
    if place.is_dir():
        return target.parent == place and any(suffix in SUFFIXES for suffix in target.suffixes)
    return target == place or fnmatch(str(target), str(place))
