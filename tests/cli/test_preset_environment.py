"""A preset's own PYTHONPATH decides which SGLang its flags are held against, as in the launch."""

import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Kvctl

from kvctl.core.daemon.paths import DaemonPaths

ARGUMENTS = """
def add_cli_args(parser):
    parser.add_argument("--model-path", type=str)
    parser.add_argument("--tp-size", type=int)
"""


@pytest.fixture
def preset(paths: DaemonPaths, tmp_path: Path) -> str:
    """A preset with a flag that the SGLang on its PYTHONPATH does not have."""
    source = tmp_path / "site" / "sglang" / "srt"
    source.mkdir(parents=True)
    (source.parent / "__init__.py").write_text("")
    (source / "server_args.py").write_text(ARGUMENTS)
    folder = paths.config / "presets"
    folder.mkdir(parents=True)
    lines = [
        f'[launch]\npython = "{sys.executable}"\nmodel-path = "/models/m"',
        "[flags]\ntp-size = 1\nno-such-flag = 7",
        f'[env]\nPYTHONPATH = "{tmp_path / "site"}"',
    ]
    (folder / "packed.toml").write_text("\n".join(lines))
    return "packed"


def test_validate_holds_the_flags_against_the_presets_own_sglang(kvctl: Kvctl, preset: str) -> None:
    said = kvctl("presets", "validate", preset)
    assert said.status == 2 and "no-such-flag" in said.out


def test_flags_of_a_preset_are_those_of_its_own_sglang(kvctl: Kvctl, preset: str) -> None:
    said = kvctl("flags", "--diff", preset)
    assert said.status == 0 and said.out.startswith("--tp-size"), said
