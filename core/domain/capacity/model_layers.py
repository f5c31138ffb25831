"""Which layers of a model keep full KV, a window of it, a fixed state, or nothing.

Pure: the language model's config goes in. A layer counts as sliding only for the architectures
that SGLang gives a second pool; every other model's sliding layers sit in the ordinary pool.

Source: get_hybrid_layer_ids and is_hybrid_swa_model, configs/model_config.py, 0.5.23.
"""

from collections.abc import Mapping
from enum import StrEnum

from kvctl.core.domain.jsonfields import Json, as_list, as_mapping, count


class LayerKind(StrEnum):
    """What one layer keeps of a request."""

    FULL = "full"
    """KV of every token."""
    SLIDING = "sliding"
    """KV of the window, in a pool of its own."""
    LINEAR = "linear"
    """A state of fixed size (mamba, GDN)."""
    BOTH = "both"
    """KV of every token and a fixed state (FalconH1)."""
    NONE = "none"
    """Nothing: an MLP alone."""


_TWO_POOLS = frozenset(
    {
        "BeamForCausalLM",
        "GptOssForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteSWAForCausalLM",
        "IQuestQ1ForCausalLM",
        "LagunaForCausalLM",
        "Llama4ForConditionalGeneration",
        "MellumForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MuseGlimmerForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)
"""Architectures with a pool of their own for sliding layers; Gemma4 is matched by its prefix."""

_LAYER_NAMES = {
    "full_attention": LayerKind.FULL,
    "attention": LayerKind.FULL,
    "sliding_attention": LayerKind.SLIDING,
    "chunked_attention": LayerKind.SLIDING,
    "linear_attention": LayerKind.LINEAR,
    "mamba": LayerKind.LINEAR,
    "conv": LayerKind.LINEAR,
    "hybrid": LayerKind.BOTH,
}
_MOST_LAYERS = 10_000
"""More than any model has: a file that says so is not believed."""
_PATTERN = {"*": LayerKind.FULL, "M": LayerKind.LINEAR}


def layer_kinds(architecture: str, fields: Mapping[str, Json]) -> tuple[LayerKind, ...]:
    """Return what every layer keeps; empty where the config does not say how many there are."""
    total = count(fields, "num_hidden_layers") or count(fields, "n_layer") or 0
    if total > _MOST_LAYERS:
        return ()
    kinds = _named(fields) or _patterned(fields, total) or (LayerKind.FULL,) * total
    if architecture.startswith("FalconH1"):
        kinds = (LayerKind.BOTH,) * total
    kinds = kinds[:total] if total else kinds
    if _has_two_pools(architecture, fields):
        return _llama4(total) if architecture.startswith("Llama4") else kinds
    return tuple(LayerKind.FULL if kind is LayerKind.SLIDING else kind for kind in kinds)


def indexed_layers(fields: Mapping[str, Json], kinds: tuple[LayerKind, ...]) -> tuple[int, ...]:
    """Return the layers that keep their own index rows (sparse attention); others reuse them.

    Source: dsa_layer_skips_topk, configs/model_config.py, 0.5.23.
    """
    full = [i for i, kind in enumerate(kinds) if kind in (LayerKind.FULL, LayerKind.BOTH)]
    if types := as_list(fields.get("indexer_types")):
        return tuple(i for i in full if i >= len(types) or types[i] != "shared")
    if (every := count(fields, "cli_factor") or 1) > 1:
        return tuple(i for i in full if i % every == 0)
    pattern = fields.get("index_topk_pattern")
    if isinstance(pattern, str | list):
        return tuple(i for i in full if i >= len(pattern) or pattern[i] != "S")
    if (every := count(fields, "index_topk_freq") or 1) > 1:
        first = (count(fields, "index_skip_topk_offset") or 2) - 1
        return tuple(i for i in full if max(i - first, 0) % every == 0)
    return tuple(full)


def _has_two_pools(architecture: str, fields: Mapping[str, Json]) -> bool:
    if architecture.startswith("Laguna"):
        return bool(count(fields, "sliding_window"))
    is_listed = architecture in _TWO_POOLS or architecture.startswith("Gemma4")
    return is_listed or fields.get("is_hybrid_swa") is True


def _named(fields: Mapping[str, Json]) -> tuple[LayerKind, ...]:
    names = as_list(fields.get("layer_types")) or as_list(fields.get("layers_block_type"))
    return tuple(_LAYER_NAMES.get(str(name), LayerKind.FULL) for name in names)


def _patterned(fields: Mapping[str, Json], total: int) -> tuple[LayerKind, ...]:
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return tuple(_PATTERN.get(letter, LayerKind.NONE) for letter in pattern)
    if marks := as_list(fields.get("hybrid_layer_pattern")):
        return tuple(LayerKind.SLIDING if mark == 1 else LayerKind.FULL for mark in marks)
    every = count(fields, "full_attention_interval")
    if every and count(fields, "linear_num_value_heads"):
        return tuple(
            LayerKind.FULL if (i + 1) % every == 0 else LayerKind.LINEAR for i in range(total)
        )
    # Kimi-Linear numbers its layers from 1.
    linear = as_list(as_mapping(fields.get("linear_attn_config")).get("kda_layers"))
    return tuple(
        LayerKind.LINEAR if i + 1 in linear else LayerKind.FULL
        for i in range(total if linear else 0)
    )


def _llama4(total: int) -> tuple[LayerKind, ...]:
    return tuple(LayerKind.FULL if (i + 1) % 4 == 0 else LayerKind.SLIDING for i in range(total))
