"""How a process that runs here was launched: its command line and environment, from /proc."""

import os
import shutil
from pathlib import Path

from kvctl.core.domain.errors import KvctlError


def read_launch(
    pid: int, proc: Path = Path("/proc")
) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """Return (command line, environment at its start); None where that is not readable.

    The program is written out, so that another folder or PATH starts the same one.

    Raises:
        KvctlError: The process is gone, or its command line is not visible.
    """
    try:
        words = _split((proc / str(pid) / "cmdline").read_bytes())
    except OSError as failed:
        raise KvctlError(f"pid {pid} is not there: {failed.strerror}") from failed
    if not words:
        raise KvctlError(f"the command line of pid {pid} is not visible")
    try:
        pairs = _split((proc / str(pid) / "environ").read_bytes())
    except OSError:
        return tuple(words), None
    environment = dict(pair.partition("=")[::2] for pair in pairs)
    return (_whole(words[0], environment, proc / str(pid)), *words[1:]), environment


def _split(raw: bytes) -> list[str]:
    text = raw.decode("utf-8", errors="replace").rstrip("\0")
    return text.split("\0") if text else []


def _whole(program: str, environment: dict[str, str], process: Path) -> str:
    """Return where a program lies. Not /proc/PID/exe: that is behind a venv's link."""
    if "/" not in program:
        return shutil.which(program, path=environment.get("PATH")) or program
    if program.startswith("/"):
        return program
    try:
        return os.path.normpath(Path(os.readlink(process / "cwd")) / program)
    except OSError:
        return program
