"""Reads a local model folder: config.json, and what the weights of its tensors take.

Only the heads of the safetensors files are read (a length and a table of names, types and
offsets), never the weights. What is not on this host is not fetched.

Source: the safetensors format (8 bytes little-endian length, JSON table, data); the hub cache
layout of huggingface_hub (models--ORG--NAME/refs, snapshots).
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.domain.capacity.model_shape import ModelShape, parse_shape, text_config
from kvctl.core.domain.capacity.model_weights import Weights, sorted_weights, unsorted_weights
from kvctl.core.domain.capacity.weight_estimate import estimate_weights, is_quantized
from kvctl.core.domain.errors import UsageError
from kvctl.core.domain.jsonfields import Json, as_list, as_mapping, text

_LENGTH_BYTES = 8
_LARGEST_TABLE = 100_000_000
"""What the safetensors format itself allows."""
_INDEX = "model.safetensors.index.json"
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.gguf")


class ModelFolderUnreadable(UsageError):
    """A model folder is not there, not whole or not readable."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a model on this host is."""

    path: Path
    shape: ModelShape
    weights: Weights
    shards: int
    """Weight files; 0: the weights are estimated from config.json."""
    file_bytes: int
    """Of all weight files; 0 without any."""


def find_model_folder(model_path: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of a path, or of a hub name whose snapshot is in the cache.

    Raises:
        ModelFolderUnreadable: It is neither a folder nor in the cache.
    """
    direct = Path(model_path).expanduser()
    if direct.is_dir():
        return direct
    cached = _cached(model_path, environment)
    if cached is None:
        raise ModelFolderUnreadable(
            f"model {model_path}: no such folder and no snapshot in the hub cache; "
            "name a local folder"
        )
    return cached


def read_model_folder(path: Path) -> ModelFolder:
    """Return shape and weights of a model folder.

    Raises:
        ModelFolderUnreadable: A file is missing, cut off or not what its name says.
        ModelShapeUnknown: config.json does not describe a model whose pool can be predicted.
    """
    config = _json(path / "config.json")
    shape = parse_shape(config)
    shards = _shards(path)
    if shards:
        weights = _tensor_weights(shards, config, shape)
        return _folder(path, shape, weights, shards)
    others = [found for pattern in _OTHER_WEIGHTS for found in sorted(path.glob(pattern))]
    if others:
        total = sum(_size(file) for file in others)
        weights = unsorted_weights(total, is_quantized=is_quantized(config))
        return _folder(path, shape, weights, others)
    return _folder(path, shape, estimate_weights(config), [])


def _folder(path: Path, shape: ModelShape, weights: Weights, files: list[Path]) -> ModelFolder:
    return ModelFolder(path, shape, weights, len(files), sum(_size(file) for file in files))


def _tensor_weights(shards: list[Path], config: Mapping[str, Json], shape: ModelShape) -> Weights:
    # A float32 checkpoint is loaded in 16 bits unless --dtype says otherwise.
    inner = text_config(config)
    dtype = text(inner, "torch_dtype") or text(inner, "dtype")
    wide = 0.5 if dtype == "float32" else 1.0
    sizes = (
        (name, int(size * wide) if kind == "F32" else size)
        for shard in shards
        for name, kind, size in _tensors(shard)
    )
    return sorted_weights(sizes, len(shape.layers), is_quantized=is_quantized(config))


def _shards(path: Path) -> list[Path]:
    """Return the safetensors files that the server loads; the index decides where there is one."""
    index = path / _INDEX
    if not index.is_file():
        named = sorted(path.glob("model*.safetensors"))
        return named or sorted(path.glob("*.safetensors"))
    names = sorted({str(n) for n in as_mapping(_json(index).get("weight_map")).values()})
    # A name that leads out of the folder is not a shard of this model.
    names = [name for name in names if Path(name).name == name]
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise ModelFolderUnreadable(
            f"{path}: {len(missing)} of {len(names)} weight files are missing, "
            f"first {missing[0]}; complete the download"
        )
    return [path / name for name in names]


def _tensors(shard: Path) -> Iterator[tuple[str, str, int]]:
    """Yield name, type and bytes of every tensor of a file."""
    table, room = _table(shard)
    for name, entry in table.items():
        fields = as_mapping(entry)
        offsets = as_list(fields.get("data_offsets"))
        if name == "__metadata__" or len(offsets) != 2:
            continue
        begin, end = offsets
        if not isinstance(begin, int) or not isinstance(end, int) or end < begin:
            raise _not_safetensors(shard, "its table is damaged")
        if end > room:
            raise _not_safetensors(shard, "it is cut off")
        yield name, text(fields, "dtype") or "", end - begin


def _table(shard: Path) -> tuple[Mapping[str, Json], int]:
    """Return the table of a file and the bytes that follow it."""
    size = _size(shard)
    try:
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > min(_LARGEST_TABLE, size - _LENGTH_BYTES):
                raise _not_safetensors(shard, "it is a pointer or cut off")
            table: Json = json.loads(file.read(length))
    except OSError as error:
        raise _unreadable(shard, error) from error
    except ValueError as error:
        raise _not_safetensors(shard, "its table is no JSON") from error
    return as_mapping(table), size - _LENGTH_BYTES - length


def _json(file: Path) -> Mapping[str, Json]:
    try:
        value: Json = json.loads(file.read_bytes())
    except OSError as error:
        raise _unreadable(file, error) from error
    except (ValueError, RecursionError) as error:
        raise ModelFolderUnreadable(f"{file}: not JSON; the download is broken") from error
    if not as_mapping(value):
        raise ModelFolderUnreadable(f"{file}: not a JSON object; the download is broken")
    return as_mapping(value)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> ModelFolderUnreadable:
    why = error.strerror or type(error).__name__
    return ModelFolderUnreadable(f"{file}: {why}; check the model path")


def _not_safetensors(file: Path, why: str) -> ModelFolderUnreadable:
    return ModelFolderUnreadable(f"{file}: no whole safetensors file, {why}; download it again")


def _cached(name: str, environment: Mapping[str, str]) -> Path | None:
    """Return the snapshot of a hub name: that of `main`, else the newest."""
    folder = _hub(environment) / f"models--{name.replace('/', '--')}"
    if os.sep in folder.name or not (folder / "snapshots").is_dir():
        return None
    reference = folder / "refs" / "main"
    if reference.is_file():
        commit = reference.read_text(errors="replace").strip()
        snapshot = folder / "snapshots" / commit
        if commit and snapshot.name == commit and snapshot.is_dir():
            return snapshot
    snapshots = [found for found in (folder / "snapshots").iterdir() if found.is_dir()]
    return max(snapshots, key=lambda found: found.stat().st_mtime, default=None)


def _hub(environment: Mapping[str, str]) -> Path:
    if chosen := environment.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    if home := environment.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"
