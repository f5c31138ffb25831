"""Real processes with SGLang's titles: parents, schedulers, orphans, such as ignore TERM.

Each is this interpreter's small `plant.py` or `sleep` under another argv[0]. Everything planted
is remembered by pidfd, so that clearing up never hits another process.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.probes.processes import HostProcesses

SLEEP = shutil.which("sleep") or "/bin/sleep"
_HOST = HostProcesses()

_PARENT = textwrap.dedent(
    """
    import os, signal, subprocess, sys
    sleep, seconds = sys.argv[1], "600"
    for spec in sys.argv[2:]:
        flags, title = spec.split("|", 1)
        if "i" in flags:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([title, seconds], executable=sleep, start_new_session="s" in flags)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        print(child.pid, flush=True)
    print("planted", flush=True)
    sys.stdin.read()
    """
)


def identity_of(pid: int) -> ProcessIdentity:
    """The identity of a living process, as kvctl reads it."""
    facts = _HOST.facts(pid)
    assert facts is not None, f"process {pid} has ended"
    return facts.identity


@dataclass(frozen=True)
class Server:
    """A planted tree: a parent that looks like a server's main, and its children."""

    main: ProcessIdentity
    children: tuple[ProcessIdentity, ...]
    popen: subprocess.Popen[str]


class Grove:
    """Plants processes and clears up behind them."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._popens: list[subprocess.Popen[str]] = []

    def sleeper(
        self, title: str, *, ignores_term: bool = False, own_session: bool = True
    ) -> ProcessIdentity:
        """Start `sleep` under a title; its parent is this test."""
        popen = subprocess.Popen(
            [title, "600"],
            executable=SLEEP,
            start_new_session=own_session,
            preexec_fn=_ignore_term if ignores_term else None,
            text=True,
        )
        return self._keep(popen, title)

    def server(self, title: str, *children: str, flags: Sequence[str] = ()) -> Server:
        """Start a parent in a session of its own with children under their titles.

        Flags of a child: "i" ignores TERM, "s" sits in a session of its own.
        """
        marks = [*flags, *[""] * (len(children) - len(flags))]
        specs = [f"{mark}|{child}" for mark, child in zip(marks, children, strict=True)]
        popen = subprocess.Popen(
            [title, "-S", "-c", _PARENT, SLEEP, *specs],
            executable=sys.executable,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        main = self._keep(popen, title)
        assert popen.stdout is not None
        pids = [int(popen.stdout.readline()) for _ in children]
        assert popen.stdout.readline() == "planted\n"
        for pid, child in zip(pids, children, strict=True):
            self._fds[pid] = os.pidfd_open(pid)
            _wait_for_title(pid, child)
        return Server(main, tuple(identity_of(pid) for pid in pids), popen)

    def behead(self, server: Server) -> None:
        """KILL a server's main, collect it, and wait until its children have another parent."""
        server.popen.kill()
        server.popen.wait(10)
        main = server.main.pid
        wait_until(lambda: main not in [_parent(child.pid) for child in server.children])

    def end(self, process: ProcessIdentity) -> None:
        """KILL one planted process and collect it, so that its pid becomes free."""
        popen = next(one for one in self._popens if one.pid == process.pid)
        popen.kill()
        popen.wait(10)

    def clear(self) -> None:
        """KILL what is left, by pidfd, and wait for it."""
        for fd in self._fds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        for popen in self._popens:
            for stream in (popen.stdin, popen.stdout):
                if stream is not None:
                    stream.close()
            popen.wait(10)
        for fd in self._fds.values():
            select.select([fd], [], [], 10)
            os.close(fd)
        self._fds.clear()
        self._popens.clear()

    def _keep(self, popen: subprocess.Popen[str], title: str) -> ProcessIdentity:
        self._popens.append(popen)
        self._fds[popen.pid] = os.pidfd_open(popen.pid)
        _wait_for_title(popen.pid, title)
        return identity_of(popen.pid)


def wait_until(is_true: Callable[[], bool], seconds: float = 10) -> None:
    """Look again until something is true; fail after `seconds`."""
    for _ in range(int(seconds * 100)):
        if is_true():
            return
        select.select([], [], [], 0.01)
    raise AssertionError("it did not become true in time")


def _wait_for_title(pid: int, title: str) -> None:
    """Wait until the kernel shows the new command line: exec is seen before its arguments are."""
    wanted = title.encode()
    wait_until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(wanted))


def _ignore_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _parent(pid: int) -> int | None:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rindex(")") + 2 :].split()[1])
