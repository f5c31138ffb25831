"""How many bytes a model's weights take on one GPU, by what each tensor is and how it is split.

Pure: tensor names and sizes, or a total, go in. Weights after load are never known exactly before
a launch (repacking, padding, expert placement), so every answer has an error.

Source: parallel layers of the Llama, Qwen and DeepSeek model files, 0.5.10 and 0.5.23.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.presets.serving_flags import Layout


class WeightPart(StrEnum):
    """What a tensor is, as far as its split over ranks depends on it."""

    EXPERTS = "experts"
    ATTENTION = "attention"
    DENSE = "dense"
    """MLPs and shared experts."""
    EMBEDDING = "embedding"
    HEAD = "head"
    REPLICATED = "replicated"
    """Norms, routers, MLA's down-projections, index projections: whole on every rank."""
    VISION = "vision"
    """Towers of other modalities: split or whole, by model and flag."""
    DRAFT = "draft"
    """Built-in draft layers: loaded for speculation only."""
    UNSORTED = "unsorted"
    """Only a total is known."""


class WeightSource(StrEnum):
    """Where the figures come from, best first."""

    HEADERS = "tensor headers"
    FILES = "file sizes"
    CONFIG = "config.json alone"


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights before they are split."""

    source: WeightSource
    parts: tuple[tuple[WeightPart, int], ...]
    """Bytes of each part."""
    is_quantized: bool = False

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(size for _, size in self.parts)

    def of(self, *parts: WeightPart) -> int:
        """Return the bytes of some parts."""
        return sum(size for part, size in self.parts if part in parts)


@dataclass(frozen=True, slots=True)
class RankWeights:
    """What one GPU holds, and how wrong that may be."""

    expected_bytes: float
    error_bytes: float


_ERRORS = {WeightSource.HEADERS: 0.003, WeightSource.FILES: 0.02, WeightSource.CONFIG: 0.005}
_QUANTIZED_ERRORS = {
    WeightSource.HEADERS: 0.01,
    WeightSource.FILES: 0.03,
    WeightSource.CONFIG: 0.02,
}
"""Share of a GPU's weights; assumed, not measured, for quantized models (repacking)."""
_UNSORTED_COPIES = 0.03
"""Share that several ranks hold again, where the parts are not known; assumed."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_RULES: tuple[tuple[re.Pattern[str], WeightPart], ...] = tuple(
    (re.compile(pattern), part)
    for pattern, part in (
        (r"(?:^|\.)(?:mtp|nextn)\b", WeightPart.DRAFT),
        (r"vision|visual|audio|mm_projector|multi_modal", WeightPart.VISION),
        (r"\.experts\.|\.experts_|block_sparse_moe\.experts", WeightPart.EXPERTS),
        (r"(?:embed_tokens|\bwte|word_embeddings)\b", WeightPart.EMBEDDING),
        (r"lm_head\b|output_layer\b", WeightPart.HEAD),
        (r"norm|\.gate\.|\brouter\b|q_a_proj|kv_a_proj|\.indexer\.", WeightPart.REPLICATED),
        (r"attn|attention|mixer", WeightPart.ATTENTION),
    )
)


def part_of_tensor(name: str, layers: int) -> WeightPart:
    """Return what a checkpoint's tensor is; layers beyond the model's own are its draft.

    >>> part_of_tensor("model.layers.3.mlp.experts.7.up_proj.weight", 61).value
    'experts'
    """
    part = next((p for pattern, p in _RULES if pattern.search(name)), WeightPart.DENSE)
    layer = _LAYER.search(name)
    is_beyond = layer is not None and int(layer[1]) >= layers
    return WeightPart.DRAFT if is_beyond and part is not WeightPart.VISION else part


def sorted_weights(sizes: Iterable[tuple[str, int]], layers: int, *, is_quantized: bool) -> Weights:
    """Return the weights of tensors by name and bytes."""
    totals = dict.fromkeys(WeightPart, 0)
    for name, size in sizes:
        totals[part_of_tensor(name, layers)] += size
    found = tuple((part, size) for part, size in totals.items() if size)
    return Weights(WeightSource.HEADERS, found, is_quantized)


def unsorted_weights(total_bytes: int, *, is_quantized: bool) -> Weights:
    """Return weights of which only the size of the files is known."""
    return Weights(
        WeightSource.FILES, ((WeightPart.UNSORTED, total_bytes),), is_quantized=is_quantized
    )


def rank_weights(weights: Weights, layout: Layout, *, with_draft: bool = False) -> RankWeights:
    """Return what the fullest GPU holds; speculation adds the built-in draft."""
    split = layout.tp * layout.pp
    held = weights.of(WeightPart.EXPERTS, WeightPart.DENSE) / split
    held += weights.of(WeightPart.ATTENTION) / (layout.attn_tp * layout.pp)
    held += weights.of(WeightPart.REPLICATED) / layout.pp
    held += _ends(weights, layout)
    unsorted = weights.of(WeightPart.UNSORTED) / split
    held += unsorted * (1 + (_UNSORTED_COPIES if layout.tp > 1 else 0))
    if with_draft:
        held += weights.of(WeightPart.DRAFT) / layout.tp
    vision = weights.of(WeightPart.VISION)
    # Split in some models, whole in others: the middle, and half the gap as error.
    held += vision * (1 + 1 / layout.tp) / 2
    errors = _QUANTIZED_ERRORS if weights.is_quantized else _ERRORS
    error = held * errors[weights.source] + vision * (1 - 1 / layout.tp) / 2
    if layout.tp > 1:
        error += unsorted * _UNSORTED_COPIES
    return RankWeights(held, error)


def _ends(weights: Weights, layout: Layout) -> float:
    """Return embedding and head on the stage that holds more of them."""
    embedding = weights.of(WeightPart.EMBEDDING)
    if layout.attn_dp == 1:
        embedding //= layout.tp
    head = weights.of(WeightPart.HEAD) / layout.tp
    return max(embedding, head) if layout.pp > 1 else embedding + head
