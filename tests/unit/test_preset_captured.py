"""Presets made from what was seen: a container, a unit, a process; never with a secret in them."""

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from kvctl.core.domain.errors import PresetError
from kvctl.core.domain.presets.capture import document_of, entry_of
from kvctl.core.domain.presets.docker import preset_of_container
from kvctl.core.domain.presets.launch_plan import LaunchPlan, render
from kvctl.core.domain.presets.preset import merge
from kvctl.core.domain.presets.systemd import parse_unit, preset_of_unit
from kvctl.core.domain.presets.text import parse_preset

LAUNCHES = Path(__file__).parents[1] / "data" / "launches"
ENVIRONMENT = {"HF_TOKEN": "from-env", "SGLANG_API_KEY": "key"}


def plan_of(document: dict[str, Any]) -> LaunchPlan:
    text = tomli_w.dumps(document)
    assert "verysecret" not in text
    preset = merge([parse_preset("p", "p.toml", text)])
    secrets = {secret.name: ENVIRONMENT[secret.env or ""] for secret in preset.secrets}
    return render(preset, {"HOME": "/home/me"}, secrets)


def inspected(name: str) -> Any:
    return json.loads((LAUNCHES / name).read_text())


def test_a_container_runs_again_in_the_foreground_with_its_gpus_volumes_and_port() -> None:
    captured = preset_of_container(inspected("docker-inspect.json"))
    plan = plan_of(captured.document)
    assert plan.argv == (
        *("docker", "run", "--rm", "--name", "kimi", "--gpus", '"device=4,5,6,7"'),
        *("--shm-size", "34359738368", "--ulimit", "memlock=-1:-1", "--cap-add", "SYS_PTRACE"),
        *("-p", "127.0.0.1:31000:31000"),
        *("-v", "/data/models:/models:ro", "-v", "hf-cache:/models/hub"),
        *("-w", "/sgl-workspace", "-e", "CUDA_VISIBLE_DEVICES=0,1,2,3"),
        *("-e", "HF_TOKEN", "-e", "NCCL_DEBUG"),
        *("--entrypoint", "/opt/nvidia/nvidia_entrypoint.sh", "lmsysorg/sglang:v0.5.10"),
        *("python3", "-m", "sglang.launch_server", "--model-path", "/models/Kimi-K2.5"),
        *("--host", "0.0.0.0", "--port", "31000", "--tp-size", "4"),
        *("--mem-fraction-static", "0.88", "--trust-remote-code", "--cuda-graph-bs", "1", "2"),
        *("4", "--api-key", "key"),
    )
    assert plan.stop == ("docker", "stop", "-t", "600", "kimi")
    assert plan.gpus == ("4", "5", "6", "7")
    assert plan.url == "http://127.0.0.1:31000"
    env = dict(plan.env)
    assert (env["NCCL_DEBUG"], env["HF_TOKEN"]) == ("WARN", "from-env")


def test_what_was_left_out_and_what_stands_in_the_way_is_told() -> None:
    first, second = preset_of_container(inspected("docker-inspect.json")).notes
    assert "docker rm -f kimi" in first and "unless-stopped" in first
    assert second.endswith(": NVIDIA_DRIVER_CAPABILITIES")


