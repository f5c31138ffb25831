"""What a model's config.json says about its memory: layers, KV heads, latent ranks, state sizes.

Pure: the parsed JSON goes in. Nested configs of multimodal models are looked through. Only what
sizes the KV pool or the weights is kept; `model_layers` says which layers hold what.

Source: configs/model_config.py and configs/mamba_utils.py, SGLang 0.5.10 and 0.5.23.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.capacity.model_layers import LayerKind, indexed_layers, layer_kinds
from kvctl.core.domain.errors import UsageError
from kvctl.core.domain.jsonfields import Json, as_list, as_mapping, count, number, text

_NESTED = ("text_config", "llm_config", "language_config")
_MODALITIES = ("vision_config", "audio_config", "vision_tower_config")
_CONTEXT_NAMES = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
_DEFAULT_CONTEXT = 2048
_KV_HEAD_NAMES = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")


class ModelShapeUnknown(UsageError):
    """A config.json does not say what the KV pool of its model would need."""


class AttentionKind(StrEnum):
    """What a full-attention layer keeps for a token."""

    HEADS = "heads"
    """Keys and values of every KV head (MHA, GQA)."""
    LATENT = "latent"
    """One compressed row (MLA), the same on every TP rank."""


@dataclass(frozen=True, slots=True)
class HeadRow:
    """Keys and values of one layer and one token, before they are split over ranks."""

    kv_heads: int
    key_dim: int
    """Values of one head's key."""
    value_dim: int
    """Values of one head's value row; MiMo's and the like differ from its keys."""


@dataclass(frozen=True, slots=True)
class LinearState:
    """The fixed state that a linear-attention layer (mamba, GDN) keeps for one request.

    Source: Mamba2StateShape.create, configs/mamba_utils.py.
    """

    inner: int
    """Width of the mixer; for GDN value heads times their size."""
    groups: int
    """Key heads for GDN."""
    heads: int
    head_dim: int
    state: int
    kernel: int
    """Width of the short convolution."""
    value_bytes: int
    """Bytes of one value of the recurrent state: 4, or 2 where the config says bfloat16."""

    def bytes_per_request(self, ranks: int) -> int:
        """Return the bytes of one layer on one of `ranks` attention-TP ranks."""
        uneven = self.groups % ranks
        groups = self.groups + (ranks - self.groups if uneven else 0)
        conv = (self.inner + 2 * groups * self.state) // ranks * (self.kernel - 1)
        return conv * 2 + self.heads // ranks * self.head_dim * self.state * self.value_bytes


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The facts of one model that decide its memory."""

    architecture: str
    """First of `architectures`; "" where the config names none."""
    attention: AttentionKind
    layers: tuple[LayerKind, ...]
    """What each layer keeps, in order."""
    row: HeadRow
    """Of a full-attention layer; unused where attention is latent."""
    sliding_row: HeadRow
    window_tokens: int | None
    """Sliding window; None where the model has none."""
    latent_values: int
    """kv_lora_rank; 0 where attention is by heads."""
    rope_values: int
    """qk_rope_head_dim; 0 where attention is by heads."""
    index_values: int
    """index_head_dim of sparse attention (DeepSeek-V3.2); 0 without."""
    index_pool: int
    """Tokens that share one index row."""
    indexed: tuple[int, ...]
    """Layers that keep an index row."""
    state: LinearState | None
    """Of the linear-attention layers; None without any, or where their shape is not known."""
    nextn_layers: int
    """Layers of the built-in draft (num_nextn_predict_layers), loaded for speculation only."""
    hidden: int
    context_tokens: int
    is_multimodal: bool
    kv_dtype: str
    """What "auto" means for this checkpoint: "bf16", or "fp8_e4m3" where it carries KV scales."""

    def count(self, *kinds: LayerKind) -> int:
        """Return how many layers are of these kinds."""
        return sum(kind in kinds for kind in self.layers)


def text_config(config: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the language model's part of a config, the config itself where nothing is nested."""
    thinker = as_mapping(config.get("thinker_config"))
    outer = thinker or config
    nested = (as_mapping(outer.get(name)) for name in _NESTED)
    return next((part for part in nested if part), outer)


