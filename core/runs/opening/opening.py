"""Opens a run: locks its folder, checks every input, and reads back what is done.

Blocking; the driver runs it in a thread. Nothing is sent and no answer is touched; a torn tail is
moved aside, and that is reported.
"""

import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvctl.core.domain.errors import CommandRefused, RunFileError
from kvctl.core.domain.runs.run_file import RunFileProblems, RunSpec
from kvctl.core.runs.inputs.indexing import index_entry
from kvctl.core.runs.inputs.partition import ModelFacts, PartitionIndex
from kvctl.core.runs.inputs.templates import load_renderer, vocabulary_of
from kvctl.core.runs.opening.counters import Counters, PartitionCounters
from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.opening.readback import read_back
from kvctl.core.runs.opening.schedule import Schedule
from kvctl.core.runs.outputs.folder import (
    MANIFEST,
    SPOOL,
    FolderLock,
    accept_damage,
    accepted_damage,
    read_object,
    read_settings,
    settle_manifest,
    take_folder,
    write_skipped,
)
from kvctl.core.runs.outputs.journal import STREAMS, DiskTrouble, parts_of
from kvctl.core.runs.outputs.records import sampling_hash
from kvctl.core.runs.outputs.scan import refuse_damage, repair_tails, torn_stamp

GIVEN = "given"
"""What the manifest says of prompts that are sent as the inputs have them."""


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """What the controller knows and the operator allowed."""

    force: bool = False
    """Resume although the manifest differs."""
    accept_damage: bool = False
    """Leave damaged lines inside the journal where they are."""
    model_folder: str | None = None
    """Where tokenizer and config.json lie; the run file's `tokenizer` goes before it."""
    vocabulary: int | None = None
    """Number of token ids; None: as config.json says."""
    context_tokens: int | None = None
    """Longest prompt and answer together that the server takes; None: not checked."""
    model: str | None = None
    weight_version: str | None = None


def model_folder(spec: RunSpec, options: OpenOptions, before: Mapping[str, Any]) -> str | None:
    """Return where tokenizer and config.json lie; the manifest knows where it was before."""
    if spec.tokenizer is not None and not Path(spec.tokenizer).is_dir():
        raise RunFileError(f"{spec.path}: run.tokenizer: no folder {spec.tokenizer}")
    found = spec.tokenizer or options.model_folder or before.get("tokenizer")
    return found if isinstance(found, str) else None


def model_facts(
    folder: str | None, options: OpenOptions, *, is_rendered: bool = True
) -> ModelFacts:
    """Return what inputs are checked against; without rendering, prompts go as they are given."""
    vocabulary = options.vocabulary
    if vocabulary is None and folder is not None:
        vocabulary = vocabulary_of(folder)
    renderer = load_renderer(folder) if folder is not None and is_rendered else None
    return ModelFacts(renderer, vocabulary, options.context_tokens)


def index_run(
    spec: RunSpec, facts: ModelFacts, spool: Path | None, *, is_checked: bool = True
) -> list[PartitionIndex]:
    """Check the inputs of every partition; every problem that refuses the run in one go.

    Raises:
        RunFileProblems: One line a partition that cannot be used.
    """
    indexes: list[PartitionIndex] = []
    problems: list[str] = []
    settings = {one.name: one for one in spec.settings}
    for entry in spec.partitions:
        try:
            found = index_entry(entry, facts, spool, settings=settings, is_checked=is_checked)
        except RunFileError as error:
            problems.append(f"{spec.path}: {error}")
            continue
        problems += [
            f"{spec.path}: {index.spec.name}: {problem}"
            for index in found
            if (problem := _why_unusable(index, indexes, is_checked=is_checked))
        ]
        if not found:
            problems.append(f"{spec.path}: {', '.join(entry.inputs)}: the input files hold no rows")
        indexes += found
    if not problems:
        names = {index.spec.name for index in indexes}
        missing = [name for name in settings if name not in names]
        problems += [f"{spec.path}: partition {name!r}: no input has it" for name in missing]
    if problems:
        raise RunFileProblems(problems)
    return indexes


def _why_unusable(
    index: PartitionIndex, before: list[PartitionIndex], *, is_checked: bool
) -> str | None:
    if any(index.spec.name == other.spec.name for other in before):
        return "two entries of the run file give rows of it"
    if len(index):
        return None
    if not index.skipped:
        return "its input files hold no rows"
    if not is_checked:
        return None
    first = index.skipped[0]
    count = f"none of its {len(index.skipped):,} rows can be sent"
    return f"{count}: {first.file}:{first.line}: {first.reason}"


