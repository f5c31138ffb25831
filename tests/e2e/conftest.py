"""The installed kvctl in a real terminal, over a kvctld with the mission's steady picture."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.conftest import environ, kvctld, paths
from tests.e2e.terminal import KVCTL, Terminal

from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.wire import DaemonInfo

__all__ = ["environ", "kvctld", "paths"]

OpenPanel = Callable[..., Terminal]


@pytest.fixture
def panel(kvctld: DaemonInfo, paths: DaemonPaths, environ: dict[str, str]) -> Iterator[OpenPanel]:
    """Open `kvctl WORDS` in a terminal of a given size; all are closed with the test."""
    with ExitStack() as stack:

        def open_panel(*words: str, columns: int = 120, rows: int = 40, **extra: str) -> Terminal:
            command: list[str | Path] = [KVCTL, "--state-dir", paths.state, *words]
            given = {**environ, "LANG": "C.UTF-8", "TERM": "xterm-256color", **extra}
            given.pop("PYTHONWARNINGS", None)
            return stack.enter_context(Terminal(command, columns=columns, rows=rows, environ=given))

        yield open_panel


@pytest.fixture(autouse=True)
def _no_inherited_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLORTERM", "TMUX", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    assert os.environ
