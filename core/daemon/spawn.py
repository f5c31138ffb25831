"""Starts kvctld with the first client that needs it, and stops it on request."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.controller.commands import StopDaemon
from kvctl.core.daemon.client import DaemonClient
from kvctl.core.daemon.lock import AlreadyRunning, holder_pid, is_locked, lives_by_name
from kvctl.core.daemon.logfile import last_line
from kvctl.core.daemon.paths import DaemonPaths, check_socket_folder, prepare_folders
from kvctl.core.daemon.waiting import wait_for
from kvctl.core.daemon.wire import DaemonInfo
from kvctl.core.domain.errors import CommandTimedOut, DaemonUnreachable

START_WITHIN_S = 30.0
STOP_WITHIN_S = 30.0
REAPPEARS_WITHIN_S = 6.0


@dataclass(frozen=True, slots=True)
class DaemonLaunch:
    """How to start a kvctld for given paths."""

    paths: DaemonPaths
    state_dir: Path | None = None
    """The --state-dir that led to `paths`, None where the environment did."""
    arguments: tuple[str, ...] = ()
    """Further options of `daemon run`, such as --simulated FOLDER."""
    environment: Mapping[str, str] | None = None
    """All of kvctld's environment, None for this process's own."""

    def command(self) -> list[str]:
        """Return the command line; -P keeps the current folder out of the import path."""
        where = [] if self.state_dir is None else ["--state-dir", str(self.paths.state)]
        kvctl = [sys.executable, "-P", "-m", "kvctl", *where]
        return [*kvctl, "daemon", "run", "--detached", *self.arguments]


def running(paths: DaemonPaths) -> DaemonInfo | None:
    """Return the kvctld that answers at these paths, None if none does.

    Raises:
        DaemonUnreachable: The socket's folder is not this user's own.
    """
    check_socket_folder(paths, os.getuid())
    info = _answering(paths)
    if info is None and lives_by_name(paths.name_hash):
        # Its folder was just deleted (a logout): it makes its socket again within seconds.
        return wait_for(lambda: _answering(paths), REAPPEARS_WITHIN_S)
    return info


def _answering(paths: DaemonPaths) -> DaemonInfo | None:
    try:
        with DaemonClient(paths.socket) as client:
            return client.daemon()
    except DaemonUnreachable:
        return None


def ensure_running(launch: DaemonLaunch, within_s: float = START_WITHIN_S) -> DaemonInfo:
    """Return the kvctld of these paths, starting it where none answers.

    Raises:
        DaemonUnreachable: It could not be started; the message ends with its last log line.
    """
    info = running(launch.paths)
    if info is not None:
        return info
    prepare_folders(launch.paths, os.getuid())
    status = _start(launch, within_s)
    if status not in (0, AlreadyRunning.exit_status):
        raise DaemonUnreachable(
            f"kvctld did not start: {_last_words(launch.paths.log) or f'exit status {status}'} "
            f"(log: {launch.paths.log})"
        )
    info = wait_for(lambda: running(launch.paths), within_s)
    if info is None:
        pid = holder_pid(launch.paths.lock)
        raise DaemonUnreachable(
            f"kvctld (pid {pid or 'unknown'}) holds its lock but does not answer at "
            f"{launch.paths.socket}; see {launch.paths.log}, end it with kill, then try again"
        )
    return info


def stop(paths: DaemonPaths, within_s: float = STOP_WITHIN_S) -> int | None:
    """Ask kvctld to leave and wait until it has; return its pid, None if none ran.

    Raises:
        CommandTimedOut: It still holds its lock.
    """
    info = running(paths)
    if info is None:
        return None
    with DaemonClient(paths.socket) as client:
        client.submit(StopDaemon())
    if wait_for(lambda: None if is_locked(paths.lock) else True, within_s) is None:
        raise CommandTimedOut(
            f"kvctld (pid {info.pid}) was asked to leave and is still there after "
            f"{within_s:g} s; its log: {paths.log}"
        )
    return info.pid


def _last_words(log: Path) -> str:
    return last_line(log).removeprefix("kvctl: ")


def _start(launch: DaemonLaunch, within_s: float) -> int | None:
    """Run the starter, which exits once kvctld serves; None when it takes too long."""
    with launch.paths.log.open("ab") as log:
        try:
            return subprocess.run(
                launch.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=launch.paths.state,
                env=launch.environment,
                start_new_session=True,
                timeout=within_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None
