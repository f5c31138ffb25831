"""What the pages tell people to type exists."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from kvctl.core.cli.parser import build_parser
from kvctl.tui import keytable

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CONTRIBUTING.md")


def examples() -> list[str]:
    """Return every command line of kvctl that stands in a code block."""
    found: list[str] = []
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.S | re.M)
        blocks += re.findall(r"(?:^(?: {4}|\t).*\n)+", text, re.M)
        for line in "".join(blocks).splitlines():
            for part in line.strip().removeprefix("$ ").split("&&"):
                command = re.sub(r"\s+#.*", "", part).strip()
                if re.match(r"(\.venv/bin/)?kvctl( |$)", command):
                    found.append(command)
    return found


@pytest.mark.parametrize("command", examples() or ["kvctl"])
def test_a_command_in_the_pages_is_understood(command: str) -> None:
    build_parser().parse_args(shlex.split(command)[1:])


def test_every_verb_has_a_help_that_says_something() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvctl", "--help"], capture_output=True, text=True, check=True
    )
    for verb in ("status", "watch", "gpus", "kill", "presets", "flags", "server", "run", "demo"):
        assert re.search(rf"^    {verb} +\w+", done.stdout, re.M), verb


def test_the_readme_tells_the_test_command_that_ci_runs() -> None:
    command = "python3 tests/check.py"
    assert command in (ROOT / "README.md").read_text("utf-8")
    assert "tests/check.py" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_the_key_table_of_the_readme_is_the_registrys() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    table = text.split("<!-- keys: python -m kvctl.tui.keytable -->")[1]
    assert table.split("<!-- end of keys -->")[0].strip() == keytable.markdown()


def test_the_picture_of_the_readme_is_in_the_repository() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert pictures
    assert all((ROOT / unquote(picture)).is_file() for picture in pictures)
