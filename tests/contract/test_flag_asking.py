"""Flags by `--help` through a command template: run for real, kept on disk by version."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from kvctl.core.domain.presets.launch_plan import LaunchPlan, render
from kvctl.core.domain.presets.preset import merge
from kvctl.core.domain.presets.text import parse_preset
from kvctl.core.servers.flags.asking import CatalogueCache
from kvctl.core.servers.flags.catalogue import locate

HELP = Path(__file__).parents[1] / "data" / "flags" / "help-0.5.23.txt"
SERVER = """
import pathlib
count = pathlib.Path(__file__).with_name("asked")
count.write_text(str(int(count.read_text()) + 1 if count.exists() else 1))
print(pathlib.Path({help!r}).read_text())
"""
DOCKER = """#!/bin/sh
shift                      # run
[ "$1" = --rm ] && shift
shift                      # the image
exec "$@"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An SGLang without source: it has a version, and a launch_server that prints help."""
    folder = tmp_path / "site"
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang" / "__init__.py").write_text("")
    (folder / "sglang" / "launch_server.py").write_text(SERVER.format(help=str(HELP)))
    set_version(folder, "0.5.23")
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    return folder


def set_version(site: Path, version: str) -> None:
    for old in site.glob("*.dist-info"):
        shutil.rmtree(old)
    info = site / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")


def environment(site: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(site), "PATH": f"{site.parent / 'bin'}:/usr/bin:/bin"}


def plan_of(launch: str) -> LaunchPlan:
    text = f'[launch]\n{launch}\nmodel-path = "/m"\n[flags]\ntp-size = 2\n'
    return render(merge([parse_preset("p", "p.toml", text)]), {})


def container() -> LaunchPlan:
    words = ["docker", "run", "-d", "img", sys.executable, "-m", "sglang.launch_server"]
    return plan_of(f"command = {json.dumps([*words, '{sglang_args}'])}")


def asked(site: Path) -> int:
    count = site / "sglang" / "asked"
    return int(count.read_text()) if count.exists() else 0


def test_a_container_is_asked_once_for_each_version(site: Path, tmp_path: Path) -> None:
    folder, env = tmp_path / "flags", environment(site)
    told = CatalogueCache(folder).of_plan(container(), env, None)
    assert told.catalogue is not None and told.catalogue.version == "0.5.23"
    assert told.catalogue.is_from_help and told.catalogue.find("mem-fraction-static")
    again = CatalogueCache(folder).of_plan(container(), env, None)
    assert again.catalogue == told.catalogue
    assert asked(site) == 1
    set_version(site, "0.5.24")
    newer = CatalogueCache(folder).of_plan(container(), env, None)
    assert newer.catalogue is not None and newer.catalogue.version == "0.5.24"
    assert asked(site) == 2


def test_an_interpreter_whose_sglang_has_no_source_is_asked(site: Path, tmp_path: Path) -> None:
    env = environment(site)
    installed = locate(sys.executable, env)
    told = CatalogueCache(tmp_path / "flags").of_plan(
        plan_of(f'python = "{sys.executable}"'), env, installed
    )
    assert told.problem is None
    assert told.catalogue is not None and told.catalogue.is_from_help


def test_without_a_folder_it_is_still_asked_once(site: Path) -> None:
    cache, env = CatalogueCache(), environment(site)
    assert cache.of_plan(container(), env, None) == cache.of_plan(container(), env, None)
    assert asked(site) == 1


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("import sys; sys.exit('CUDA error: no driver')", "ended with status 1: CUDA error"),
        ("print('hello')", "printed no help of sglang.launch_server"),
    ],
)
def test_why_there_are_no_flags_is_one_line(
    site: Path, tmp_path: Path, server: str, said: str
) -> None:
    (site / "sglang" / "launch_server.py").write_text(server)
    folder = tmp_path / "flags"
    told = CatalogueCache(folder).of_plan(container(), environment(site), None)
    assert told.catalogue is None and told.problem is not None
    assert said in told.problem and "\n" not in told.problem
    assert not folder.exists()


def test_a_program_that_is_not_there_is_said(site: Path) -> None:
    (site.parent / "bin" / "docker").unlink()
    told = CatalogueCache().of_plan(container(), environment(site), None)
    assert told.problem is not None and "cannot be run: No such file" in told.problem


def test_a_script_of_the_operators_own_is_never_run(site: Path, tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    script.chmod(0o755)
    plan = plan_of(f'command = ["{script}", "{{sglang_args}}"]')
    told = CatalogueCache(tmp_path / "flags").of_plan(plan, environment(site), None)
    assert told.problem is not None and "so it is not asked" in told.problem
    assert not (tmp_path / "ran").exists()
