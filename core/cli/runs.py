"""`kvctl run`: start, pause, throttle and look at the run."""

from kvctl.core.cli.progress import carry_out
from kvctl.core.cli.reading import show
from kvctl.core.cli.render import run_lines
from kvctl.core.cli.session import Session
from kvctl.core.controller.commands import (
    ChangeRunServers,
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
from kvctl.core.documents.run import run_document
from kvctl.core.domain.errors import RunFileError


def start(session: Session) -> int:
    """Start a run file, or take its run up where it stands."""
    path = session.words.file.absolute()
    if not path.is_file():
        raise RunFileError(f"{path}: there is no such run file; README shows one to begin with")
    with session.kvctld() as client:
        words = session.words
        return carry_out(session, client, StartRun(str(path), words.force, words.accept_damage))


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


def servers(session: Session) -> int:
    """Add servers to the open run or take some away; without either, name them."""
    words = session.words
    change = ChangeRunServers(tuple(words.add), tuple(words.remove), WaitHow(words.how))
    return _ask_run(session, change)


def retry_failed(session: Session) -> int:
    """Queue the failed rows again."""
    return _ask_run(session, RetryFailed())


def close(session: Session) -> int:
    """End the run's driver; its files stay."""
    return _ask_run(session, CloseRun())


def status(session: Session) -> int:
    """Print the run and its partitions."""
    return show(session, run_document, run_lines)


def _ask_run(session: Session, command: Command) -> int:
    with session.kvctld() as client:
        session.check_run_name(client.snapshot())
        return carry_out(session, client, command)
