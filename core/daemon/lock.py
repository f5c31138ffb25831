"""Who runs: one kvctld a state folder, also while that folder is being deleted and made again.

The lock file decides (flock, released by the kernel at any death). A name in the kernel's
abstract socket space backs it up: it cannot be deleted, so a second kvctld is refused even in the
second between a removed folder and its return.
"""

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path

from kvctl.core.domain.errors import CommandRefused


class AlreadyRunning(CommandRefused):
    """Another kvctld serves this state folder."""


class DaemonLock:
    """The right to be the one kvctld of a state folder."""

    def __init__(self, path: Path, name: str) -> None:
        """Remember the lock file and the abstract name; takes nothing yet."""
        self._path = path
        self._name = _abstract(name)
        self._file: int | None = None
        self._anchor: socket.socket | None = None

    def acquire(self) -> None:
        """Take the lock or refuse.

        Raises:
            AlreadyRunning: Another kvctld holds it.
        """
        try:
            self._anchor = self._bind_name()
            self._file = self._lock_file()
        except AlreadyRunning:
            self.release()
            raise

    def renew_if_lost(self) -> bool:
        """Lock the file again where it was deleted or replaced; return whether that was needed.

        Raises:
            AlreadyRunning: Another kvctld (in another network namespace) took its place.
        """
        self._hang_up()
        if self._file is not None and _is_same_file(self._file, self._path):
            return False
        fresh = self._lock_file()
        if self._file is not None:
            os.close(self._file)
        self._file = fresh
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None

    def _hang_up(self) -> None:
        """Let go of who asked whether the name lives, so that the next one is heard too."""
        if self._anchor is None:
            return
        self._anchor.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._anchor.accept()[0].close()

    def _lock_file(self) -> int:
        number = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(number)
            raise AlreadyRunning(_held_by(holder_pid(self._path))) from error
        os.ftruncate(number, 0)
        os.pwrite(number, f"{os.getpid()}\n".encode(), 0)
        return number

    def _bind_name(self) -> socket.socket | None:
        anchor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            anchor.bind(self._name)
            anchor.listen(1)
        except OSError:
            anchor.close()
            self._refuse_unless_foreign()
            return None
        return anchor

    def _refuse_unless_foreign(self) -> None:
        # Any user may take an abstract name; only our own uid's claim counts.
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            try:
                pid, uid = _peer(probe, self._name)
            except OSError:
                raise AlreadyRunning(_held_by(holder_pid(self._path))) from None
        if uid == os.getuid():
            raise AlreadyRunning(_held_by(pid))


def lives_by_name(name: str) -> bool:
    """Return whether our user's kvctld lives, told by the name that cannot be deleted."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            return _peer(probe, _abstract(name))[1] == os.getuid()
        except OSError:
            return False


def _abstract(name: str) -> str:
    return f"\0kvctld-{os.getuid()}-{name}"


def _peer(probe: socket.socket, name: str) -> tuple[int, int]:
    """Return pid and uid of who listens under an abstract name. Raises OSError if none does."""
    probe.settimeout(1.0)
    probe.connect(name)
    packed = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", packed)
    return pid, uid


def holder_pid(path: Path) -> int | None:
    """Return the pid written in a lock file, None where there is none."""
    try:
        text = path.read_text("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def is_locked(path: Path) -> bool:
    """Return whether some process holds the lock file now."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(number)
    return False


def _is_same_file(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.lstat(path))
    except OSError:
        return False


def _held_by(pid: int | None) -> str:
    who = "another kvctld" if pid is None else f"kvctld with pid {pid}"
    return f"{who} already serves this state folder; `kvctl daemon stop` ends it"
