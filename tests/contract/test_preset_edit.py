"""Edits by verb keep what a person wrote around the key, and write nothing that is no preset."""

from pathlib import Path
from typing import Any

import pytest

from kvctl.core.domain.errors import PresetError, UsageError
from kvctl.core.domain.presets.preset import InvalidPreset
from kvctl.core.servers.presets.edit import Key, key_of, own, set_keys, unset_keys, value_of
from kvctl.core.servers.presets.store import PresetStore, preset_folders

TEXT = """# the night shift's preset
description = "bf16 KV"   # asked for by Ann

[launch]
python = "/py"

[flags]
# 0.90 ran out of memory on 3 May
mem_fraction_static = 0.85  # measured
tp-size = 8

[env]
NCCL_DEBUG = "WARN"
"""


@pytest.fixture
def store(tmp_path: Path) -> PresetStore:
    folder = tmp_path / "config" / "presets"
    folder.mkdir(parents=True)
    (folder / "night.toml").write_text(TEXT)
    return PresetStore(preset_folders(tmp_path / "config"), {})


def pairs(*words: str) -> list[tuple[Key, Any]]:
    split = (word.partition("=") for word in words)
    return [(key_of(name), value_of(value)) for name, _, value in split]


def text_of(store: PresetStore, name: str = "night") -> str:
    return store.path_of(name).read_text()


def test_only_the_line_of_the_key_changes(store: PresetStore) -> None:
    edited = set_keys(store, "night", pairs("mem-fraction-static=0.88"))
    assert edited.changes == ("~ [flags] mem-fraction-static: 0.85 -> 0.88",)
    assert text_of(store) == TEXT.replace("0.85", "0.88")


def test_new_keys_go_to_their_tables(store: PresetStore) -> None:
    words = ("enable-metrics=true", "port=31000", "NCCL_MIN_NCHANNELS=8", "cuda-graph-bs=[1, 2]")
    set_keys(store, "night", pairs(*words, "secrets.api-key={env = 'K'}", "revision=main"))
    text = text_of(store)
    for line in TEXT.splitlines():
        assert line in text.splitlines()
    plan = store.shown_plan(store.read("night"))
    assert plan.port == 31000
    assert dict(plan.env)["NCCL_MIN_NCHANNELS"] == "8"
    assert "--enable-metrics --cuda-graph-bs 1 2 --revision main --api-key ***" in " ".join(
        plan.shown_argv
    )


def test_a_key_is_taken_away_and_an_inherited_flag_is_left_out(store: PresetStore) -> None:
    unset_keys(store, "night", [key_of("mem-fraction-static"), key_of("NCCL_DEBUG")])
    assert "mem_fraction" not in text_of(store)
    assert "# the night shift's preset" in text_of(store)
    folder = store.own_folder
    (folder / "day.toml").write_text('extends = "night"\n')
    edited = unset_keys(store, "day", [key_of("tp-size")])
    assert "false" in edited.changes[0] and "night.toml:9" in edited.changes[0]
    assert store.read("day").flag("tp-size") is None
    with pytest.raises(PresetError, match="is not set in"):
        unset_keys(store, "day", [key_of("launch.gpus")])


def test_a_shipped_preset_is_copied_with_its_comments_and_stays_as_it_is(
    store: PresetStore,
) -> None:
    shipped = store.path_of("baseline")
    before = shipped.read_text()
    edited = set_keys(store, "baseline", pairs("mem-fraction-static=0.8"))
    assert edited.copied_from == shipped
    assert shipped.read_text() == before
    assert store.path_of("baseline") == store.own_folder / "baseline.toml"
    changed = set(text_of(store, "baseline").splitlines()) ^ set(before.splitlines())
    assert all(line.startswith("mem-fraction-static") for line in changed)


def test_taking_a_preset_over_twice_copies_once(store: PresetStore) -> None:
    first = own(store, "hicache-bf16")
    assert first.copied_from is not None
    assert own(store, "hicache-bf16").copied_from is None
    assert first.path.parent == store.own_folder


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("secrets.api-key='hunter2'", "a secret is never written"),
        ("api-key=hunter2", "a secret is never written"),
        ("launch.pyton=/py", "unknown key; \\[launch\\] has"),
        ("port=http", "must be a port number"),
        ("extends=night", "cannot extend itself"),
        ("extends=nobody", "there is no preset 'nobody'"),
    ],
)
def test_what_would_be_no_preset_is_not_written(store: PresetStore, word: str, told: str) -> None:
    with pytest.raises(InvalidPreset, match=told) as refused:
        set_keys(store, "night", pairs(word))
    assert "hunter2" not in str(refused.value)
    assert text_of(store) == TEXT


def test_a_file_that_is_no_toml_is_not_touched(store: PresetStore) -> None:
    store.path_of("night").write_text("[flags\n")
    with pytest.raises(PresetError, match=r"not TOML: .*nothing was changed"):
        set_keys(store, "night", pairs("tp-size=4"))
    assert text_of(store) == "[flags\n"


def test_a_link_stays_a_link(store: PresetStore, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.toml"
    path = store.path_of("night")
    path.rename(target)
    path.symlink_to(target)
    set_keys(store, "night", pairs("tp-size=4"))
    assert path.is_symlink() and "tp-size = 4" in target.read_text()


def test_words_mean_the_keys_that_people_write() -> None:
    assert key_of("tp") == Key("flags", "tp")
    assert key_of("mem_fraction_static") == Key("flags", "mem-fraction-static")
    assert key_of("model") == Key("launch", "model-path")
    assert key_of("CUDA_VISIBLE_DEVICES") == Key("env", "CUDA_VISIBLE_DEVICES")
    assert key_of("env.http_proxy") == Key("env", "http_proxy")
    assert key_of("description") == Key("", "description")
    with pytest.raises(UsageError, match="there is no \\[flag\\]"):
        key_of("flag.tp")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("0.9", 0.9), ("true", True), ("[1, 2]", [1, 2]), ('"8"', "8"),
        ("fp8_e4m3", "fp8_e4m3"), ("400k", "400k"), ("/models/x", "/models/x"), ("", ""),
        ("2026-01-01", "2026-01-01"), ("1\nx = 2", "1\nx = 2"),
    ],
)  # fmt: skip
def test_words_mean_the_values_that_toml_would(text: str, value: object) -> None:
    assert value_of(text) == value
