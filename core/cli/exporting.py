"""`kvctl run verify` and `export`: what lies on disk, read without kvctld."""

import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from kvctl.core.cli.render import one_line
from kvctl.core.cli.session import Session
from kvctl.core.domain.errors import KvctlError, UsageError

if TYPE_CHECKING:  # verbs that read nothing load none of it
    from kvctl.core.runs.export.export import ExportRequest
    from kvctl.core.runs.export.exported import ExportReport
    from kvctl.core.runs.opening.locating import RunPlace


def verify(session: Session) -> int:
    """Check the output against the inputs: every id exactly once; exit 1 if it is not so."""
    from kvctl.core.runs.opening.locating import spec_at
    from kvctl.core.runs.opening.verify import verify as check

    report = check(spec_at(_run_path(session)))
    if session.wants_json():
        session.document({"exact": report.is_exact, **asdict(report)})
    else:
        for line in report.lines():
            session.say(one_line(line))
    if not report.is_exact:
        raise KvctlError(f"{report.output} is not complete: {report.problem()}")
    return 0


def export(session: Session) -> int:
    """Write the accepted answers as JSON lines, each row once, to a file or to stdout."""
    target, request = _target(session), _request(session)
    if target is None and session.wants_json():
        raise UsageError("--json prints the summary on stdout: name a file for the answers with -o")
    place = _place(session)
    if target is None:
        report = _to_stdout(session, place, request)
    else:
        report = _to_file(target, session.words.force, place, request)
    for line in report.warnings():
        session.warn(one_line(line))
    if session.wants_json():
        counts = {"rows": report.rows, "unanswered": report.unanswered}
        session.document({"output": str(target), **counts, **asdict(report)})
    else:
        session.warn(one_line(report.line(str(target or "stdout"))))
    return 0


def _target(session: Session) -> Path | None:
    """Return the file to write, None for stdout."""
    given: Path | None = session.words.output
    return None if given is None or str(given) == "-" else given.absolute()


def _request(session: Session) -> "ExportRequest":
    from kvctl.core.runs.export.export import ExportOrder, ExportRequest
    from kvctl.core.runs.export.where import parse_where
    from kvctl.core.runs.outputs.shapes import ExportFormat

    words, target = session.words, _target(session)
    if words.where is not None:
        parse_where(words.where)  # a slip of the pen is told before anything is read
    return ExportRequest(
        ExportFormat(words.format),
        tuple(words.partition or ()),
        words.where,
        ExportOrder(words.order),
        words.accept_damage,
        None if target is None else target.parent,
    )


def _place(session: Session) -> "RunPlace":
    from kvctl.core.runs.export.export import ExportOrder
    from kvctl.core.runs.opening.locating import RunPlace, locate, spec_at

    path = _run_path(session)
    if session.words.order == ExportOrder.JOURNAL:
        return locate(path)
    spec = spec_at(path)
    return RunPlace(Path(spec.output), spec)


def _to_stdout(session: Session, place: "RunPlace", request: "ExportRequest") -> "ExportReport":
    from kvctl.core.runs.export.export import export as write

    out = _all_of_it(session.stdout.buffer)
    sink = _Terminal(out) if session.stdout.isatty() else out
    try:
        report = write(place, request, sink)
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise KvctlError(f"stdout: cannot be written: {error.strerror or error}") from error
    return report


def _all_of_it(out: BinaryIO) -> BinaryIO:
    # With PYTHONUNBUFFERED stdout is raw, and one write of a raw file may take only a part.
    return cast(BinaryIO, io.BufferedWriter(out)) if isinstance(out, io.RawIOBase) else out


def _to_file(
    target: Path, force: bool, place: "RunPlace", request: "ExportRequest"
) -> "ExportReport":
    from kvctl.core.runs.export.export import export as write
    from kvctl.core.runs.export.outfile import whole_file
    from kvctl.core.runs.opening.locating import refuse_target
    from kvctl.core.runs.outputs.shapes import columns_of

    refuse_target(target, place)
    with whole_file(target, force=force, columns=columns_of(request.format)) as sink:
        return write(place, request, sink)


class _Terminal:
    """Shows lines so that no answer can control the terminal."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def write(self, data: bytes, /) -> int:
        from kvctl.core.runs.outputs.shapes import ascii_line

        return self._out.write(ascii_line(data))


def _run_path(session: Session) -> Path:
    """Return what was given, or the run file of the present run."""
    if session.words.file is not None:
        return Path(session.words.file).absolute()
    with session.kvctld() as client:
        snapshot = session.picture(client)
    session.check_run_name(snapshot)
    if snapshot.run is None:
        raise UsageError("there is no run now; name its file or its output folder")
    return Path(snapshot.run.path)
