"""Writes a run's accepted answers as one JSON line each, every row once, in a settled order.

Only reads the run's files, so it works while the run goes on and without kvctld. Two passes: the
first finds the answers (`kvctl.core.runs.export.gathering`), the second writes them one by one.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kvctl.core.domain.errors import KvctlError, RunFileError, UsageError
from kvctl.core.domain.runs.run_file import RunSpec
from kvctl.core.runs.export.exported import ExportReport, PartitionCount
from kvctl.core.runs.export.gathering import Choice, Gathered, Lane, gather_elsewhere, gather_own
from kvctl.core.runs.export.outfile import Sink
from kvctl.core.runs.export.where import parse_where
from kvctl.core.runs.inputs.line_files import LineFiles
from kvctl.core.runs.inputs.partition import ModelFacts
from kvctl.core.runs.inputs.rows import Row, RowRejected
from kvctl.core.runs.inputs.templates import Renderer, load_renderer
from kvctl.core.runs.opening.locating import RunPlace, readable
from kvctl.core.runs.opening.opening import index_run
from kvctl.core.runs.outputs.folder import MANIFEST, accepted_damage, read_object, read_skipped
from kvctl.core.runs.outputs.scan import JournalDamaged
from kvctl.core.runs.outputs.shapes import (
    SHAPES,
    ExportFormat,
    NotExportable,
    StoredAnswer,
    answer_text,
    foreign_answer,
    own_answer,
)


class ExportOrder(StrEnum):
    """How the lines of an export follow each other, partition by partition."""

    INPUT = "input"
    """As the rows stand in the inputs."""
    JOURNAL = "journal"
    """As the answers came; needs no inputs, and leaves `done_from` out."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What is exported."""

    format: ExportFormat = ExportFormat.IDS
    partitions: tuple[str, ...] = ()
    """Empty: all."""
    where: str | None = None
    """A condition, as in `kvctl.core.runs.export.where`."""
    order: ExportOrder = ExportOrder.INPUT
    accepts_damage: bool = False
    """Leave out lines of the journal that cannot be read."""
    scratch: Path | None = None
    """Folder to unwrap packed inputs in, where their messages are needed; None: the system's."""


def export(place: RunPlace, request: ExportRequest, sink: Sink) -> ExportReport:
    """Write the accepted answers of a run, each row once: the first record wins.

    Args:
        place: The run; its run file is not needed in the order of the journal.
        request: What is exported.
        sink: Takes one line at a time.

    Raises:
        KvctlError: Something cannot be read, nothing fits the format, or a partition or the
            condition is wrong.
        JournalDamaged: A line inside the journal is not whole, and that was not accepted.
    """
    folder = place.folder
    if not folder.is_dir():
        raise KvctlError(f"{folder}: there are no answers yet: kvctl run start FILE begins the run")
    manifest = read_object(folder / MANIFEST) or {}
    with _spool(place.spec, request) as spool:
        with readable(folder):
            found = _gather(place, request, manifest, spool)
        if not request.accepts_damage:
            _refuse_damage(found, accepted_damage(manifest))
        renderer = _renderer(place.spec, request.format, manifest)
        written = _Written(found, request.format, renderer)
        try:
            written.write_all(sink)
        finally:
            written.close()
    return _report(folder, request, found, written)


@contextmanager
def _spool(spec: RunSpec | None, request: ExportRequest) -> Iterator[Path | None]:
    """Give a passing folder to unwrap inputs in, where rows of them are read again."""
    is_text = request.format in (ExportFormat.TEXT, ExportFormat.PREFORMATTED)
    has_foreign = is_text and spec is not None and spec.done_from
    if not (request.format.needs_turns or has_foreign):
        yield None
        return
    with readable(request.scratch or Path(tempfile.gettempdir())):
        folder = tempfile.TemporaryDirectory(prefix=".kvctl-export-", dir=request.scratch)
    with folder as name:
        yield Path(name)


def _gather(
    place: RunPlace, request: ExportRequest, manifest: Mapping[str, Any], spool: Path | None
) -> Gathered:
    folder, spec = place.folder, place.spec
    vocabulary = manifest.get("vocabulary")
    choice = Choice(
        frozenset(request.partitions) if request.partitions else None,
        None if request.where is None else parse_where(request.where),
        vocabulary if isinstance(vocabulary, int) else None,
    )
    if request.order is ExportOrder.JOURNAL:
        return _gather_journal(folder, request, choice, manifest)
    if spec is None:
        raise RunFileError(f"{folder}: no run file: --order journal exports without its inputs")
    found = Gathered(_input_lanes(folder, spec, spool, request, choice))
    gather_own(folder, choice, found, is_open=False)
    if spec.done_from:
        gather_elsewhere(spec.done_from, choice, found)
    return found


def _gather_journal(
    folder: Path, request: ExportRequest, choice: Choice, manifest: Mapping[str, Any]
) -> Gathered:
    if request.format.needs_turns:
        raise UsageError(
            f"--order journal: {request.format} need the messages of the inputs: leave it out"
        )
    names = list(manifest.get("input_sha256") or {})
    _check_names(request.partitions, names or request.partitions)
    found = Gathered({name: Lane(name, {}) for name in names if choice.includes(name)})
    gather_own(folder, choice, found, is_open=True)
    return found


def _check_names(wanted: tuple[str, ...], known: list[str] | tuple[str, ...]) -> None:
    for name in wanted:
        if name not in known:
            raise UsageError(f"there is no partition {name!r}; there are: {', '.join(known)}")


