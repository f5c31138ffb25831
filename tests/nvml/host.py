"""A host with stand-in GPUs: its state file, and Python children that see it through pynvml."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20


class StandinHost:
    """Writes the state file; every call of a running child sees the change."""

    def __init__(self, library: Path, state: Path) -> None:
        self.library = library
        self.state = state
        self._lines: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which a child finds the stand-in library."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library),
            "KVCTL_STANDIN_NVML": str(self.state),
        }

    def write(self, *lines: str) -> None:
        """Replace the whole state."""
        self._lines = list(lines)
        self._save()

    def add(self, *lines: str) -> None:
        """Add facts to the state."""
        self._lines += lines
        self._save()

    def drop(self, line: str) -> None:
        """Take one fact out of the state."""
        self._lines.remove(line)
        self._save()

    def _save(self) -> None:
        fresh = self.state.with_suffix(".new")
        fresh.write_text("\n".join(self._lines) + "\n")
        fresh.replace(self.state)

    def python(self, code: str, *args: str, timeout_s: float = 30) -> Any:
        """Run code in a child that sees these GPUs; return the JSON document it prints last."""
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])
