"""Which command templates are asked for their flags, and how: never anything that could act."""

import pytest

from kvctl.core.domain.presets.help_command import of_interpreter, of_template

ENTRY = ["-m", "sglang.launch_server", "{sglang_args}"]
IMAGE = ["--gpus", "all", "lmsysorg/sglang:v0.5.10", "python3"]


def test_an_interpreter_is_asked_as_it_is_launched() -> None:
    asked = of_interpreter("/py")
    assert asked.help == ("/py", "-m", "sglang.launch_server", "--help")
    assert asked.version is not None and asked.version[:2] == ("/py", "-c")


def test_a_container_is_asked_without_what_ties_it_to_the_running_one() -> None:
    command = [
        *("docker", "run", "-d", "-it", "--name", "kimi", "-p", "30000:30000"),
        *("--restart=always", "--ipc", "host", *IMAGE, *ENTRY),
    ]
    asked = of_template(command)
    assert asked is not None
    assert asked.help == (
        *("docker", "run", "--rm", "--ipc", "host", *IMAGE),
        *("-m", "sglang.launch_server", "--help"),
    )
    assert asked.version is not None
    assert asked.version[: len(asked.help) - 3] == asked.help[:-3]
    assert asked.version[-2] == "-c" and "sglang" in asked.version[-1]


def test_flags_after_the_image_are_the_servers_own() -> None:
    asked = of_template(["docker", "run", "--rm", "img", "python3", "-u", *ENTRY])
    assert asked is not None and "-u" in asked.help


def test_a_line_of_shell_that_only_prepares_is_asked() -> None:
    line = "source /venv/bin/activate && export X=1; python -m sglang.launch_server {sglang_args}"
    asked = of_template(["bash", "-lc", line])
    assert asked is not None
    assert asked.help[-1].endswith("python -m sglang.launch_server --help")
    assert asked.version is not None and asked.version[-1].count("-c ") == 1
    assert "launch_server" not in asked.version[-1]


def test_sglang_serve_has_no_quick_version() -> None:
    asked = of_template(["/venv/bin/sglang", "serve", "{sglang_args}"])
    assert asked is not None
    assert asked.help == ("/venv/bin/sglang", "serve", "--help")
    assert asked.version is None


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["./launch.sh", "{sglang_args}"],
        ["systemctl", "start", "sglang"],
        ["systemd-run", "--unit=x", "python", *ENTRY],
        ["docker", "run", "img", "python3", "-m", "sglang.launch_server", "--tp", "8"],
        ["docker", "run", "img", "{sglang_args}"],
        ["bash", "-c", "docker rm -f kimi; python -m sglang.launch_server {sglang_args}"],
        ["bash", "-c", "python -m sglang.launch_server {sglang_args} > /log"],
        ["bash", "-c", "kill $(cat pid) && python -m sglang.launch_server {sglang_args}"],
    ],
)
def test_a_command_that_could_do_something_else_is_never_asked(command: list[str]) -> None:
    assert of_template(command) is None
