"""A model folder on disk: what is read of it, and what is refused with a reason."""

import json
import shutil
from pathlib import Path

import pytest
from tests.engine.tiny_model import write_tiny_model

from kvctl.core.domain.capacity.model_shape import ModelShapeUnknown
from kvctl.core.domain.capacity.model_weights import WeightPart, WeightSource, rank_weights
from kvctl.core.domain.capacity.weight_estimate import estimate_weights
from kvctl.core.domain.presets.serving_flags import Layout
from kvctl.core.servers.model_folder import (
    ModelFolderUnreadable,
    find_model_folder,
    read_model_folder,
)

MODELS = Path(__file__).parents[1] / "data" / "models"


def safetensors(path: Path, tensors: dict[str, int], kind: str = "BF16") -> None:
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size in tensors.items():
        table[name] = {"dtype": kind, "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(table).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(at))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(MODELS / "deepseek-v3.json", tmp_path / "config.json")
    return tmp_path


def test_the_tiny_models_tensors_add_up_to_its_config(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    found = read_model_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    estimate = estimate_weights(config)
    assert found.weights.source is WeightSource.HEADERS
    assert found.shards >= 1
    # The estimate leaves out the norms: 5 x 64 values of 2 bytes.
    assert found.weights.total_bytes - estimate.total_bytes == 5 * 64 * 2


def test_tensors_are_sorted_by_how_they_are_split(folder: Path) -> None:
    safetensors(
        folder / "model.safetensors",
        {
            "model.layers.3.mlp.experts.0.up_proj.weight": 8000,
            "model.layers.3.self_attn.q_b_proj.weight": 800,
            "model.layers.61.mlp.experts.0.up_proj.weight": 4000,
            "model.layers.3.input_layernorm.weight": 20,
        },
    )
    weights = read_model_folder(folder).weights
    assert weights.of(WeightPart.DRAFT) == 4000
    eighth = rank_weights(weights, Layout(tp=8))
    assert eighth.expected_bytes == 8000 / 8 + 800 / 8 + 20
    drafted = rank_weights(weights, Layout(tp=8), with_draft=True)
    assert drafted.expected_bytes - eighth.expected_bytes == 500


def test_the_index_decides_which_files_count(folder: Path) -> None:
    safetensors(folder / "model-1.safetensors", {"lm_head.weight": 100})
    safetensors(folder / "consolidated.safetensors", {"lm_head.weight": 900})
    index = {"weight_map": {"lm_head.weight": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_model_folder(folder)
    assert (found.shards, found.weights.total_bytes) == (1, 100)


def test_missing_shards_are_counted_and_the_first_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFolderUnreadable, match="2 of 2 weight files are missing, first model"):
        read_model_folder(folder)


def test_an_index_cannot_lead_out_of_the_folder(folder: Path) -> None:
    safetensors(folder.parent / "outside.safetensors", {"lm_head.weight": 900})
    index = {"weight_map": {"lm_head.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model_folder(folder).weights.source is WeightSource.CONFIG


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "a pointer or cut"),
        (b"", "a pointer or cut off|no JSON"),
        ((5).to_bytes(8, "little") + b"{{{{{", "no JSON"),
        ((50_000_000).to_bytes(8, "little") + b"{}", "a pointer or cut off"),
    ],
)
def test_what_is_no_whole_safetensors_file_is_refused(
    folder: Path, content: bytes, why: str
) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFolderUnreadable, match=why):
        read_model_folder(folder)


def test_a_file_that_ends_before_its_tensors_is_cut_off(folder: Path) -> None:
    safetensors(folder / "model.safetensors", {"lm_head.weight": 1000})
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(ModelFolderUnreadable, match="cut off"):
        read_model_folder(folder)


def test_without_weight_files_the_config_is_what_is_known(folder: Path) -> None:
    found = read_model_folder(folder)
    assert (found.weights.source, found.shards, found.file_bytes) == (WeightSource.CONFIG, 0, 0)


def test_other_weight_files_count_by_their_size(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(bytes(1234))
    found = read_model_folder(folder)
    assert found.weights.source is WeightSource.FILES
    assert found.weights.total_bytes == found.file_bytes == 1234


@pytest.mark.parametrize("content", ["not json", "[]", ""])
def test_a_broken_config_is_refused_by_its_path(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelFolderUnreadable, match=r"config\.json: not "):
        read_model_folder(tmp_path)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderUnreadable, match=r"config\.json: No such file"):
        read_model_folder(tmp_path)


def test_a_config_of_no_language_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "unet"}')
    with pytest.raises(ModelShapeUnknown, match="cannot be predicted"):
        read_model_folder(tmp_path)


def test_a_hub_name_is_found_in_the_cache_by_its_main_commit(tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "models--org--name"
    for commit in ("aaa", "bbb"):
        (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("aaa")
    assert find_model_folder("org/name", {"HF_HOME": str(tmp_path)}).name == "aaa"
    assert find_model_folder("org/name", {"HF_HUB_CACHE": str(tmp_path / "hub")}).name == "aaa"


def test_a_model_that_is_not_here_is_refused_without_fetching(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderUnreadable, match="no such folder and no snapshot"):
        find_model_folder("org/absent", {"HF_HOME": str(tmp_path)})
    assert find_model_folder(str(tmp_path), {}) == tmp_path
