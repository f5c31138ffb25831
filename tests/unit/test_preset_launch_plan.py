"""A preset to a command line: variables, secrets, templates, GPUs, and what may be shown."""

from collections.abc import Mapping

import pytest
import tomli_w

from kvctl.core.domain.presets.capture import document_of
from kvctl.core.domain.presets.diff import diff, diff_argv, numerics_of
from kvctl.core.domain.presets.launch_plan import LaunchPlan, missing_variables, redact, render
from kvctl.core.domain.presets.preset import InvalidPreset, Preset, merge
from kvctl.core.domain.presets.text import parse_preset


def preset_of(text: str) -> Preset:
    return merge([parse_preset("p", "p.toml", text)])


def plan_of(
    text: str,
    environment: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> LaunchPlan:
    return render(preset_of(text), environment or {}, secrets)


HEAD = '[launch]\npython = "/py"\nmodel-path = "/m"\n'


def test_flags_become_words_true_is_bare_and_false_is_absent() -> None:
    plan = plan_of(
        HEAD + "port = 31000\n[flags]\nmem_fraction_static = 0.90\nenable-metrics = true\n"
        "disable-radix-cache = false\ncuda-graph-bs = [1, 2]\nchunked-prefill-size = -1\ntp = 2\n"
    )
    assert plan.argv == (
        *("/py", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "31000"),
        *("--mem-fraction-static", "0.9", "--enable-metrics", "--cuda-graph-bs", "1", "2"),
        *("--chunked-prefill-size=-1", "--tp-size", "2"),
    )
    assert plan.url == "http://127.0.0.1:31000"


def test_an_unset_variable_is_told_with_key_and_file() -> None:
    text = '[launch]\npython = "${SGLANG_PYTHON}"\nmodel-path = "${MODEL}"\n'
    told = [str(problem) for problem in missing_variables(preset_of(text), {})]
    assert told[0].startswith("p.toml:2: [launch] python: ${SGLANG_PYTHON} is not set")
    assert told[1].startswith("p.toml:3: [launch] model-path: ${MODEL} is not set")
    with pytest.raises(InvalidPreset, match="SGLANG_PYTHON"):
        plan_of(text)


def test_variables_expand_with_defaults_and_can_be_escaped() -> None:
    text = HEAD + 'port = "${P:-31001}"\n[env]\nA = "${HOME}/x"\nB = "$${HOME}"\n'
    plan = plan_of(text, {"HOME": "/h"})
    assert plan.port == 31001
    assert dict(plan.env)["A"] == "/h/x"
    assert dict(plan.env)["B"] == "${HOME}"


def test_a_port_that_expands_to_no_number_is_refused() -> None:
    with pytest.raises(InvalidPreset, match="must be a port number"):
        plan_of(HEAD + 'port = "${P}"\n', {"P": "http"})


SECRET = HEAD + '[secrets]\napi-key = { env = "K" }\nHF_TOKEN = { file = "/f" }\n'


def test_secrets_reach_the_server_and_are_never_shown() -> None:
    plan = plan_of(SECRET, {}, {"api-key": "hunter2", "HF_TOKEN": "hf_x"})
    assert plan.argv[-2:] == ("--api-key", "hunter2")
    assert dict(plan.env)["HF_TOKEN"] == "hf_x"
    shown = f"{plan!r} {plan.shown_argv} {plan.shown_env} {plan.flags}"
    assert "hunter2" not in shown
    assert "hf_x" not in shown
    assert plan.shown_argv[-2:] == ("--api-key", "***")


def test_a_secret_inside_a_shell_command_is_hidden_too() -> None:
    text = (
        '[launch]\ncommand = ["bash", "-c", "exec sglang serve {sglang_args}"]\n'
        '[secrets]\napi-key = { env = "K" }\n'
    )
    plan = plan_of(text, {}, {"api-key": "hunter2"})
    assert "--api-key hunter2" in plan.argv[2]
    assert not any("hunter2" in word for word in plan.shown_argv)


def test_an_environment_value_that_is_a_whole_secret_variable_is_hidden() -> None:
    plan = plan_of(HEAD + '[env]\nHF_TOKEN = "${HF_TOKEN}"\n', {"HF_TOKEN": "hf_x"})
    assert dict(plan.env)["HF_TOKEN"] == "hf_x"
    assert dict(plan.shown_env)["HF_TOKEN"] == "***"
    assert "hf_x" not in repr(plan)


def test_a_command_template_takes_the_arguments_where_it_says() -> None:
    text = (
        '[launch]\ncommand = ["docker", "run", "-p", "{port}:{port}", "img", "{sglang_args}"]\n'
        'port = 31000\nstop = ["docker", "stop", "s{port}"]\nlog = "/l/{port}.log"\n'
        "[flags]\ntp = 2\n"
    )
    plan = plan_of(text)
    assert plan.argv == (
        *("docker", "run", "-p", "31000:31000", "img"),
        *("--port", "31000", "--tp-size", "2"),
    )
    assert plan.stop == ("docker", "stop", "s31000")
    assert plan.log == "/l/31000.log" and plan.log_command is None
    assert not plan.is_direct


def test_a_log_can_be_what_a_command_prints() -> None:
    plan = plan_of(HEAD + 'log = ["docker", "logs", "-f", "s{port}"]\nport = 31000\n')
    assert plan.log is None and plan.log_command == ("docker", "logs", "-f", "s31000")


@pytest.mark.parametrize("value", ["3", "[]", "true", '["a", 1]'])
def test_a_log_that_is_neither_path_nor_command_is_told(value: str) -> None:
    with pytest.raises(InvalidPreset, match="must be a path, or a command that prints it"):
        plan_of(HEAD + f"log = {value}\n")


def test_a_command_that_would_drop_the_flags_is_refused() -> None:
    with pytest.raises(InvalidPreset, match="would not reach the server"):
        plan_of('[launch]\ncommand = ["docker", "start", "x"]\n[flags]\ntp = 2\n')


def test_a_preset_without_interpreter_command_or_url_is_refused() -> None:
    with pytest.raises(InvalidPreset, match="name the interpreter"):
        plan_of("[flags]\ntp = 2\n")


def test_a_url_alone_is_a_server_to_watch() -> None:
    plan = plan_of('[launch]\nurl = "http://other:30000"\n')
    assert plan.is_observed_only
    assert plan.url == "http://other:30000"


def test_gpus_are_set_in_pci_order() -> None:
    env = dict(plan_of(HEAD + 'gpus = [2, "GPU-ab"]\n').env)
    assert env["CUDA_VISIBLE_DEVICES"] == "2,GPU-ab"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_gpus_and_cuda_visible_devices_contradict() -> None:
    with pytest.raises(InvalidPreset, match="contradicts"):
        plan_of(HEAD + 'gpus = [2]\n[env]\nCUDA_VISIBLE_DEVICES = "1"\n')


def test_crash_dumps_are_off_unless_the_preset_or_kvctl_says_otherwise() -> None:
    name = "SGLANG_CUDA_COREDUMP_BEFORE_CRASH"
    assert dict(plan_of(HEAD).env)[name] == "0"
    assert dict(plan_of(HEAD + f'[env]\n{name} = "1"\n').env)[name] == "1"
    assert name not in dict(plan_of(HEAD, {name: "1"}).env)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:30000"),
        ("::", "http://[::1]:30000"),
        ("fe80::1", "http://[fe80::1]:30000"),
        ("gpu-7", "http://gpu-7:30000"),
    ],
)
def test_the_url_is_one_that_can_be_connected_to(host: str, url: str) -> None:
    assert plan_of(HEAD + f'host = "{host}"\n').url == url