def _input_lanes(
    folder: Path, spec: RunSpec, spool: Path | None, request: ExportRequest, choice: Choice
) -> dict[str, Lane]:
    entries = tuple(p for p in spec.partitions if p.is_split or choice.includes(p.name))
    chosen = replace(spec, partitions=entries)
    if not any(p.is_split for p in spec.partitions):
        _check_names(request.partitions, [p.name for p in spec.partitions])
    skipped = read_skipped(folder)
    indexes = index_run(chosen, ModelFacts(), spool, is_checked=False)
    _check_names(request.partitions, [index.spec.name for index in indexes])
    lanes: dict[str, Lane] = {}
    for index in indexes:
        if not choice.includes(index.spec.name):
            continue
        left_out = sum(
            index.place_of(row) in skipped for row in range(len(index) if skipped else 0)
        )
        lanes[index.spec.name] = Lane(index.spec.name, index.rows, index, len(index) - left_out)
    return lanes


def _refuse_damage(found: Gathered, known: Collection[str]) -> None:
    """Refuse what cannot be read, unless it was left there at a start: its row was made again."""
    damages = found.notes.damages_beyond(known)
    problems = [str(damage) for damage in damages] + found.bad
    if problems:
        count = len(damages) + found.bad_count
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise JournalDamaged(
            f"{problems[0]}{more}: `kvctl run verify` lists them; --accept-damage exports the rest"
        )


def _renderer(
    spec: RunSpec | None, format: ExportFormat, manifest: Mapping[str, Any]
) -> Renderer | None:
    place = (spec.tokenizer if spec else None) or manifest.get("tokenizer")
    if format is ExportFormat.IDS or not isinstance(place, str) or not Path(place).is_dir():
        return None
    renderer = load_renderer(place)
    made_with = str(manifest.get("prompts_as") or "")
    if renderer is not None and made_with not in ("", "given", f"ids of {renderer.sha256}"):
        raise KvctlError(
            f"{place}: not the tokenizer of this run ({made_with.removeprefix('ids of ')} then, "
            f"{renderer.sha256} now): its text would be wrong; --format ids needs none"
        )
    return renderer


@dataclass(slots=True)
class _Written:
    """The second pass: reads each chosen answer again and writes its line."""

    found: Gathered
    format: ExportFormat
    renderer: Renderer | None
    by_partition: "Counter[str]" = field(default_factory=Counter)
    unusable: "Counter[str]" = field(default_factory=Counter)
    """Answers that do not hold what the format needs, by reason."""
    in_later_turns: int = 0
    text_prompts: int = 0
    """Answers written as ids whose prompt was sent as text."""
    _lines: LineFiles = field(init=False)

    def __post_init__(self) -> None:
        self._lines = LineFiles(self.found.files)

    def write_all(self, sink: Sink) -> None:
        shape = SHAPES[self.format]
        for lane in self.found.lanes.values():
            for row, file, offset in lane.places():
                if self.format.is_whole and lane.index is not None and lane.index.later(row):
                    self.in_later_turns += 1
                    continue
                try:
                    with readable(self.found.files[file]):
                        answer = self._answer(lane, row, file, offset)
                        line = shape(answer, partial(self._row, lane, row), self.renderer)
                except NotExportable as problem:
                    self.unusable[str(problem)] += 1
                    continue
                sink.write(line)
                self.by_partition[lane.name] += 1
                self.text_prompts += answer.input_ids is None
        if self.unusable and not self.by_partition:
            raise KvctlError(
                f"none of the {self.unusable.total():,} answers can be exported as {self.format}: "
                f"{self.unusable.most_common(1)[0][0]}"
            )

    def _answer(self, lane: Lane, row: int, file: int, offset: int) -> StoredAnswer:
        line = self._lines.line(file, offset)
        try:
            if file < self.found.own_files:
                answer = own_answer(line)
            else:
                record = json.loads(line.decode("utf-8", "replace"))
                answer = foreign_answer(record, lane.name)
        except (msgspec.MsgspecError, ValueError):
            answer = None
        if answer is None or lane.rows.get(answer.id) != row:
            place = self.found.files[file]
            raise KvctlError(f"{place}: changed at byte {offset} while it was read: export again")
        return answer

    def _row(self, lane: Lane, row: int) -> Row:
        """Return the input row of an answer, with the new answers of the turns before it."""
        if lane.index is None:
            raise NotExportable("its prompt is in the inputs alone")
        answers = [self._earlier(lane, each) for each in lane.index.earlier(row)]
        try:
            return lane.index.row(row, answers)
        except RowRejected as problem:
            raise NotExportable(str(problem)) from None

    def _earlier(self, lane: Lane, row: int) -> str:
        place = lane.place_of(row)
        if place is None:
            raise NotExportable("an earlier turn of its conversation has no answer")
        return answer_text(self._answer(lane, row, *place), self.renderer)

    def close(self) -> None:
        self._lines.close()
        for lane in self.found.lanes.values():
            if lane.index is not None:
                lane.index.close()


def _report(
    folder: Path, request: ExportRequest, found: Gathered, written: _Written
) -> ExportReport:
    return ExportReport(
        source=str(folder),
        format=str(request.format),
        order=str(request.order),
        written=written.by_partition.total(),
        partitions=tuple(
            PartitionCount(lane.name, lane.total, lane.answered, written.by_partition[lane.name])
            for lane in found.lanes.values()
        ),
        elsewhere=found.elsewhere,
        duplicates=found.duplicates,
        filtered=found.filtered,
        unusable=dict(written.unusable),
        text_prompts=written.text_prompts if request.format is ExportFormat.IDS else 0,
        in_later_turns=written.in_later_turns,
        unknown=found.unknown,
        damaged=len(found.notes.damages) + found.bad_count,
        torn=len(found.notes.tails),
    )
