"""`e` in the demo's preset pane: a real program gets the terminal, and every error comes back."""

import os
from pathlib import Path

import pytest
from tests.e2e.terminal import KVCTL, Terminal

pytestmark = pytest.mark.terminal

EDITOR = """#!/bin/sh
echo "EDITING $1"
if grep -q flagz "$1"; then sed -i /flagz/d "$1"; else echo '[flagz]' >> "$1"; fi
cp "$1" "$HOME/seen.toml"
"""


def test_an_edit_shows_what_is_wrong_with_its_line_and_a_second_one_mends_it(
    tmp_path: Path,
) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text(EDITOR)
    editor.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "KVCTL_", "SSH_"))}
    environ = {**kept, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "LANG": "C.UTF-8"}
    with Terminal([KVCTL, "demo"], environ={**environ, "VISUAL": str(editor)}) as terminal:
        terminal.wait_for("SIMULATED")
        terminal.send("5")
        terminal.wait_for("sim-baseline")
        terminal.send("e")
        terminal.wait_for("1 problem")
        terminal.wait_for("flagz: unknown key")
        line = len((tmp_path / "seen.toml").read_text().splitlines())
        terminal.wait_for(f"demo.toml:{line}")
        terminal.send("e")
        terminal.wait_for("demo: valid")
        assert terminal.is_raw()
        terminal.send("q")
        assert terminal.wait_exit() == 0
    assert "flagz" not in (tmp_path / "seen.toml").read_text()
