"""Presets and config.toml on disk, the shipped presets, and the ledger of launches."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kvctl.core.domain.errors import ConfigError, PresetError
from kvctl.core.domain.presets.preset import InvalidPreset
from kvctl.core.domain.presets.rules import refusals
from kvctl.core.servers.config import read_config
from kvctl.core.servers.ledger import LaunchRecord, Ledger, LedgerUnwritable
from kvctl.core.servers.presets.store import (
    PresetStore,
    preset_folders,
    read_secrets,
)

ENGINE = {
    "KVCTL_ENGINE_PYTHON": "/engine/bin/python",
    "KVCTL_ENGINE_MODEL": "/engine/tiny-llama",
    "KVCTL_ENGINE_STUBS": "/engine/standins",
}
HOST = {"SGLANG_PYTHON": "/sglang/bin/python", "KVCTL_MODEL": "/models/Kimi-K2.5"}


@pytest.fixture
def user(tmp_path: Path) -> Path:
    folder = tmp_path / "config" / "presets"
    folder.mkdir(parents=True)
    return folder


def store_of(tmp_path: Path, environment: dict[str, str] | None = None) -> PresetStore:
    return PresetStore(preset_folders(tmp_path / "config"), environment or {})


def test_the_shipped_presets_are_found(tmp_path: Path) -> None:
    assert store_of(tmp_path).names() == (
        *("baseline", "cpu-tiny", "cpu-tiny-2x", "hicache-bf16", "hicache-fp8"),
        *("sim-baseline", "sim-hicache-bf16", "sim-hicache-fp8"),
    )


def test_a_shipped_preset_lists_without_its_variables_and_names_the_missing_one(
    tmp_path: Path,
) -> None:
    listed = {entry.name: entry for entry in store_of(tmp_path).listed()}
    assert all(entry.preset is not None for entry in listed.values())
    assert "${KVCTL_ENGINE_PYTHON} is not set" in str(listed["cpu-tiny-2x"].problems[0])
    assert "${SGLANG_PYTHON} is not set" in str(listed["hicache-fp8"].problems[0])
    assert listed["sim-hicache-fp8"].problems == ()


def test_the_presets_of_the_mission_have_its_levers(tmp_path: Path) -> None:
    store = store_of(tmp_path, HOST)
    shown = {
        n: " ".join(store.shown_plan(store.read(n)).argv)
        for n in store.names()
        if "-" in n and not n.startswith("cpu")
    }
    shown["baseline"] = " ".join(store.shown_plan(store.read("baseline")).argv)
    assert "--mem-fraction-static 0.85" in shown["baseline"]
    assert "--enable-hierarchical-cache" not in shown["baseline"]
    assert "--mem-fraction-static 0.88" in shown["hicache-bf16"]
    assert "--kv-cache-dtype bf16" in shown["hicache-bf16"]
    assert "--mem-fraction-static 0.9 " in shown["hicache-fp8"]
    assert "--kv-cache-dtype fp8_e4m3" in shown["hicache-fp8"]
    for text in shown.values():
        assert "--tp-size 8" in text
        assert "--disable-custom-all-reduce" in text
        assert "--num-continuous-decode-steps 4" in text
        assert "--enable-metrics" in text
    for name in ("hicache-bf16", "hicache-fp8"):
        assert "--hicache-size 48" in shown[name]
        assert "kvctl.core.sim.server --model-path" in shown[f"sim-{name}"]


def test_a_simulated_preset_differs_from_the_real_one_in_the_launch_only(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for name in ("baseline", "hicache-bf16", "hicache-fp8"):
        real, simulated = store.read(name), store.read(f"sim-{name}")
        assert [(s.name, s.value) for s in real.flags] == [
            (s.name, s.value) for s in simulated.flags
        ]


def test_cpu_tiny_renders_the_engine_of_the_tests(tmp_path: Path) -> None:
    store = store_of(tmp_path, {**ENGINE, "KVCTL_ENGINE_PORT": "31999"})
    plan = store.shown_plan(store.read("cpu-tiny-2x"))
    assert plan.argv[:3] == ("/engine/bin/python", "-m", "sglang.launch_server")
    assert plan.url == "http://127.0.0.1:31999"
    assert "--max-total-tokens 8192" in " ".join(plan.argv)
    assert dict(plan.env)["PYTHONPATH"] == "/engine/standins"
    assert dict(plan.env)["OMP_NUM_THREADS"] == "1"


def test_a_users_preset_goes_before_the_shipped_one(tmp_path: Path, user: Path) -> None:
    (user / "baseline.toml").write_text('description = "mine"\n[launch]\npython = "/p"\n')
    store = store_of(tmp_path)
    assert store.read("baseline").description == "mine"
    assert store.path_of("baseline") == user / "baseline.toml"
    team = tmp_path / "team"
    team.mkdir()
    for name in ("baseline", "hicache-bf16"):
        (team / f"{name}.toml").write_text('description = "the team\'s"\n')
    shared = PresetStore(preset_folders(tmp_path / "config", [team]), {})
    assert shared.read("baseline").description == "mine"
    assert shared.read("hicache-bf16").description == "the team's"
    listed = {entry.name: entry for entry in shared.listed()}
    assert listed["baseline"].hides[0] == str(team / "baseline.toml")
    assert len(listed["baseline"].hides) == 2 and len(listed["hicache-bf16"].hides) == 1


def test_a_missing_preset_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidPreset, match=r"no preset 'nope'; there are: baseline, cpu-tiny"):
        store_of(tmp_path).read("nope")


@pytest.mark.parametrize("name", ["../baseline", "a/b", "", "."])
def test_a_name_cannot_leave_the_folders(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidPreset, match="no preset"):
        store_of(tmp_path).read(name)


def test_a_broken_preset_is_listed_with_its_problem(tmp_path: Path, user: Path) -> None:
    (user / "broken.toml").write_text("[flags\n")
    (user / "binary.toml").write_bytes(b"\xff\xfe")
    (user / "self.toml").write_text('extends = "self"\n')
    listed = {entry.name: entry for entry in store_of(tmp_path).listed()}
    assert "broken.toml:1: not TOML" in str(listed["broken"].problems[0])
    assert "cannot be read" in str(listed["binary"].problems[0])
    assert "self -> self" in str(listed["self"].problems[0])


def test_a_saved_preset_reads_back_the_same(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    document = {"description": 'with "quotes"', "launch": {"python": "/p"}, "flags": {"tp": 2}}
    path = store.save("new", document)
    preset = store.read("new")
    assert preset.description == 'with "quotes"'
    assert [(s.name, s.value) for s in preset.flags] == [("tp", 2)]
    with pytest.raises(PresetError, match="exists"):
        store.save("new", document)
    assert store.save("new", {**document, "description": "x"}, replace=True) == path
    assert store.read("new").description == "x"


def test_an_invalid_document_is_not_saved(tmp_path: Path, user: Path) -> None:
    with pytest.raises(InvalidPreset, match="unknown key"):
        store_of(tmp_path).save("new", {"flag": {}})
    assert list(user.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file where a folder is wanted")
    with pytest.raises(PresetError, match="cannot be written"):
        store_of(tmp_path).save("new", {"flags": {"tp": 2}})


def test_secrets_come_from_environment_and_files_and_missing_ones_are_told(
    tmp_path: Path, user: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("from-file\n")
    (user / "s.toml").write_text(
        '[launch]\npython = "/p"\n[secrets]\napi-key = { env = "K" }\n'
        f'admin-api-key = {{ file = "{key}" }}\n'
    )
    store = store_of(tmp_path, {"K": "from-env"})
    preset = store.read("s")
    assert store.launch_plan(preset).argv[-4:] == (
        *("--api-key", "from-env"),
        *("--admin-api-key", "from-file"),
    )
    key.unlink()
    with pytest.raises(InvalidPreset) as refused:
        read_secrets(preset, {})
    assert [p.key for p in refused.value.problems] == [
        "[secrets] api-key",
        "[secrets] admin-api-key",
    ]


def test_a_rule_of_the_config_refuses_the_shipped_fp8_preset(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[[rule]]\nflag = "kv_cache_dtype"\ndeny = ["fp8*"]\nreason = "it degrades this model"\n'
        '[panel.keys]\nrestart = "R"\n[panel]\nfps = 5\n[watch]\nstall_after_s = 90\n'
    )
    config = read_config(path)
    store = store_of(tmp_path)
    refused = [n for n in store.names() if refusals(store.read(n), config.rules)]
    assert refused == ["hicache-fp8", "sim-hicache-fp8"]
    assert config.keys == {"restart": "R"}
    assert config.panel == {"fps": 5}
    assert config.stall_after_s == 90


def test_no_config_means_no_rule(tmp_path: Path) -> None:
    config = read_config(tmp_path / "none.toml")
    assert config.rules == () and config.stall_after_s == 30


def test_limits_and_crash_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[limits]\nweights_s = 7200\n[crash]\nrestart = true\nwait_s = 5\n")
    config = read_config(path)
    assert (config.limits.weights_s, config.limits.graphs_s) == (7200.0, 3600.0)
    assert (config.crash.restart, config.crash.wait_s, config.crash.most_restarts) == (True, 5.0, 3)


def test_the_law_goes_by_what_the_operator_wrote(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[throttle]\nmost = 96\nusage_goal = 0.9\nprobe_after_s = 600\n")
    law = read_config(path).throttle
    assert (law.most, law.usage_goal, law.probe_after_s) == (96, 0.9, 600.0)
    assert (law.start, law.least) == (32, 4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[rule]\n", r"\[\[rule\]\]"),
        ("[[rule]]\nflag = 'x'\n", "'deny' is missing"),
        ("[[rule]]\nflag = 'x'\ndeny = ['a']\nreason = 'r'\nlevel = 1\n", "unknown key 'level'"),
        ("[[rule]]\nflag = 'x'\ndeny = 'a'\nreason = 'r'\n", "deny must be a list"),
        ("[pannel]\n", "unknown key 'pannel'"),
        ("[[rule]\n", r"not TOML: .* line 1"),
        ("[panel]\nkeys = 1\n", r"\[panel.keys\]"),
        ("[presets]\nfolder = []\n", "unknown key 'folder'"),
        ("[presets]\nfolders = '/x'\n", "must be a list of folders"),
        ("presets = 1\n", r"\[presets\]"),
        ("[watch]\nstall = 3\n", "unknown key 'stall'"),
        ("[watch]\nstall_after_s = 1\n", "seconds from 5 up"),
        ("[watch]\nstall_after_s = nan\n", "seconds from 5 up"),
        ("watch = 3\n", r"\[watch\]"),
        ("limits = 3\n", r"\[limits\]"),
        ("[limits]\nweight_s = 3\n", r"unknown key 'weight_s'; there are process_s, weights_s"),
        ("[limits]\nweights_s = 0\n", r"\[limits\] weights_s must be seconds from 1 up"),
        ("[limits]\nend_start = 1\n", "end_start must be true or false"),
        ("throttle = 3\n", r"\[throttle\]"),
        ("[throttle]\nmax = 3\n", "unknown key 'max'; there are start, least, most"),
        ("[throttle]\nmost = 1e2\n", "most must be a whole number from 1 up"),
        ("[throttle]\nmost = 16\n", "least <= start <= most; they are 4, 32 and 16"),
        ("[throttle]\nusage_goal = 97\n", "usage_goal must be above 0 and at most 1"),
        ("[throttle]\nsmoothing_s = nan\n", "smoothing_s must be above 0"),
        ("[throttle]\nsmoothing_s = true\n", "smoothing_s must be above 0"),
        ("[throttle]\nrelease_usage = 0.98\n", "must be below hold_usage 0.97"),
        ("[crash]\nmost_restarts = 1.5\n", "most_restarts must be a whole number"),
    ],
)
def test_a_broken_config_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told) as refused:
        read_config(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


RECORD = LaunchRecord(id="a", preset="baseline", wall=1.0, argv=("x",), env=(("A", "1"),), pid=7)


def test_the_ledger_folds_a_launch_from_its_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state" / "launches.jsonl")
    assert ledger.records() == ()
    ledger.begin(RECORD)
    ledger.ready("a", 620.5, 159277, 5.47, "0.5.23")
    ledger.ended("a", 99.0, -9, "out of GPU memory")
    assert ledger.records() == (
        replace(
            RECORD,
            ready_after_s=620.5,
            served=True,
            pool_tokens=159277,
            free_gpu_memory_gb=5.47,
            version="0.5.23",
            ended_wall=99.0,
            exit_code=-9,
            cause="out of GPU memory",
        ),
    )
    assert os.stat(ledger.path).st_mode & 0o777 == 0o600


def test_the_last_good_launch_is_one_that_served(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "launches.jsonl")
    for number, preset in enumerate(["baseline", "hicache-bf16", "baseline", "broken"]):
        ledger.begin(replace(RECORD, id=str(number), preset=preset))
        if preset != "broken":
            ledger.ready(str(number), 600.0 + number, 1)
    good = ledger.last_good()
    assert good is not None
    assert good.id == "2"
    other = ledger.last_good(but_not="baseline")
    assert other is not None
    assert other.preset == "hicache-bf16"
    assert ledger.start_durations_s("baseline") == (600.0, 602.0)


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "launches.jsonl")
    ledger.begin(RECORD)
    with ledger.path.open("a") as file:
        file.write('{"event": "begun", "id": "torn", "pre')
    ledger.begin(replace(RECORD, id="b"))
    assert [record.id for record in ledger.records()] == ["a", "b"]


def test_a_ledger_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerUnwritable, match="cannot be written"):
        Ledger(tmp_path / "file" / "launches.jsonl").begin(RECORD)
