"""A disk that really is full: a small tmpfs in a user namespace, else a limit on file sizes.

    python -m tests.fakes.small_disk SCENARIO FOLDER

A scenario is a coroutine of `tests.fakes.disk_scenarios`; it gets the disk and prints one JSON
line. Nothing of the operating system is replaced: the kernel itself refuses.
"""

import asyncio
import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL, LARGE = 64 << 10, 4 << 20
_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


@dataclass
class SmallDisk:
    """A folder in which little fits until it is made larger."""

    folder: Path
    is_mounted: bool

    @property
    def refusal(self) -> str:
        """What the kernel says when it is full."""
        return "No space left on device" if self.is_mounted else "File too large"

    def grow(self) -> None:
        """Make room."""
        if self.is_mounted:
            self._mount("-o", f"remount,size={LARGE}", str(self.folder))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE, resource.RLIM_INFINITY))

    def shrink(self) -> None:
        """Begin small."""
        if self.is_mounted:
            self._mount("-t", "tmpfs", "-o", f"size={SMALL}", "small", str(self.folder))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, resource.RLIM_INFINITY))

    def _mount(self, *words: str) -> None:
        subprocess.run(["mount", *words], check=True)


def can_mount() -> bool:
    """Whether this machine lets a user have a mount namespace of their own."""
    try:
        done = subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def on_small_disk(scenario: str, folder: Path) -> dict[str, Any]:
    """Run a scenario in a process of its own; return what it found."""
    words = [sys.executable, "-m", __name__, scenario, str(folder)]
    if can_mount():
        words = [*_UNSHARE, *words, "mounted"]
    root = Path(__file__).parents[2]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _main() -> None:
    from tests.fakes import disk_scenarios

    name, folder = sys.argv[1], Path(sys.argv[2])
    disk = SmallDisk(folder, "mounted" in sys.argv[3:])
    disk.shrink()
    print(json.dumps(asyncio.run(getattr(disk_scenarios, name)(disk))))


if __name__ == "__main__":
    _main()
