"""A server that another program starts for kvctl: systemctl start, docker run -d, sbatch.

The process that kvctl launched ends at once; the server is found at its address, also later when
it takes its time, and is stopped with the preset's own stop command, never by a signal first.
"""

from kvctl.core.controller.host import Host
from kvctl.core.controller.servers.records import same_url
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.state import ServerRecord
from kvctl.core.servers.processes.discover import FoundServer, discover


def is_detached(host: Host, watch: ServerWatch) -> bool:
    """Return whether what was launched has handed over to a server that is no child of kvctl.

    From then on the record names the server itself, or no process until it is seen.
    """
    record = watch.record
    if not record.stop_command or record.ready_seen:
        return False
    identity = watch.identity
    if identity is not None:
        is_over = record.is_handed_over  # then it was the server itself that has ended
        if is_over or host.processes.is_alive(identity) or host.launcher.exit_of(identity):
            return False
    _name(record, found_at(host, record.url))
    record.is_handed_over = True
    return True


def found_at(host: Host, url: str) -> FoundServer | None:
    """Return the server that runs at an address here, None where none is visible."""
    return next((f for f in discover(host.processes) if same_url(f.url, url)), None)


def _name(record: ServerRecord, found: FoundServer | None) -> None:
    record.pid = found.identity.pid if found is not None else None
    record.start_ticks = found.identity.start_ticks if found is not None else None
    record.session = found.session if found is not None else None
    record.container = found.container if found is not None else None
