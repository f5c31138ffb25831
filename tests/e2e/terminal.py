"""A real pseudo-terminal and the screen that it would show (pyte), to drive the installed kvctl.

    with Terminal([KVCTL, "--state-dir", folder], columns=120, rows=40) as terminal:
        terminal.wait_for("LIMIT")
        terminal.send("q")
        assert terminal.wait_exit() == 0

A wait that fails shows the screen as it stood.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

KVCTL = Path(sys.executable).with_name("kvctl")
DEADLINE_S = 30.0


class Terminal:
    """One process in a pseudo-terminal of its own, as session leader, with its screen."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        columns: int = 120,
        rows: int = 40,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start `command` at this size; the environment is the test's own with a plain TERM."""
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.received = bytearray()
        self._status: int | None = None
        given = dict(os.environ if environ is None else environ)
        given.setdefault("TERM", "xterm-256color")
        self.pid, self._master = pty.fork()
        if self.pid == 0:  # pragma: no cover - the child becomes the command
            _become([os.fspath(word) for word in command], given, cwd, (rows, columns))
        self._set_size(rows, columns)
        os.set_blocking(self._master, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def lines(self) -> list[str]:
        """The screen, one text a row, trailing blanks removed."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(self.lines)

    def send(self, keys: str) -> None:
        """Type these characters."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the size, as dragging the window does."""
        self.screen.resize(rows, columns)
        self._set_size(rows, columns)

    def wait_for(self, wanted: str, within_s: float = DEADLINE_S) -> None:
        """Wait until the screen shows this text (a regular expression)."""
        pattern = re.compile(wanted)
        self.wait_until(lambda: bool(pattern.search(self.text)), f"{wanted!r}", within_s)

    def wait_gone(self, unwanted: str, within_s: float = DEADLINE_S) -> None:
        """Wait until the screen no longer shows this text."""
        pattern = re.compile(unwanted)
        self.wait_until(lambda: not pattern.search(self.text), f"no {unwanted!r}", within_s)

    def wait_until(
        self, condition: Callable[[], bool], what: str, within_s: float = DEADLINE_S
    ) -> None:
        """Read the terminal until a condition of the screen holds."""
        deadline = time.monotonic() + within_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(min(left, 0.2)):
                if condition():
                    return
                raise AssertionError(f"not seen: {what}; the screen:\n{self._framed()}")

    def wait_exit(self, within_s: float = DEADLINE_S) -> int:
        """Wait for the process to end by itself and return its exit status (negative: signal)."""
        deadline = time.monotonic() + within_s
        while self._poll() is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"still running; the screen:\n{self._framed()}")
            self._read(0.05)
        while self._master >= 0 and self._read(0.0):
            pass
        assert self._status is not None
        return self._status

    def is_raw(self) -> bool:
        """Whether the terminal was left without echo or line editing."""
        flags = termios.tcgetattr(self._master)[3]
        return not (flags & termios.ECHO and flags & termios.ICANON)

    def hang_up(self) -> None:
        """Close the terminal under the process, as a lost SSH connection does."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        """End the process if it still runs, and give the terminal back."""
        if self._poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def _poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def _read(self, wait_s: float) -> bool:
        """Take in what the terminal has; False once the other side is closed."""
        watched = [self._master] if self._master >= 0 else []
        ready, _, _ = select.select(watched, [], [], wait_s)
        if not ready:
            # wait_exit drains with no wait: nothing there then means the end.
            return wait_s > 0
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.received += data
        self._stream.feed(data)
        return bool(data)

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _framed(self) -> str:
        edge = "+" + "-" * self.screen.columns + "+"
        rows = "\n".join(f"|{line:<{self.screen.columns}}|" for line in self.lines)
        return f"{edge}\n{rows}\n{edge}"


def _become(
    command: list[str], environ: Mapping[str, str], cwd: Path | None, size: tuple[int, int]
) -> None:
    try:
        # The size is set before the first byte: a program may read it only once.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        # A test run in the background has Ctrl-C switched off, one under nohup a lost line, too;
        # what sits at a terminal has neither.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if cwd is not None:
            os.chdir(cwd)
        os.execvpe(command[0], command, environ)
    finally:
        os._exit(127)