def test_redaction_hides_secrets_of_any_command_line() -> None:
    argv = ["x", "--api-key", "a", "--tp", "2", "--admin-api-key=b", "--ssl-keyfile-password", "c"]
    assert redact(argv) == (
        *("x", "--api-key", "***", "--tp", "2"),
        *("--admin-api-key=***", "--ssl-keyfile-password", "***"),
    )


def test_a_diff_compares_values_and_not_spellings() -> None:
    before = preset_of("[flags]\ntp = 8\nmem-fraction-static = 0.9\nenable-metrics = true\n")
    after = preset_of('[flags]\ntensor_parallel_size = 8\nmem-fraction-static = "0.90"\nx = 1\n')
    changes = [(c.name, c.before, c.after) for c in diff(before, after)]
    assert changes == [("x", None, "1"), ("enable-metrics", "on", None)]


def test_a_running_launch_is_compared_with_a_plan() -> None:
    running = ["py", "-m", "sglang.launch_server", "--tp", "8", "--mem-fraction-static=0.85"]
    after = ["py", "-m", "sglang.launch_server", "--tp-size", "8", "--mem-fraction-static", "0.88"]
    changes = [(c.name, c.before, c.after) for c in diff_argv(running, after)]
    assert changes == [("mem-fraction-static", "0.85", "0.88")]


def test_numerics_are_what_decides_the_tokens() -> None:
    flags = {"tp": "8", "kv_cache_dtype": "fp8_e4m3", "speculative-algorithm": "EAGLE"}
    assert numerics_of(flags) == (
        ("kv-cache-dtype", "fp8_e4m3"),
        ("speculative-algorithm", "EAGLE"),
    )


def test_a_captured_launch_renders_to_the_same_command_line() -> None:
    argv = (
        *("/py", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "31000"),
        *("--tp-size", "8", "--mem-fraction-static", "0.88", "--enable-metrics"),
        *("--cuda-graph-bs", "1", "2", "--api-key", "hunter2"),
    )
    document = document_of(argv, {"NCCL_X": "1", "PATH": "/bin", "HF_TOKEN": "hf_x"}, "taken")
    assert "hunter2" not in str(document)
    assert "hf_x" not in str(document)
    assert document["env"] == {"NCCL_X": "1"}

    plan = plan_of(tomli_w.dumps(document), {}, {"api-key": "hunter2", "HF_TOKEN": "hf_x"})
    assert plan.argv == argv
