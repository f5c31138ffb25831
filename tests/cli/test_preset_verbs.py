"""`kvctl presets …` as typed: edits, captures, several folders, and what is missing."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import Kvctl
from tests.nvml.tree import wait_until

from kvctl.core.daemon.paths import DaemonPaths

LAUNCHES = Path(__file__).parents[1] / "data" / "launches"


def write_preset(paths: DaemonPaths, name: str, text: str) -> Path:
    path = paths.config / "presets" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(paths: DaemonPaths, name: str) -> dict[str, object]:
    return tomllib.loads((paths.config / "presets" / f"{name}.toml").read_text())


def test_set_copies_a_shipped_preset_keeps_its_comments_and_tells_both(
    kvctl: Kvctl, paths: DaemonPaths
) -> None:
    said = kvctl("presets", "set", "sim-baseline", "mem-fraction-static=0.8", "page-size=64")
    assert said.status == 0, said
    assert said.out.splitlines()[0].startswith("copied ")
    assert "+ [flags] mem-fraction-static = 0.8" in said.out
    shown = kvctl("presets", "show", "sim-baseline", "--why").out
    assert f"mem-fraction-static = 0.8    # {paths.config}/presets/sim-baseline.toml:" in shown


def test_a_wrong_flag_is_written_but_told_with_its_line(kvctl: Kvctl, paths: DaemonPaths) -> None:
    write_preset(paths, "p", f'[launch]\npython = "{sys.executable}"\n')
    source = paths.config / "site" / "sglang" / "srt"
    source.mkdir(parents=True)
    (source.parent / "__init__.py").write_text("")
    (source / "server_args.py").write_text(
        'def f(p):\n    p.add_argument("--model-path")\n    p.add_argument("--tp-size", type=int)\n'
    )
    kvctl("presets", "set", "p", f"PYTHONPATH={source.parents[1]}")
    said = kvctl("presets", "set", "p", "tp-sise=2")
    assert said.status == 2 and "did you mean 'tp-size'?" in said.out
    assert "p.toml:" in said.out
    assert kvctl("presets", "unset", "p", "tp-sise").status == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set", "sim-baseline", "tp-size"), "write KEY=VALUE"),
        (("set", "nobody", "tp-size=1"), "there is no preset 'nobody'"),
        (("set", "sim-baseline", "api-key=hunter2"), "a secret is never written"),
        (("set", "sim-baseline", "x.y=1"), "there is no [x]"),
        (("unset", "sim-baseline", "no-such"), "is not set in"),
        (("from-docker", "kimi"), "no docker or podman here"),
        (("from-systemd", "sglang"), "no systemctl here"),
    ],
)
def test_what_cannot_be_done_is_one_line(kvctl: Kvctl, words: tuple[str, ...], told: str) -> None:
    said = kvctl("presets", *words, PATH="/nowhere")
    assert told in said.one_error(2)
    assert "hunter2" not in said.err


def test_a_container_becomes_a_preset_that_says_what_is_left_to_do(
    kvctl: Kvctl, paths: DaemonPaths
) -> None:
    source = str(LAUNCHES / "docker-inspect.json")
    said = kvctl("presets", "from-docker", source)
    assert said.status == 0, said
    assert "HF_TOKEN is a secret: set HF_TOKEN" in said.out
    assert "before the first start: docker rm -f kimi" in said.out
    assert "verysecret" not in said.out + (paths.config / "presets" / "kimi.toml").read_text()
    assert "exists; choose another name" in kvctl("presets", "from-docker", source).one_error(2)
    assert kvctl("presets", "from-docker", source, "--as", "kimi2", "--replace").status == 0
    assert read(paths, "kimi2")["flags"] == read(paths, "kimi")["flags"]


def test_a_container_is_inspected_where_docker_is(
    kvctl: Kvctl, paths: DaemonPaths, tmp_path: Path
) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    cat = shutil.which("cat")
    docker.write_text(
        f'#!/bin/sh\n[ "$4" = kimi ] && exec {cat} {LAUNCHES / "docker-inspect.json"}\n'
        'echo "Error: No such container: $4" >&2\nexit 1\n'
    )
    docker.chmod(0o755)
    path = f"{docker.parent}"
    assert kvctl("presets", "from-docker", "kimi", PATH=path).status == 0
    assert "No such container: x" in kvctl("presets", "from-docker", "x", PATH=path).one_error(1)


def test_a_unit_becomes_a_preset(kvctl: Kvctl, paths: DaemonPaths) -> None:
    said = kvctl("presets", "from-systemd", str(LAUNCHES / "systemctl-show.txt"))
    assert said.status == 0, said
    launch = read(paths, "kimi")["launch"]
    assert isinstance(launch, dict) and launch["stop"] == ["/usr/bin/docker", "stop", "kimi"]
    assert "systemctl disable --now kimi.service" in said.out


def test_what_is_no_document_is_told(kvctl: Kvctl, tmp_path: Path) -> None:
    broken = tmp_path / "x.json"
    broken.write_text("{")
    assert "not JSON" in kvctl("presets", "from-docker", str(broken)).one_error(2)


def test_a_shared_folder_lies_between_the_operators_and_the_shipped_one(
    kvctl: Kvctl, paths: DaemonPaths
) -> None:
    shared = paths.config / "team"
    shared.mkdir(parents=True)
    (shared / "sim-baseline.toml").write_text('description = "the team"\nextends = "site"\n')
    (shared / "site.toml").write_text('description = "site"\n[launch]\nurl = "http://a:1"\n')
    config = paths.config / "config.toml"
    config.write_text('[presets]\nfolders = ["team", "/not/there"]\n')
    said = kvctl("presets", "list")
    assert "the team" in said.out and "counts before" in said.out
    assert "/not/there of [presets] folders in config.toml is not there" in said.err
    write_preset(paths, "sim-baseline", 'description = "mine"\n[launch]\nurl = "http://a:1"\n')
    rows = json.loads(kvctl("presets", "list", "--json").out)["presets"]
    mine = next(row for row in rows if row["name"] == "sim-baseline")
    assert mine["description"] == "mine" and len(mine["hides"]) == 2


def test_a_preset_without_its_variables_says_what_it_needs(kvctl: Kvctl) -> None:
    rows = json.loads(kvctl("presets", "list", "--json").out)["presets"]
    baseline = next(row for row in rows if row["name"] == "baseline")
    assert "SGLANG_PYTHON" in baseline["needs"]
    assert baseline["problem"].startswith("needs $SGLANG_PYTHON")


def test_validate_tells_warnings_apart(kvctl: Kvctl, paths: DaemonPaths) -> None:
    write_preset(paths, "w", '[launch]\ncommand = ["./x.sh", "{sglang_args}"]\n')
    said = kvctl("presets", "validate", "w")
    assert said.status == 0
    assert said.out.splitlines()[0] == "w: valid"
    assert "! flags not checked" in said.out


def test_a_running_process_is_read_from_proc() -> None:
    from kvctl.core.servers.processes.process_launch import read_launch

    child = subprocess.Popen(
        ["sleep", "60"], env={"PATH": "/usr/bin:/bin", "NCCL_DEBUG": "INFO"}, stdin=subprocess.PIPE
    )
    try:
        # Popen returns when the program is replaced, an instant before its words can be read.
        wait_until(lambda: bool(Path(f"/proc/{child.pid}/cmdline").read_bytes()))
        argv, environment = read_launch(child.pid)
        assert argv == (shutil.which("sleep", path="/usr/bin:/bin"), "60")
        assert environment is not None and environment["NCCL_DEBUG"] == "INFO"
    finally:
        child.kill()
        child.communicate()
