"""SGLang's own YAML flag file: read, checked, shown with its lines, never silently passed by."""

from pathlib import Path

import pytest

from kvctl.core.domain.presets.preset import InvalidPreset
from kvctl.core.domain.presets.rules import Rule, refusals
from kvctl.core.servers.presets.store import PresetStore

PRESET = '[launch]\npython = "/py"\n[flags]\nconfig = "serve.yaml"\n{flags}'
YAML = """# served since spring
model-path: /models/kimi
port: 31000
tp_size: 8
kv-cache-dtype: fp8_e4m3
enable-metrics: true
disable-radix-cache: false
cuda-graph-bs-decode: [1, 2, 4]
json-model-override-args: {rope: 2}
lora-paths: []
served-model-name: ${NOT_A_VARIABLE}
"""


def store_of(folder: Path, yaml: str = YAML, flags: str = "") -> PresetStore:
    (folder / "serve.yaml").write_text(yaml)
    (folder / "p.toml").write_text(PRESET.format(flags=flags))
    return PresetStore([folder], {})


def test_its_flags_reach_the_command_line_and_the_file_does_not(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    plan = store.shown_plan(store.read("p"))
    words = " ".join(plan.argv)
    assert "--config" not in plan.argv
    assert "--tp-size 8 --kv-cache-dtype fp8_e4m3 --enable-metrics" in words
    assert "--cuda-graph-bs-decode 1 2 4" in words
    assert '--json-model-override-args {"rope": 2}' in words
    assert "--served-model-name ${NOT_A_VARIABLE}" in words
    assert "radix" not in words and "lora" not in words
    assert (plan.model_path, plan.port) == ("/models/kimi", 31000)


def test_every_setting_tells_the_line_of_the_yaml_file(tmp_path: Path) -> None:
    preset = store_of(tmp_path).read("p")
    dtype = preset.flag("kv-cache-dtype")
    assert dtype is not None and str(dtype.origin) == f"{tmp_path / 'serve.yaml'}:5"


def test_a_flag_of_the_preset_wins_as_the_command_line_does(tmp_path: Path) -> None:
    store = store_of(tmp_path, flags="kv_cache_dtype = 'bf16'\nenable-metrics = false\nport = 4\n")
    plan = store.shown_plan(store.read("p"))
    assert "--kv-cache-dtype bf16" in " ".join(plan.argv)
    assert "fp8_e4m3" not in plan.argv and "--enable-metrics" not in plan.argv
    assert plan.port == 4


def test_a_rule_sees_what_the_yaml_file_sets(tmp_path: Path) -> None:
    rule = Rule("kv-cache-dtype", ("fp8*",), "it degrades this model")
    (broken,) = refusals(store_of(tmp_path).read("p"), [rule])
    assert broken.where.endswith("serve.yaml:5")


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("tp-size: 8\ntp_size: 4\n", "serve.yaml:2: tp_size: given twice: also in line 1"),
        ("- tp-size\n", "must be a mapping"),
        ("tp-size: [1\n", "not YAML"),
        ("tp-size:\n", "serve.yaml:1: tp-size: must be text"),
        ("a: [[1]]\nb: 2026-01-01\n", "serve.yaml:1: a: must be text"),
        ("api-key: hunter2\n", "a secret is never written"),
        ("config: other.yaml\n", "cannot name another one"),
        ("x: !!python/object:os.system {}\n", "not YAML"),
    ],
)
def test_a_broken_flag_file_is_told_with_its_line(tmp_path: Path, yaml: str, told: str) -> None:
    with pytest.raises(InvalidPreset) as refused:
        store_of(tmp_path, yaml).read("p")
    assert told in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_every_problem_of_the_file_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidPreset) as refused:
        store_of(tmp_path, "a:\nb:\nconfig: x\n").read("p")
    assert len(refused.value.problems) == 3


def test_a_file_that_is_not_here_or_no_yaml_is_refused_where_it_is_named(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    (tmp_path / "serve.yaml").unlink()
    with pytest.raises(InvalidPreset, match=r"p.toml:4: \[flags\] config: .*cannot be read here"):
        store.read("p")
    (tmp_path / "p.toml").write_text('[launch]\npython = "/py"\n[flags]\nconfig = "x.json"\n')
    with pytest.raises(InvalidPreset, match=r"must end in \.yaml"):
        store.read("p")


def test_a_flag_file_in_a_command_template_is_refused(tmp_path: Path) -> None:
    words = '"python", "-m", "sglang.launch_server", "--config", "/x.yaml", "{sglang_args}"'
    (tmp_path / "p.toml").write_text(f"[launch]\ncommand = [{words}]\n")
    with pytest.raises(InvalidPreset, match=r"p.toml:2: \[launch\] command: has --config"):
        PresetStore([tmp_path], {}).read("p")
    docker = '"docker", "--config", "/d", "run", "i", "sglang", "serve", "{sglang_args}"'
    (tmp_path / "p.toml").write_text(f"[launch]\ncommand = [{docker}]\n")
    assert PresetStore([tmp_path], {}).read("p").name == "p"
