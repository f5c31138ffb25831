"""Processes of this host from /proc, and signals through pidfds that cannot hit the wrong one.

A process is identified by its pid and its start time (field 22 of /proc/PID/stat); a pid alone
can be reused between looking and sending. Reads only; the one thing it does is `send`.
"""

import errno
import os
import pwd
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kvctl.core.domain.gpus.devices import ProcessFacts, ProcessIdentity
from kvctl.core.domain.gpus.membership import LAUNCH_MARK, Me

_DEVICE = re.compile(r"^/dev/nvidia(\d+)$")
_MAPPED_DEVICE = re.compile(rb"/dev/nvidia(\d+)$", re.MULTILINE)
_DEAD_STATES = frozenset("ZXx")
_EXITING_FLAG = 0x4
"""PF_EXITING in field 9 of stat."""
_KILL_BIT = 1 << (signal.SIGKILL - 1)
_LONGEST_TITLE = 2000
_MAPS_EVERY = 8
"""A process's mappings are looked at when it is new and then every so many scans."""
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the host's own pid namespace, the same on every Linux (PROC_PID_INIT_INO)."""


@dataclass(frozen=True, slots=True)
class _Stat:
    name: str
    state: str
    parent: int
    group: int
    session: int
    flags: int
    start_ticks: int


