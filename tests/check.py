#!/usr/bin/env python3
"""Runs every check that needs no engine: `python3 tests/check.py`, from a bare checkout.

Makes a venv (.venv-check, or $VENV), installs kvctl with its development tools as pinned in
constraints.txt, then runs ruff, mypy, import-linter and pytest. Words given are handed to pytest,
and then only pytest runs. Standard library only; works with any Python 3 that can find a 3.11 to
3.13, and needs the package index and nothing else.
"""

from __future__ import annotations  # an older python3 must get as far as finding a newer one

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
FITTING = ("python3.13", "python3.12", "python3.11")
CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports",),
)


def main(words: list[str]) -> None:
    """Install and check; leaves with a status at the first check that fails."""
    venv = Path(os.environ.get("VENV") or ROOT / ".venv-check").absolute()
    tools = venv / "bin"
    if not (tools / "python").exists():
        tell(f"making {venv}")
        run([suitable_python(), "-m", "venv", str(venv)])
    install = [str(tools / "python"), "-m", "pip", "install", "--quiet"]
    install += ["--disable-pip-version-check", "-c", "constraints.txt", "-e", ".[dev]"]
    run(install)
    if not words:
        for tool, *options in CHECKS:
            run([str(tools / tool), *options])
    run([str(tools / "python"), "-m", "pytest", *words])
    tell("everything passed")


def suitable_python() -> str:
    """Return an interpreter that kvctl is tested on, preferring the one that runs this."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return sys.executable
    for name in FITTING:
        path = shutil.which(name)
        if path and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            return path
    if sys.version_info[:2] > NEWEST:
        return sys.executable
    sys.exit("check: kvctl needs Python 3.11 or newer; none is on the PATH")


def run(command: list[str]) -> None:
    """Run one command in the checkout; leave with its status if it fails."""
    tell(" ".join(command))
    status = subprocess.call(command, cwd=str(ROOT), stdin=subprocess.DEVNULL)
    if status:
        sys.exit(f"check: failed ({status}): {' '.join(command)}")


def tell(text: str) -> None:
    """Say what happens, in order with the output of what is run."""
    print(f"check: {text}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
