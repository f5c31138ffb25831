"""What is really loaded, seen from inside a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import kvctld, paths

from kvctl.core.daemon.wire import DaemonInfo

__all__ = ["kvctld", "paths"]

_REPORT = """
import sys
from kvctl.core.cli.main import run
status = run({words!r}, {{}})
print("loaded:", *sorted(m for m in {watched!r} if m in sys.modules), file=sys.stderr)
sys.exit(status)
"""


def loaded(words: list[str], *watched: str) -> set[str]:
    """Run a command line in a fresh interpreter and return which modules it loaded."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _REPORT.format(words=words, watched=watched)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("loaded:"), done.stderr
    return set(last.split()[1:])


def test_version_loads_neither_the_panel_nor_an_http_client() -> None:
    watched = ("textual", "rich", "httpx", "aiohttp", "psutil", "pynvml", "msgspec", "sglang")
    assert loaded(["--version"], *watched) == set()


def test_wrong_words_load_nothing_heavy() -> None:
    assert loaded(["bogus"], "textual", "httpx", "aiohttp", "psutil", "msgspec") == set()


@pytest.mark.parametrize("verb", [["status"], ["gpus"], ["run", "status"]], ids=" ".join)
def test_reading_verbs_load_neither_the_panel_nor_httpx(
    kvctld: DaemonInfo, verb: list[str]
) -> None:
    words = ["--state-dir", kvctld.state, *verb, "--json"]
    assert loaded(words, "textual", "rich", "httpx", "aiohttp", "pynvml") == set()


def test_no_module_of_core_loads_the_panel_or_the_engine() -> None:
    """Import every module of core at once; what they pull in is what is forbidden or not."""
    core = Path(__file__).resolve().parents[2] / "core"
    names = [
        ".".join(("kvctl", "core", *path.relative_to(core).with_suffix("").parts))
        for path in sorted(core.rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    ]
    # httpx itself imports rich where it is installed, so rich is not asked about here.
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "bad = [m for m in ('textual', 'sglang', 'torch', 'kvctl.tui') if m in sys.modules]\n"
        "print(bad)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