def parse_shape(config: Mapping[str, Json]) -> ModelShape:
    """Return the shape that a config.json describes.

    Raises:
        ModelShapeUnknown: The layer count, width or attention heads are missing.
    """
    inner = text_config(config)
    architecture = str(next(iter(as_list(config.get("architectures"))), ""))
    kinds = layer_kinds(architecture, inner)
    if not kinds:
        raise ModelShapeUnknown(
            "config.json names no layers (num_hidden_layers): the KV pool cannot be predicted; "
            "use the pool of an earlier launch"
        )
    latent = count(inner, "kv_lora_rank") or 0
    row = _head_row(inner, "")
    return ModelShape(
        architecture=architecture,
        attention=AttentionKind.LATENT if latent else AttentionKind.HEADS,
        layers=kinds,
        row=row,
        sliding_row=_head_row(inner, "swa_", row),
        window_tokens=_window(inner) if LayerKind.SLIDING in kinds else None,
        latent_values=latent,
        rope_values=(count(inner, "qk_rope_head_dim") or 0) if latent else 0,
        index_values=_index_values(inner),
        index_pool=count(inner, "index_kpool") or 1,
        indexed=indexed_layers(inner, kinds) if _index_values(inner) else (),
        state=_state(inner),
        nextn_layers=count(inner, "num_nextn_predict_layers") or 0,
        hidden=_needed(inner, "hidden_size"),
        context_tokens=_context(inner),
        is_multimodal=inner is not config or any(config.get(name) for name in _MODALITIES),
        kv_dtype=_auto_kv_dtype(config, inner),
    )


def _needed(fields: Mapping[str, Json], name: str) -> int:
    value = count(fields, name)
    if not value:
        raise ModelShapeUnknown(
            f"config.json has no {name}: the KV pool cannot be predicted; "
            "use the pool of an earlier launch"
        )
    return value


def _head_row(fields: Mapping[str, Json], prefix: str, base: HeadRow | None = None) -> HeadRow:
    """Return the row of full layers, or with a prefix that of sliding ones where it differs."""
    if base is not None:
        key = count(fields, f"{prefix}head_dim") or base.key_dim
        heads = count(fields, f"{prefix}num_key_value_heads") or base.kv_heads
        own = count(fields, f"{prefix}v_head_dim")
        return HeadRow(heads, key, own or (key if key != base.key_dim else base.value_dim))
    heads = _needed(fields, "num_attention_heads")
    key = count(fields, "head_dim") or _needed(fields, "hidden_size") // heads
    kv_heads = next((found for n in _KV_HEAD_NAMES if (found := count(fields, n))), heads)
    if fields.get("multi_query") is True:
        kv_heads = 1
    return HeadRow(kv_heads, key, count(fields, "v_head_dim") or key)


def _window(fields: Mapping[str, Json]) -> int | None:
    names = ("sliding_window", "sliding_window_size", "attention_chunk_size")
    return next((found for name in names if (found := count(fields, name))), None)


def _index_values(fields: Mapping[str, Json]) -> int:
    """Return index_head_dim where the model really uses its index (index_topk is set)."""
    return (count(fields, "index_head_dim") or 0) if count(fields, "index_topk") else 0


def _state(fields: Mapping[str, Json]) -> LinearState | None:
    value_bytes = 4 if (text(fields, "mamba_ssm_dtype") or "float32") == "float32" else 2
    if value_heads := count(fields, "linear_num_value_heads"):
        value_dim = _needed(fields, "linear_value_head_dim")
        return LinearState(
            inner=value_heads * value_dim,
            groups=_needed(fields, "linear_num_key_heads"),
            heads=value_heads,
            head_dim=value_dim,
            state=_needed(fields, "linear_key_head_dim"),
            kernel=count(fields, "linear_conv_kernel_dim") or 4,
            value_bytes=value_bytes,
        )
    heads = count(fields, "mamba_num_heads") or count(fields, "mamba_n_heads")
    head_dim = count(fields, "mamba_head_dim") or count(fields, "mamba_d_head")
    state = count(fields, "ssm_state_size") or count(fields, "mamba_d_state")
    if not heads or not head_dim or not state:
        return None
    return LinearState(
        inner=heads * head_dim,
        groups=count(fields, "n_groups") or count(fields, "mamba_n_groups") or 1,
        heads=heads,
        head_dim=head_dim,
        state=state,
        kernel=count(fields, "conv_kernel") or count(fields, "mamba_d_conv") or 4,
        value_bytes=value_bytes,
    )


def _context(fields: Mapping[str, Json]) -> int:
    """Return the context length as SGLang derives it: rope factors count unless it is given.

    Source: get_context_length, utils/hf_transformers/common.py, 0.5.23.
    """
    scaling = as_mapping(fields.get("rope_scaling"))
    factor = number(scaling, "factor") or 1.0
    if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
        factor = 1.0
    length = next((found for name in _CONTEXT_NAMES if (found := count(fields, name))), None)
    return _DEFAULT_CONTEXT if length is None else int(factor * length)


def _auto_kv_dtype(config: Mapping[str, Json], inner: Mapping[str, Json]) -> str:
    quantized = as_mapping(config.get("quantization_config") or inner.get("quantization_config"))
    algorithm = (text(quantized, "kv_cache_quant_algo") or "").upper()
    return "fp8_e4m3" if algorithm == "FP8" else "bf16"