class HostProcesses:
    """The processes that this host's /proc shows (implements `ports.Processes`)."""

    def __init__(self, proc: Path = Path("/proc"), own_pid: int | None = None) -> None:
        """Look at `proc`; `own_pid` is never signalled (this process by default)."""
        self._proc = proc
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._mapped: dict[int, tuple[int, frozenset[int]]] = {}
        self._titles: dict[int, tuple[int, str]] = {}
        self._scans = 0
        self._unreadable = 0

    @property
    def scan_limits(self) -> tuple[str, ...]:
        """What the last scan for device files could not look into, in words."""
        if not self._unreadable:
            return ()
        return (
            f"{self._unreadable} processes of other users could not be looked into for open"
            " /dev/nvidia* files; run as root to see them",
        )

    def facts(self, pid: int) -> ProcessFacts | None:
        """Return what is known of a live process, None if it is not visible here."""
        stat = self._stat(pid)
        if stat is None:
            return None
        uid, is_kill_pending = self._status(pid, stat)
        return ProcessFacts(
            identity=ProcessIdentity(pid, stat.start_ticks),
            parent_pid=stat.parent,
            session=stat.session,
            group=stat.group,
            state=stat.state,
            user=_user_name(uid),
            uid=uid,
            title=self._title(pid, stat),
            cgroup=_pick_cgroup(self._text(pid, "cgroup")),
            is_kill_pending=is_kill_pending,
            launch_mark=None if stat.state == "D" else self._variable(pid, LAUNCH_MARK),
        )

    def all_facts(self) -> Sequence[ProcessFacts]:
        """Return every process visible here."""
        found = (self.facts(pid) for pid in self.pids())
        return [facts for facts in found if facts is not None]

    def pids(self) -> list[int]:
        """Return every pid visible here, lowest first."""
        return sorted(int(name) for name in os.listdir(self._proc) if name.isdigit())

    def is_hidden(self, pid: int) -> bool:
        """Return whether a pid exists although /proc does not show it (another user's)."""
        if pid <= 0 or self._stat(pid) is not None:
            return False
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        except (ProcessLookupError, OverflowError):
            return False
        return True

    def environment(self, identity: ProcessIdentity, name: str) -> str | None:
        """Return one variable of a process's environment, None if unset or unreadable."""
        value = self._variable(identity.pid, name)
        return value if self._is_same(identity) else None

    def is_alive(self, identity: ProcessIdentity) -> bool:
        """Return whether this very process still runs (a zombie does not)."""
        stat = self._stat(identity.pid)
        if stat is None or stat.start_ticks != identity.start_ticks:
            return False
        return stat.state not in _DEAD_STATES

    def device_file_holders(self) -> Mapping[int, tuple[int, ...]]:
        """Return pid -> GPU minor numbers of /dev/nvidiaN nodes it has open or mapped."""
        self._scans += 1
        self._unreadable = 0
        found: dict[int, tuple[int, ...]] = {}
        pids = self.pids()
        for pid in pids:
            minors = self._open_minors(pid) | self._mapped_minors(pid)
            if minors:
                found[pid] = tuple(sorted(minors))
        self._forget(set(pids))
        return found

    def send(self, identity: ProcessIdentity, number: signal.Signals) -> None:
        """Send a signal through a pidfd after checking the start time.

        Raises:
            ProcessLookupError: It is gone, or the pid belongs to another process now.
            PermissionError: The kernel forbids it, or it is init or kvctl itself.
        """
        pid = identity.pid
        if pid <= 1 or pid == self._own_pid:
            raise PermissionError(errno.EPERM, f"pid {pid} is never signalled (init or kvctl)")
        handle = _open_pidfd(pid)
        try:
            self._check(identity)
            signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)

    def _check(self, identity: ProcessIdentity) -> None:
        """Refuse what is not the same process any more; its pidfd is open by now."""
        stat = self._stat(identity.pid)
        if stat is None or stat.state in _DEAD_STATES:
            raise ProcessLookupError(errno.ESRCH, f"process {identity.pid} has ended")
        if stat.start_ticks != identity.start_ticks:
            raise ProcessLookupError(
                errno.ESRCH, f"pid {identity.pid} belongs to another process now"
            )

    def _is_same(self, identity: ProcessIdentity) -> bool:
        stat = self._stat(identity.pid)
        return stat is not None and stat.start_ticks == identity.start_ticks

    def _stat(self, pid: int) -> _Stat | None:
        """Parse /proc/PID/stat; the name may itself contain spaces and parentheses."""
        raw = self._text(pid, "stat")
        opened, closed = raw.find("("), raw.rfind(")")
        fields = raw[closed + 2 :].split()
        if opened < 0 or closed < 0 or len(fields) < 20:
            return None
        return _Stat(
            name=raw[opened + 1 : closed],
            state=fields[0],
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            flags=int(fields[6]),
            start_ticks=int(fields[19]),
        )

    def _status(self, pid: int, stat: _Stat) -> tuple[int, bool]:
        """Return the real user id, and whether a KILL waits or the process is going down."""
        uid, pending = -1, 0
        for line in self._text(pid, "status").splitlines():
            if line.startswith("Uid:"):
                uid = int(line.split()[1])
            elif line.startswith(("SigPnd:", "ShdPnd:")):
                pending |= int(line.split()[1], 16)
        is_going = bool(stat.flags & _EXITING_FLAG) and stat.state not in _DEAD_STATES
        return uid, bool(pending & _KILL_BIT) or is_going

    def _title(self, pid: int, stat: _Stat) -> str:
        """Return the command line, else the name; reading it could hang on a process in D."""
        if stat.state == "D":
            ticks, title = self._titles.get(pid, (0, ""))
            return title if ticks == stat.start_ticks else _plain(stat.name)
        words = self._bytes(pid, "cmdline").rstrip(b"\0 ").replace(b"\0", b" ")
        title = _plain(words.decode("utf-8", "replace")) or _plain(stat.name)
        self._titles[pid] = (stat.start_ticks, title)
        return title

    def _variable(self, pid: int, name: str) -> str | None:
        prefix = name.encode() + b"="
        for entry in self._bytes(pid, "environ").split(b"\0"):
            if entry.startswith(prefix):
                return entry[len(prefix) :].decode("utf-8", "replace")
        return None

    def _open_minors(self, pid: int) -> frozenset[int]:
        minors: set[int] = set()
        folder = f"{self._proc}/{pid}/fd"
        try:
            names = os.listdir(folder)
        except PermissionError:
            self._unreadable += 1
            return frozenset()
        except OSError:
            return frozenset()
        for name in names:
            try:
                match = _DEVICE.match(os.readlink(f"{folder}/{name}"))
            except OSError:
                continue
            if match:
                minors.add(int(match[1]))
        return frozenset(minors)

    def _mapped_minors(self, pid: int) -> frozenset[int]:
        stat = self._stat(pid)
        if stat is None or stat.state == "D":
            return frozenset()
        ticks, minors = self._mapped.get(pid, (0, frozenset[int]()))
        if ticks == stat.start_ticks and (pid + self._scans) % _MAPS_EVERY:
            return minors
        found = _MAPPED_DEVICE.findall(self._bytes(pid, "maps"))
        minors = frozenset(int(minor) for minor in found)
        self._mapped[pid] = (stat.start_ticks, minors)
        return minors

    def _forget(self, living: set[int]) -> None:
        """Drop what is remembered of ended processes; other threads may be reading meanwhile."""
        for pid in [pid for pid in list(self._mapped) if pid not in living]:
            self._mapped.pop(pid, None)
        for pid in [pid for pid in list(self._titles) if pid not in living]:
            self._titles.pop(pid, None)

    def _text(self, pid: int, name: str) -> str:
        return self._bytes(pid, name).decode("utf-8", "replace")

    def _bytes(self, pid: int, name: str) -> bytes:
        """Return a file of a process, empty where it is gone or may not be read."""
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb") as file:
                return file.read()
        except OSError:
            return b""


def read_me(proc: Path = Path("/proc")) -> Me:
    """Return who kvctld is here, and whether it sits in a pid namespace of its own."""
    uid = os.geteuid()
    try:
        namespace = os.stat(proc / "self" / "ns" / "pid").st_ino
    except OSError:
        namespace = _FIRST_PID_NAMESPACE
    return Me(uid, _user_name(uid), os.getpid(), namespace != _FIRST_PID_NAMESPACE)


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended") from None
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise PermissionError(
                errno.EPERM, "this kernel (before 5.3) has no pidfd, so kvctl sends no signal"
            ) from error
        raise ProcessLookupError(errno.ESRCH, f"pid {pid} is no process: {error}") from error


def _plain(text: str) -> str:
    """Return text without control characters or direction overrides, cut to a sane length."""
    cut = text.strip()[:_LONGEST_TITLE]
    return "".join(char if char.isprintable() else "�" for char in cut)


def _pick_cgroup(text: str) -> str:
    """Return the unified path, or on old hosts the first other one that says something."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths[controllers] = path
    for controllers in ("", "name=systemd", "pids", "memory", "cpu,cpuacct", "devices"):
        if paths.get(controllers, "/") != "/":
            return paths[controllers]
    return paths.get("", "")


@lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
