"""Leftovers, reused pids, supervisors and a hanging driver, through the installed kvctl.

Each case of `tests/nvml/inside_namespace.py` runs in a pid namespace of its own, so that "every
leftover of this host" can only be the test's.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.terminal

INSIDE = Path(__file__).parents[1] / "nvml" / "inside_namespace.py"
CASES = [
    node.name
    for node in ast.parse(INSIDE.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


def namespace_words() -> list[str]:
    """Return what makes a pid namespace with its own /proc."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return words if os.getuid() == 0 else [*words, "--map-root-user", "--user"]


@pytest.mark.parametrize("case", CASES)
def test_in_a_pid_namespace(case: str, tmp_path: Path) -> None:
    # A shell is process 1, as an init is: orphans become its children.
    pytest_words = '"$0" -m pytest -q -p no:cacheprovider "$1" --basetemp "$2"; exit $?'
    command = [*namespace_words(), "sh", "-c", pytest_words]
    arguments = [sys.executable, f"{INSIDE}::{case}", str(tmp_path / "i")]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=150
    )
    if done.stderr.startswith("unshare:"):
        pytest.skip(f"no pid namespace can be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
