"""A model's weights from its config.json alone, where there are no weight files to read.

Pure. Good for models with random weights (`--load-format dummy`) and for a model that is not
downloaded yet. Matrices are counted; biases and norms of a few thousand values are not.

Source: parameter shapes of the Llama, Qwen, DeepSeek, GDN and mamba2 layers, 0.5.23.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvctl.core.domain.capacity.model_layers import LayerKind
from kvctl.core.domain.capacity.model_shape import (
    AttentionKind,
    ModelShape,
    parse_shape,
    text_config,
)
from kvctl.core.domain.capacity.model_weights import WeightPart, Weights, WeightSource
from kvctl.core.domain.jsonfields import Json, as_list, as_mapping, count

_FULL_KINDS = (LayerKind.FULL, LayerKind.SLIDING, LayerKind.BOTH)
_STATE_KINDS = (LayerKind.LINEAR, LayerKind.BOTH)
_PART_WORDS = {
    WeightPart.ATTENTION: ("self_attn", "attention"),
    WeightPart.DENSE: ("shared_experts", "shared_expert", "mlp\\."),
    WeightPart.EXPERTS: (".experts",),
}
_BITS = {"fp8": 8.0, "awq": 4.0, "gptq": 4.0, "mxfp4": 4.25, "modelopt_fp4": 4.5, "nvfp4": 4.5}


@dataclass(frozen=True, slots=True)
class _Quantization:
    """Bytes of one matrix value by part; the model's own dtype where a part is left alone."""

    linear_bytes: float
    plain_bytes: float
    left_alone: frozenset[WeightPart]

    def bytes_of(self, part: WeightPart) -> float:
        is_linear = part in _PART_WORDS and part not in self.left_alone
        return self.linear_bytes if is_linear else self.plain_bytes


def is_quantized(config: Mapping[str, Json]) -> bool:
    """Return whether a checkpoint's weights are quantized."""
    return bool(_quantization_config(config))


def estimate_weights(config: Mapping[str, Json]) -> Weights:
    """Return the weights that a config.json describes.

    Raises:
        ModelShapeUnknown: The config does not even say how many layers there are.
    """
    shape, fields = parse_shape(config), text_config(config)
    values = dict.fromkeys(WeightPart, 0)
    for part, amount in (*_attention(shape, fields), *_feed_forward(shape, fields)):
        values[part] += amount
    vocabulary = (count(fields, "vocab_size") or 0) * shape.hidden
    values[WeightPart.EMBEDDING] += vocabulary
    if not _is_tied(config, fields):
        values[WeightPart.HEAD] += vocabulary
    quantization = _quantization(config)
    parts = tuple(
        (part, int(amount * quantization.bytes_of(part)))
        for part, amount in values.items()
        if amount
    )
    return Weights(WeightSource.CONFIG, parts, is_quantized(config))


def _attention(shape: ModelShape, fields: Mapping[str, Json]) -> tuple[tuple[WeightPart, int], ...]:
    full = shape.count(*_FULL_KINDS)
    heads, width = count(fields, "num_attention_heads") or 0, shape.hidden
    if shape.attention is AttentionKind.LATENT:
        split, whole = _latent_values(shape, fields, heads)
        attention, replicated = split * full, whole * full
    else:
        row = shape.row
        keys = width * row.kv_heads * (row.key_dim + row.value_dim)
        attention = (width * heads * (row.key_dim + row.value_dim) + keys) * full
        replicated = 0
    if shape.state is not None:
        state = shape.state
        mixer = width * (3 * state.inner + 2 * state.groups * state.state + 2 * state.heads)
        attention += mixer * shape.count(*_STATE_KINDS)
    return (WeightPart.ATTENTION, attention), (WeightPart.REPLICATED, replicated)


