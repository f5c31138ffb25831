"""How much the other processes of a host moved its memory while one process tree was at work."""

import threading
import time
from pathlib import Path

PERIOD_S = 0.1


class QuietHost:
    """Samples what all but one process tree hold, until told to stop."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._held: list[tuple[float, float]] = []
        """Monotonic seconds and MiB."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self, since: float) -> float:
        """Stop, and return the spread of what the others held since then, in MiB."""
        self._ended.set()
        self._thread.join()
        held = [mib for at, mib in self._held if at >= since]
        return round(max(held) - min(held), 1) if held else 0.0

    def _sample(self) -> None:
        while not self._ended.wait(PERIOD_S):
            own = sum(map(_own_mib, [self._root, *_children(self._root)]))
            lines = Path("/proc/meminfo").read_text().splitlines()
            rows = dict(line.split(":", 1) for line in lines)
            total, free = (int(rows[n].split()[0]) / 1024 for n in ("MemTotal", "MemAvailable"))
            self._held.append((time.monotonic(), total - free - own))


def _children(pid: int) -> list[int]:
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    direct = [int(word) for word in words]
    return [*direct, *(grandchild for child in direct for grandchild in _children(child))]


def _own_mib(pid: int) -> float:
    """Return a process's memory, what it shares counted in shares (PSS)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    found = (line.split() for line in lines if line.startswith("Pss:"))
    return next((int(words[1]) / 1024 for words in found), 0.0)