def open_run(spec: RunSpec, options: OpenOptions, wall: float) -> OpenedRun:
    """Lock, check and read back a run.

    Args:
        spec: The run.
        options: What is known and allowed.
        wall: UTC seconds, for names and the manifest.

    Raises:
        KvctlError: The folder is in use or not writable, an input cannot be used, the manifest
            differs, or the journal is damaged; the folder is unlocked again.
    """
    if spec.attach is not None:
        raise RunFileError(f"{spec.path}: an attached run is only counted: kvctl run attach")
    folder = Path(spec.output)
    lock = take_folder(folder)
    with ExitStack() as undo:
        undo.callback(lock.release)
        try:
            _refuse_foreign(folder)
            opened = _open_locked(spec, options, wall, lock)
        except OSError as error:
            place = error.filename or folder
            raise DiskTrouble(f"{place}: {error.strerror}: check the output folder") from error
        undo.pop_all()
    return opened


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder whose answers another client wrote: theirs are only read."""
    if (folder / MANIFEST).exists():
        return
    for stream in STREAMS:
        for file in parts_of(folder, stream):
            raise CommandRefused(
                f"{file}: not written by this run (no {MANIFEST} beside it): set another `output`, "
                "and name the file in `done_from` if its answers count"
            )


def _open_locked(spec: RunSpec, options: OpenOptions, wall: float, lock: FolderLock) -> OpenedRun:
    folder = lock.folder
    before = read_object(folder / MANIFEST) or {}
    tokenizer = model_folder(spec, options, before)
    # Begun before the model's folder was known: rendering now would mix two kinds of prompts.
    is_rendered = spec.tokenizer is not None or before.get("prompts_as") != GIVEN
    facts = model_facts(tokenizer, options, is_rendered=is_rendered)
    spool = folder / SPOOL
    _empty(spool)
    indexes = index_run(spec, facts, spool)
    manifest = settle_manifest(
        folder, _manifest(spec, options, indexes, tokenizer, wall), force=options.force
    )
    schedule = Schedule({i.spec.name: len(i) for i in indexes}, spec.order, spec.scout)
    for lane, index in zip(schedule.lanes, indexes, strict=True):
        lane.weight = index.spec.weight
    opened = OpenedRun(
        spec=spec,
        folder=folder,
        lock=lock,
        run8=manifest["run"],
        manifest=manifest,
        facts=facts,
        indexes=indexes,
        schedule=schedule,
        counters=Counters(
            [PartitionCounters(i.spec.name, len(i), skipped=len(i.skipped)) for i in indexes]
        ),
        settings=read_settings(folder, spec.concurrency),
    )
    repair_tails(folder, opened.notes, stamp=torn_stamp(wall))
    read_back(opened)
    _judge_damage(opened, accept=options.accept_damage)
    write_skipped(folder, [row for index in indexes for row in index.skipped])
    return opened


def _judge_damage(opened: OpenedRun, *, accept: bool) -> None:
    """Refuse damage that was not accepted, now or before; what is accepted is kept in mind."""
    known = accepted_damage(opened.manifest)
    refuse_damage(opened.notes, accept=accept, known=known)
    found = {damage.place for damage in opened.notes.damages}
    if found - known:
        accept_damage(opened.folder, opened.manifest, known | found)


def _empty(spool: Path) -> None:
    """Make the folder that inputs are unwrapped into, without what an earlier start left there."""
    spool.mkdir(exist_ok=True)
    for file in spool.iterdir():
        file.unlink()


def _manifest(
    spec: RunSpec,
    options: OpenOptions,
    indexes: list[PartitionIndex],
    tokenizer: str | None,
    wall: float,
) -> dict[str, Any]:
    names = [i.spec.name for i in indexes]
    facts = indexes[0].facts
    return {
        "run": secrets.token_hex(4),
        "name": spec.name,
        "run_file": spec.path,
        "created_wall": wall,
        "model": options.model,
        "weight_version": options.weight_version,
        "tokenizer": tokenizer,
        "prompts_as": f"ids of {facts.renderer.sha256}" if facts.renderer else GIVEN,
        "vocabulary": facts.vocabulary,
        "input_sha256": {n: f"{i.digest:064x}" for n, i in zip(names, indexes, strict=True)},
        "sampling": {n: dict(i.spec.sampling) for n, i in zip(names, indexes, strict=True)},
        "sampling_hash": {
            n: sampling_hash(i.spec.sampling) for n, i in zip(names, indexes, strict=True)
        },
        "reading": {n: _reading(i) for n, i in zip(names, indexes, strict=True)},
        "inputs": {n: [str(f) for f in i.shown] for n, i in zip(names, indexes, strict=True)},
        "detected": {
            n: {f: str(k) for f, k in i.formats.items()}
            for n, i in zip(names, indexes, strict=True)
        },
    }


def _reading(index: PartitionIndex) -> dict[str, Any]:
    """Return what makes other prompts, or other rows, of the same input."""
    return {
        "formats": sorted({str(kind) for kind in index.formats.values()}),
        "prompt_key": index.spec.prompt_key,
        "as_chat": index.spec.as_chat,
        "turns": str(index.spec.turns),
    }