def test_a_line_of_shell_in_podman_keeps_its_preparation_and_loses_its_secret() -> None:
    plan = plan_of(preset_of_container(inspected("podman-shell.json")).document)
    assert plan.argv[:3] == ("podman", "run", "--rm")
    assert "--network host --ipc host" not in " ".join(plan.argv)
    assert "--device nvidia.com/gpu=all" in " ".join(plan.argv)
    assert plan.argv[-1] == (
        "export ulimit -n 65536 && exec sglang serve --model-path Qwen/Qwen3-8B --port 30010 "
        "--tp-size 2"
    )
    assert dict(plan.env)["HF_TOKEN"] == "from-env"
    assert plan.gpus == () and plan.port == 30010


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "no output of `docker inspect"),
        ([], "has 0 containers"),
        ([{"Config": {}}, {"Config": {}}], "has 2 containers"),
        ([{"Id": "x", "Config": None}], "it has no Config"),
        ([{"Config": {"Cmd": ["nginx", "-g", "daemon off;"]}}], "no `-m sglang.launch_server`"),
        ([{"Config": {"Cmd": None}}], "in the command line: nothing"),
        ("text", "no output of `docker inspect"),
    ],
)
def test_what_is_no_container_of_sglang_is_told_in_one_line(document: Any, told: str) -> None:
    with pytest.raises(PresetError) as refused:
        preset_of_container(document)
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_a_unit_with_its_overrides_specifiers_and_variables() -> None:
    unit = parse_unit((LAUNCHES / "systemctl-cat.txt").read_text(), "sglang@kimi.service")
    assert unit.environment_files == ["/etc/sglang/kimi.env"]
    files = {"/etc/sglang/kimi.env": "# c\nPORT=31000\nEXTRA=--enable-metrics --page-size 64\n"}
    captured = preset_of_unit(unit, files)
    plan = plan_of(captured.document)
    assert plan.argv == (
        *("/opt/sglang/bin/python", "-m", "sglang.launch_server"),
        *("--model-path", "/models/kimi", "--port", "31000", "--tp-size", "8"),
        *("--enable-metrics", "--page-size", "64"),
        *("--json-model-override-args", '{"rope": 2}', "--api-key", "key"),
    )
    env = dict(plan.env)
    assert (env["NCCL_DEBUG"], env["HF_HOME"], env["HF_TOKEN"]) == ("WARN", "/data/hf", "from-env")
    told = " | ".join(captured.notes)
    assert "systemctl disable --now sglang@kimi.service" in told and "Restart=always" in told
    assert "ran as serve" in told


def test_an_environment_file_that_cannot_be_read_is_told_and_its_variables_stay_open() -> None:
    unit = parse_unit((LAUNCHES / "systemctl-cat.txt").read_text(), "sglang@kimi.service")
    captured = preset_of_unit(unit, {})
    assert any("/etc/sglang/kimi.env could not be read" in note for note in captured.notes)
    assert captured.document["launch"]["port"] == "${PORT}"


def test_what_systemctl_show_prints_is_read_with_docker_in_it() -> None:
    unit = parse_unit((LAUNCHES / "systemctl-show.txt").read_text())
    captured = preset_of_unit(unit, {"/etc/sglang/env": ""})
    plan = plan_of(captured.document)
    assert plan.argv == (
        *("/usr/bin/docker", "run", "--rm", "--name", "kimi", "--gpus", "all", "-e", "HF_TOKEN"),
        *("lmsysorg/sglang:v0.5.10", "python3", "-m", "sglang.launch_server"),
        *("--model-path", "./Kimi", "--tp-size", "8"),
    )
    assert plan.stop == ("/usr/bin/docker", "stop", "kimi")
    assert any("relative to /srv/sglang" in note for note in captured.notes)
    assert captured.document["description"] == "as unit kimi.service ran"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no ExecStart"),
        ("[Service]\nExecStart=/a\nExecStart=/b\n", "has 2 ExecStart lines"),
        ("[Service]\nExecStart=/usr/bin/nginx -g 'daemon off;'\n", "no `-m sglang.launch_server`"),
        ("[Service]\nExecStart=/py -m sglang.launch_server 'open\n", "cannot be read"),
        ("[Install]\nExecStart=/a\n", "has no ExecStart"),
    ],
)
def test_what_is_no_unit_of_sglang_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(PresetError) as refused:
        preset_of_unit(parse_unit(text, "x.service"), {})
    assert told in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("argv", "launch"),
    [
        (
            ["/v/python3.11", "-u", "-m", "sglang.launch_server", "--tp", "2"],
            {"python": "/v/python3.11"},
        ),
        (
            ["numactl", "--cpunodebind=0", "/py", "-m", "sglang.launch_server", "--tp", "2"],
            {
                "command": [
                    *("numactl", "--cpunodebind=0", "/py", "-m", "sglang.launch_server"),
                    "{sglang_args}",
                ]
            },
        ),
        (
            ["/venv/bin/sglang", "serve", "/models/x", "--tp", "2"],
            {
                "model-path": "/models/x",
                "command": ["/venv/bin/sglang", "serve", "{sglang_args}"],
            },
        ),
    ],
)
def test_a_process_becomes_an_interpreter_or_a_command(
    argv: list[str], launch: dict[str, Any]
) -> None:
    document = document_of(argv, {}, "seen")
    assert document["launch"] == launch
    assert document["flags"] == {"tp-size": 2}


def test_a_process_that_runs_no_sglang_is_refused() -> None:
    with pytest.raises(PresetError, match=r"no `-m sglang\.launch_server`"):
        entry_of(["/usr/bin/vllm", "serve", "x"])
