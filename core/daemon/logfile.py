"""Standard input, output and error of kvctld: a file in the state folder, turned over by size.

Whatever a library or an interpreter crash prints lands there too, and no terminal is held.
"""

import logging
import os
from pathlib import Path

LARGEST_BYTES = 8 * 1024 * 1024


def redirect_standard_streams(path: Path) -> None:
    """Send output and error to `path` (appended) and read from nowhere."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nowhere, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    for number in {nowhere, target} - {0, 1, 2}:
        os.close(number)


def turn_over(path: Path, largest_bytes: int = LARGEST_BYTES) -> bool:
    """Start a new file where the log has grown too large or was deleted; keep one older."""
    try:
        facts = os.fstat(2)
        is_same = os.path.samestat(facts, path.stat())
    except OSError:
        is_same = False
    if is_same and facts.st_size <= largest_bytes:
        return False
    if is_same:
        path.replace(path.with_suffix(path.suffix + ".1"))
    redirect_standard_streams(path)
    return True


def log_to_standard_error() -> None:
    """Let every logger write its lines to standard error, with UTC-free local stamps."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


def last_line(path: Path) -> str:
    """Return the last line with text of a log, "" where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
