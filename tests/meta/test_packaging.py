"""The package is what the checkout is: links are links, and a wheel holds all of it."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["core", "tui", "presets"])
def test_links_are_links(name: str) -> None:
    link = ROOT / "src" / "kvctl" / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"../../{name}"


def test_only_kvctl_becomes_importable(tmp_path: Path) -> None:
    code = "import kvctl.core, kvctl.tui, importlib.util as u; print([n for n in ('core', 'tui', "
    code += "'presets', 'tests') if u.find_spec(n)])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"


def test_versions_agree() -> None:
    from kvctl import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == __version__
    assert f"({__version__})" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_constraints_pin_every_direct_dependency_and_hold_no_address() -> None:
    text = (ROOT / "constraints.txt").read_text("utf-8")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+]+", pin) for pin in pins)
    pinned = {_plain(pin.partition("==")[0]) for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["templates"]]
    names = {_plain(re.split(r"[\[<>=;! ]", line)[0]) for line in wanted}
    assert names - {"kvctl"} <= pinned


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="session")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build the wheel without an index: hatchling must be there, as in the development extra."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_core_the_panel_and_every_preset(wheel_names: set[str]) -> None:
    for folder in ("core", "tui", "presets"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                assert f"kvctl/{path.relative_to(ROOT).as_posix()}" in wheel_names
    assert {"kvctl/__main__.py", "kvctl/py.typed"} <= wheel_names


def test_the_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvctl"}
    assert not [name for name in wheel_names if "tests/" in name or "__pycache__" in name]
