"""`kvctl run`: start, pause, throttle and look at the run."""

from dataclasses import asdict
from pathlib import Path

from kvctl.core.cli.progress import carry_out
from kvctl.core.cli.reading import show
from kvctl.core.cli.render import run_lines
from kvctl.core.cli.session import Session
from kvctl.core.controller.commands import (
    CloseRun,
    Command,
    PauseRun,
    ResumeRun,
    RetryFailed,
    SetWeights,
    StartRun,
    Throttle,
    WaitHow,
)
from kvctl.core.documents import run_document
from kvctl.core.domain.errors import KvctlError, RunFileError, UsageError
from kvctl.core.domain.logtext import clean_line


def start(session: Session) -> int:
    """Start a run file, or take its run up where it stands."""
    path = session.words.file.absolute()
    if not path.is_file():
        raise RunFileError(f"{path}: there is no such run file; README shows one to begin with")
    with session.kvctld() as client:
        return carry_out(session, client, StartRun(str(path), session.words.force))


def pause(session: Session) -> int:
    """Stop sending."""
    return _ask_run(session, PauseRun(WaitHow(session.words.how)))


def resume(session: Session) -> int:
    """Send again."""
    return _ask_run(session, ResumeRun())


def throttle(session: Session) -> int:
    """Set the requests in flight: a number, or the law (auto)."""
    return _ask_run(session, Throttle(session.words.slots))


def weights(session: Session) -> int:
    """Change the shares of partitions while the run goes on."""
    return _ask_run(session, SetWeights(dict(session.words.weights)))


def retry_failed(session: Session) -> int:
    """Queue the failed rows again."""
    return _ask_run(session, RetryFailed())


def close(session: Session) -> int:
    """End the run's driver; its files stay."""
    return _ask_run(session, CloseRun())


def status(session: Session) -> int:
    """Print the run and its partitions."""
    return show(session, run_document, run_lines)


def verify(session: Session) -> int:
    """Check the output against the inputs: every id exactly once; exit 1 if it is not so."""
    from kvctl.core.runs.runfile import load_run
    from kvctl.core.runs.verify import verify as check

    report = check(load_run(_run_file(session)))
    if session.wants_json():
        session.document({"exact": report.is_exact, **asdict(report)})
    else:
        for line in report.lines():
            session.say(clean_line(line))
    if not report.is_exact:
        raise KvctlError(
            f"{report.output} is not complete: {report.missing_count} missing, "
            f"{report.failed} failed, {report.duplicate_count} twice, "
            f"{len(report.damages)} damaged lines"
        )
    return 0


def _run_file(session: Session) -> Path:
    """Return the run file that was given, or that of the present run."""
    if session.words.file is not None:
        return Path(session.words.file).absolute()
    with session.kvctld() as client:
        snapshot = session.picture(client)
    session.check_run_name(snapshot)
    if snapshot.run is None:
        raise UsageError("there is no run now; name its file: kvctl run verify FILE")
    return Path(snapshot.run.path)


def _ask_run(session: Session, command: Command) -> int:
    with session.kvctld() as client:
        session.check_run_name(client.snapshot())
        return carry_out(session, client, command)
