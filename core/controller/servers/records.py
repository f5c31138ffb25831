"""What is remembered of a server, as the desks need it: identity, address, state of its launch."""

from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.state import ServerRecord
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.domain.gpus.membership import KnownServer, LaunchState
from kvctl.core.domain.servers.server import ServerState
from kvctl.core.servers.processes.discover import FoundServer

BOOT_SLACK_S = 120.0
"""How far the wall clock may have been set since the host booted."""


def same_url(one: str, other: str) -> bool:
    """Return whether two URLs name the same server on this host."""
    return _plain(one) == _plain(other)


def _plain(url: str) -> str:
    bare = url.rstrip("/").removeprefix("http://")
    return bare.replace("localhost:", "127.0.0.1:").replace("0.0.0.0:", "127.0.0.1:")


def port_of(url: str) -> int:
    """Return the port of a URL, 80 where it names none."""
    digits = url.rstrip("/").rpartition(":")[2]
    return int(digits) if digits.isdigit() else 80


def known_server(record: ServerRecord, state: LaunchState) -> KnownServer | None:
    """Return a record as the one whose processes can be told; None without a process here."""
    if record.pid is None or record.start_ticks is None:
        return None
    return KnownServer(
        record.name,
        record.pid,
        record.start_ticks,
        record.session if record.session is not None else -1,
        tuple(record.gpu_uuids),
        state,
        tuple(ProcessIdentity(pid, ticks) for pid, ticks in record.tree),
        record.launch_id,
        record.container,
        not record.is_managed,
    )


def launch_state(watch: ServerWatch) -> LaunchState:
    """Return how far the launch of a watched server is."""
    if watch.record.is_ended or watch.is_alive() is False:
        return LaunchState.ENDED
    return LaunchState.STARTING if watch.state is ServerState.STARTING else LaunchState.RUNNING


def is_of_this_boot(record: ServerRecord, booted_wall: float) -> bool:
    """Return whether a launch can have processes here: not if the host has booted since."""
    return record.launched_wall is None or began_in_this_boot(record.launched_wall, booted_wall)


def began_in_this_boot(wall: float, booted_wall: float) -> bool:
    """Return whether something that began at this wall time began since the host booted."""
    return wall > booted_wall - BOOT_SLACK_S


def found_record(found: FoundServer, name: str, own_container: str | None = None) -> ServerRecord:
    """Return what is remembered of a server that was found running.

    The container that kvctld itself sits in tells nobody apart.
    """
    restarts = found.owner is not None and found.owner.restarts is not False
    return ServerRecord(
        name,
        found.url,
        False,
        found.identity.pid,
        found.identity.start_ticks,
        found.session,
        log_path=found.log_path,
        ready_seen=True,
        model_path=found.model,
        owner=found.owner.text if found.owner is not None and restarts else None,
        owner_command=found.owner.command if found.owner is not None and restarts else None,
        container=found.container if found.container != own_container else None,
    )
