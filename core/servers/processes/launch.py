"""Starts a server so that it outlives kvctld: own session, no terminal, its own log file."""

import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kvctl.core.clock import Clock
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.domain.presets.launch_plan import LaunchPlan

_POLL_S = 0.1
_LEAST_FREE_BYTES = 64 << 10
"""A disk with less than a few lines of room is full for a log."""


class LaunchFailed(KvctlError):
    """The first process of a launch could not be started."""


@dataclass(frozen=True, slots=True)
class Launched:
    """The first process of a launch, as it was started."""

    pid: int
    start_ticks: int
    """Clock ticks after boot (/proc/PID/stat, field 22)."""
    session: int
    """Its session and process group: the pid."""
    log_path: str
    argv: tuple[str, ...]
    """With secrets hidden."""
    wall: float
    """UTC seconds of the start."""

    @property
    def identity(self) -> ProcessIdentity:
        """Return what makes it this very process."""
        return ProcessIdentity(self.pid, self.start_ticks)


def new_log_path(folder: Path, wall: float) -> Path:
    """Return a name for a new launch's log: local time, and what no other launch has.

    Its stem is the mark by which the launch's processes are known and ended: another kvctld on
    this host may launch in the same second.
    """
    stamp = datetime.fromtimestamp(wall)
    return folder / f"server-{stamp:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}.log"


class Launcher:
    """Starts servers and collects the exit status of those that are its children."""

    def __init__(self, clock: Clock, environment: Mapping[str, str]) -> None:
        """Start servers in `environment` plus what each plan adds."""
        self._clock = clock
        self._environment = dict(environment)
        self._children: dict[ProcessIdentity, subprocess.Popen[bytes]] = {}

    def spawn(self, plan: LaunchPlan, log_path: Path) -> Launched:
        """Start a plan's process in its own session, output appended to `log_path` (0600).

        Raises:
            LaunchFailed: The interpreter or command is missing or not executable, or the log
                cannot be written.
        """
        if plan.is_observed_only:
            raise LaunchFailed(f"preset {plan.preset} only watches {plan.url}: nothing to start")
        wall = self._clock.wall()
        key = "python" if plan.is_direct else "command"
        identity = self._begin(plan.argv, plan, log_path, key)
        return Launched(
            pid=identity.pid,
            start_ticks=identity.start_ticks,
            session=identity.pid,
            log_path=str(log_path),
            argv=plan.shown_argv,
            wall=wall,
        )

    def follow(self, plan: LaunchPlan, log_path: Path) -> ProcessIdentity:
        """Start a plan's log command in a session of its own, output appended to `log_path`.

        Like the server it outlives kvctld; it is no part of it, and ended with the launch.

        Raises:
            LaunchFailed: It is missing or not executable, or the log cannot be written.
        """
        return self._begin(plan.log_command or (), plan, log_path, "log")

    def _begin(
        self, argv: Sequence[str], plan: LaunchPlan, log_path: Path, key: str
    ) -> ProcessIdentity:
        """Start what `[launch] key` names. Raises LaunchFailed."""
        log = _open_log(log_path)
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environment, **dict(plan.env)},
                start_new_session=True,
                close_fds=True,
            )
        except OSError as failed:
            _remove_if_empty(log_path)
            raise LaunchFailed(_reason(argv[0], failed, key, plan.preset)) from failed
        finally:
            os.close(log)
        # Readable even if it has ended: it stays a zombie until it is polled.
        identity = ProcessIdentity(child.pid, start_ticks(child.pid) or 0)
        self._children[identity] = child
        return identity

    def exit_of(self, identity: ProcessIdentity) -> int | None:
        """Return the exit status of a child that has ended (negative: signal), else None.

        None too for a process that is no child of this kvctld. Also reaps it.
        """
        child = self._children.get(identity)
        return None if child is None else child.poll()

    def is_child(self, identity: ProcessIdentity) -> bool:
        """Return whether this kvctld started that very process."""
        return identity in self._children

    def reap(self) -> tuple[tuple[ProcessIdentity, int], ...]:
        """Return the children that have ended, with status; call it often, so none is a zombie."""
        ended = [(who, child.poll()) for who, child in self._children.items()]
        return tuple((who, status) for who, status in ended if status is not None)

    async def wait(self, identity: ProcessIdentity) -> int | None:
        """Wait until a child has ended and return its status; None at once if it is no child."""
        while self.is_child(identity):
            status = self.exit_of(identity)
            if status is not None:
                return status
            await self._clock.sleep(_POLL_S)
        return None

    def living(self) -> tuple[ProcessIdentity, ...]:
        """Return the children that still run."""
        return tuple(who for who, child in self._children.items() if child.poll() is None)

    def close(self) -> None:
        """Let go of living children: they go on, and whoever adopts them watches /proc."""
        for child in self._children.values():
            if child.poll() is None:
                # Popen would warn about a child that is left running, which is the purpose here.
                child.returncode = 0
        self._children.clear()


def log_trouble(path: str) -> str | None:
    """Return why nothing more can be written to a log, None where it can or cannot be seen."""
    try:
        state = os.statvfs(path)
    except OSError:
        return None
    free = state.f_bavail * state.f_frsize
    return f"the disk of its log is full: {path}" if free < _LEAST_FREE_BYTES else None


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return when a process started, in clock ticks after boot; None if it is not there."""
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may contain anything; field 22 is the 20th after it.
    return int(stat.rpartition(")")[2].split()[19])


def _open_log(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as failed:
        raise LaunchFailed(f"the log {path} cannot be written: {failed.strerror}") from failed


def _remove_if_empty(path: Path) -> None:
    try:
        if path.stat().st_size == 0:
            path.unlink()
    except OSError:
        return


def _reason(program: str, failed: OSError, key: str, preset: str) -> str:
    what = {
        FileNotFoundError: "does not exist",
        PermissionError: "may not be executed",
    }.get(type(failed), f"cannot be started: {failed.strerror}")
    return f"{program} {what}; correct [launch] {key} of preset {preset}"
