"""The verbs that only read one picture: status and gpus."""

from collections.abc import Callable, Iterator

from kvctl.core.cli.render import status_lines
from kvctl.core.cli.render_gpus import gpu_lines
from kvctl.core.cli.session import Session
from kvctl.core.documents.figures import Document
from kvctl.core.documents.gpus import gpus_document
from kvctl.core.documents.status import status_document
from kvctl.core.domain.snapshot import Snapshot


def status(session: Session) -> int:
    """Print everything on one page, or as one document."""
    return show(session, status_document, status_lines)


def gpus(session: Session) -> int:
    """Print devices, processes and what each is."""
    return show(session, gpus_document, gpu_lines)


def show(
    session: Session,
    document: Callable[[Snapshot], Document],
    lines: Callable[[Snapshot], Iterator[str]],
) -> int:
    """Print one view of the present snapshot."""
    with session.kvctld() as client:
        snapshot = session.picture(client)
    if session.wants_json():
        session.document(document(snapshot))
    else:
        for line in lines(snapshot):
            session.say(line)
    return 0
