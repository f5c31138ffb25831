"""Presets from text: inheritance, moved keys, secrets, and every mistake with its line."""

from collections.abc import Mapping

import pytest

from kvctl.core.domain.presets.preset import (
    InvalidPreset,
    Preset,
    PresetProblem,
    PresetSource,
    resolve,
)
from kvctl.core.domain.presets.text import parse_preset


def preset_of(files: Mapping[str, str], name: str) -> Preset:
    def find(wanted: str) -> PresetSource:
        if wanted not in files:
            raise InvalidPreset([PresetProblem("", "", f"there is no preset '{wanted}'")])
        return parse_preset(wanted, f"{wanted}.toml", files[wanted])

    return resolve(name, find)


def problems_of(text: str) -> list[str]:
    with pytest.raises(InvalidPreset) as refused:
        parse_preset("p", "p.toml", text)
    return [str(problem) for problem in refused.value.problems]


BASE = """
description = "base"
[launch]
python = "/sglang/bin/python"
model-path = "/models/m"
[flags]
tp-size = 8
mem-fraction-static = 0.85
enable-metrics = true
[env]
NCCL_MIN_NCHANNELS = "8"
"""


def test_a_child_keeps_what_it_inherits_and_replaces_what_it_sets() -> None:
    child = 'extends = "base"\n[flags]\nmem_fraction_static = 0.9\n'
    preset = preset_of({"base": BASE, "child": child}, "child")
    values = {s.name: s.value for s in preset.flags}
    assert values == {"tp-size": 8, "mem-fraction-static": 0.9, "enable-metrics": True}
    assert preset.chain == ("child", "base")
    assert [s.value for s in preset.env] == ["8"]


def test_every_flag_tells_the_file_and_line_that_set_it() -> None:
    child = 'extends = "base"\n[flags]\nmem-fraction-static = 0.9\n'
    preset = preset_of({"base": BASE, "child": child}, "child")
    origins = {s.name: str(s.origin) for s in preset.flags}
    assert origins["mem-fraction-static"] == "child.toml:3"
    assert origins["tp-size"] == "base.toml:7"


def test_inheritance_has_any_depth() -> None:
    files = {f"p{n}": f'extends = "p{n - 1}"\n[flags]\na{n} = {n}\n' for n in range(1, 40)}
    preset = preset_of({"p0": "[flags]\na0 = 0\n", **files}, "p39")
    assert len(preset.flags) == 40


def test_false_removes_an_inherited_flag() -> None:
    preset = preset_of(
        {"base": BASE, "c": 'extends = "base"\n[flags]\nenable-metrics = false\n'}, "c"
    )
    assert preset.flag("enable-metrics") is None
    assert preset.flag("tp-size") is not None


def test_an_alias_in_a_child_replaces_the_flag_it_means() -> None:
    preset = preset_of({"base": BASE, "c": 'extends = "base"\n[flags]\ntp = 4\n'}, "c")
    assert [s.value for s in preset.flags if "t" in s.name and s.name.startswith("t")] == [4]


def test_a_command_replaces_an_inherited_interpreter() -> None:
    child = 'extends = "base"\n[launch]\ncommand = ["docker", "run", "{sglang_args}"]\n'
    preset = preset_of({"base": BASE, "c": child}, "c")
    assert preset.launch_setting("python") is None
    assert preset.launch_setting("command") is not None


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        ({"a": 'extends = "a"'}, "a -> a"),
        ({"a": 'extends = "b"', "b": 'extends = "c"', "c": 'extends = "b"'}, "b -> c -> b"),
    ],
)
def test_a_preset_that_extends_itself_is_refused_with_the_circle(
    files: dict[str, str], circle: str
) -> None:
    with pytest.raises(InvalidPreset, match=f"{circle}"):
        preset_of(files, "a")


def test_a_missing_parent_is_told_with_the_file_that_wants_it() -> None:
    with pytest.raises(InvalidPreset, match=r"^a.toml: extends: extends 'nope'.*no preset 'nope'"):
        preset_of({"a": 'extends = "nope"'}, "a")


def test_host_port_and_model_path_in_flags_are_moved_to_launch() -> None:
    preset = preset_of({"p": '[flags]\nport = 31000\nhost = "::"\nmodel = "/m"\ntp = 1\n'}, "p")
    assert {s.name: s.value for s in preset.launch} == {
        "port": 31000,
        "host": "::",
        "model-path": "/m",
    }
    assert [s.name for s in preset.flags] == ["tp"]


def test_broken_toml_tells_file_and_line() -> None:
    assert problems_of("[flags]\nx = \n")[0].startswith("p.toml:2: not TOML: ")


def test_every_mistake_of_a_file_is_told_at_once() -> None:
    text = """
descripton = "typo"
[launch]
pyton = "x"
port = 99999
command = "docker run"
[flags]
tp-size = 8
tp = 4
x = []
api-key = "hunter2"
[env]
A = true
HF_TOKEN = "hf_x"
[secrets]
admin-api-key = "hunter2"
"""
    told = problems_of(text)
    assert [line.split(": ")[0] for line in told] == [
        f"p.toml:{line}" for line in (2, 4, 5, 6, 9, 10, 11, 13, 14, 16)
    ]
    assert "unknown key" in told[0]
    assert "given twice: the same flag as 'tp-size'" in told[4]
    assert not any("hunter2" in line or "hf_x" in line for line in told)


def test_the_message_counts_what_else_is_wrong() -> None:
    with pytest.raises(InvalidPreset, match=r"and 1 more") as refused:
        parse_preset("p", "p.toml", "a = 1\nb = 2\n")
    assert refused.value.exit_status == 2
    assert "\n" not in str(refused.value)


def test_a_dash_and_an_underscore_are_the_same_flag() -> None:
    assert (
        "given twice" in problems_of("[flags]\nmem-fraction-static=1\nmem_fraction_static=1\n")[0]
    )


def test_python_and_command_together_are_refused() -> None:
    assert "not both" in problems_of('[launch]\npython = "p"\ncommand = ["c"]\n')[0]


def test_port_in_launch_and_in_flags_is_refused() -> None:
    assert "in [launch] too" in problems_of("[launch]\nport = 1\n[flags]\nport = 2\n")[0]


def test_a_table_becomes_the_json_that_sglang_reads() -> None:
    source = parse_preset("p", "p", "[flags]\ncuda-graph-config = {decode = {max_bs = 8}}\n")
    assert source.flags[0].value == '{"decode": {"max_bs": 8}}'