def _latent_values(shape: ModelShape, fields: Mapping[str, Json], heads: int) -> tuple[int, int]:
    """Return what one MLA layer splits over ranks and what every rank holds whole."""
    nope = count(fields, "qk_nope_head_dim") or 0
    query = heads * (nope + shape.rope_values)
    rank = count(fields, "q_lora_rank") or 0
    value = shape.row.value_dim
    up = shape.latent_values * heads * (nope + value)
    # The up-projection is kept a second time, absorbed into the query and output side.
    split = (rank or shape.hidden) * query + 2 * up + heads * value * shape.hidden
    whole = shape.hidden * (rank + shape.latent_values + shape.rope_values)
    if shape.index_values:
        index_heads = count(fields, "index_n_heads") or 0
        whole += rank * index_heads * shape.index_values
        whole += shape.hidden * (shape.index_values + index_heads)
    return split, whole


def _feed_forward(
    shape: ModelShape, fields: Mapping[str, Json]
) -> tuple[tuple[WeightPart, int], ...]:
    width, inner = shape.hidden, count(fields, "intermediate_size") or 0
    experts = next(
        (n for name in _EXPERT_NAMES if (n := count(fields, name))),
        0,
    )
    layers = len(shape.layers)
    if not experts:
        return ((WeightPart.DENSE, 3 * width * inner * layers),)
    sparse = _sparse_layers(fields, layers)
    own = count(fields, "moe_intermediate_size") or inner
    shared = count(fields, "shared_expert_intermediate_size") or 0
    shared = shared or (count(fields, "n_shared_experts") or 0) * own
    return (
        (WeightPart.EXPERTS, 3 * width * own * experts * sparse),
        (WeightPart.REPLICATED, width * experts * sparse),
        (WeightPart.DENSE, 3 * width * (shared * sparse + inner * (layers - sparse))),
    )


_EXPERT_NAMES = ("n_routed_experts", "num_experts", "num_local_experts")


def _sparse_layers(fields: Mapping[str, Json], layers: int) -> int:
    dense = set(range(count(fields, "first_k_dense_replace") or 0))
    dense |= {index for index in as_list(fields.get("mlp_only_layers")) if isinstance(index, int)}
    step = count(fields, "decoder_sparse_step") or count(fields, "moe_layer_freq") or 1
    return sum(i not in dense and (step == 1 or (i + 1) % step == 0) for i in range(layers))


def _is_tied(config: Mapping[str, Json], fields: Mapping[str, Json]) -> bool:
    tied = fields.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return tied is True


def _quantization_config(config: Mapping[str, Json]) -> Mapping[str, Json]:
    inner = text_config(config)
    return as_mapping(config.get("quantization_config") or inner.get("quantization_config"))


def _quantization(config: Mapping[str, Json]) -> _Quantization:
    # float32 checkpoints are loaded in 16 bits unless --dtype says otherwise.
    quantized = _quantization_config(config)
    if not quantized:
        return _Quantization(2.0, 2.0, frozenset())
    kept = (*as_list(quantized.get("ignore")), *as_list(quantized.get("modules_to_not_convert")))
    ignored = " ".join(str(item) for item in kept)
    left = {part for part, words in _PART_WORDS.items() if any(w in ignored for w in words)}
    if str(quantized.get("quant_method")) == "mxfp4":
        left |= {WeightPart.ATTENTION, WeightPart.DENSE}
    return _Quantization(_bits(quantized) / 8, 2.0, frozenset(left))


def _bits(quantized: Mapping[str, Json]) -> float:
    """Return the bits of one quantized value with its share of the scale."""
    groups = as_mapping(quantized.get("config_groups"))
    weights = as_mapping(as_mapping(next(iter(groups.values()), {})).get("weights"))
    bits = count(weights, "num_bits") or count(quantized, "bits")
    if bits:
        group = count(weights, "group_size") or count(quantized, "group_size")
        return bits + (16 / group if group else 0)
    return _BITS.get(str(quantized.get("quant_method")), 8.0)
