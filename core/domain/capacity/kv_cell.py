"""Bytes that one token of KV takes on one GPU: the cell size from which SGLang sizes its pool.

Pure. Where versions differ, the version decides; where a draft or a backend decides and is not
known, the assumption is named in `KvCell.notes`.

Source: _compute_cell_size and HybridSWAPoolConfigurator, model_executor/pool_configurator.py,
0.5.23; get_cell_size_per_token, 0.5.10; profile_max_num_token, 0.4.6.
"""

from dataclasses import dataclass

from kvctl.core.domain.capacity.model_layers import LayerKind
from kvctl.core.domain.capacity.model_shape import AttentionKind, HeadRow, ModelShape
from kvctl.core.domain.presets.serving_flags import Layout, ServingFlags
from kvctl.core.domain.versions import is_at_least

_KEEPS_ALL = (LayerKind.FULL, LayerKind.BOTH)
_BYTES = {"bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
_FP4 = ("fp4_e2m1", "nvfp4", "fp4_mx_block16")
_FP4_BLOCK = 16
_MXFP8_BLOCK = 32
_INDEX_BLOCK = 128
"""Values that share one 4-byte scale in sparse attention's quantized rows."""
_DRAFTED = ("EAGLE", "EAGLE3", "NEXTN", "MTP", "FROZEN_KV_MTP", "STANDALONE")


@dataclass(frozen=True, slots=True)
class KvCell:
    """What a token costs on the fullest GPU."""

    full_bytes: float
    """A token of the pool: its rows in all full-attention layers of one pipeline stage."""
    sliding_bytes: float
    """A token of the sliding pool; 0 without one."""
    notes: tuple[str, ...] = ()
    """Assumptions, one sentence each."""

    def cell_bytes(self, sliding_ratio: float) -> float:
        """Return the bytes per token of `max_total_num_tokens`, its share of the window pool in.

        A model of sliding layers alone has one pool and no ratio.
        """
        if not self.full_bytes:
            return self.sliding_bytes
        return self.full_bytes + sliding_ratio * self.sliding_bytes


def resolved_kv_dtype(shape: ModelShape, flags: ServingFlags) -> str:
    """Return the KV dtype a launch would use: "auto" is that of the checkpoint or of the model."""
    if flags.kv_dtype != "auto":
        return flags.kv_dtype
    if shape.kv_dtype == "bf16" and flags.dtype in ("float32", "float"):
        return "float32"
    return shape.kv_dtype


def kv_cell(shape: ModelShape, flags: ServingFlags) -> KvCell:
    """Return what a token of a launch costs."""
    dtype = resolved_kv_dtype(shape, flags)
    stages = _stages(shape, flags.layout.pp)
    cells = [_stage_cell(shape, stage, flags, dtype) for stage in stages]
    fullest = max(cells, key=lambda cell: cell.cell_bytes(flags.sliding_ratio))
    return _with_draft(fullest, shape, flags)


def kv_bytes_per_token(
    shape: ModelShape, layout: Layout, kv_dtype: str = "auto", version: str | None = None
) -> float:
    """Return the bytes of one token in all full-attention layers of one GPU's share.

    Example: Llama-3.1-8B in bf16 on one GPU: 32 layers x 8 heads x (128 + 128) x 2 = 131,072.
    """
    flags = ServingFlags(version=version, layout=layout, kv_dtype=kv_dtype)
    return kv_cell(shape, flags).full_bytes


def _stages(shape: ModelShape, pp: int) -> list[range]:
    """Return the layers of every pipeline stage; the last ones take what does not divide.

    Source: get_pp_indices, distributed/utils.py, 0.5.23.
    """
    each, rest = divmod(len(shape.layers), pp)
    sizes = [each + (rank >= pp - rest) for rank in range(pp)]
    return [range(sum(sizes[:rank]), sum(sizes[: rank + 1])) for rank in range(pp)]


def _stage_cell(shape: ModelShape, stage: range, flags: ServingFlags, dtype: str) -> KvCell:
    full = sum(shape.layers[i] in _KEEPS_ALL for i in stage)
    sliding = sum(shape.layers[i] is LayerKind.SLIDING for i in stage)
    if shape.attention is AttentionKind.LATENT:
        row, notes = _latent_row(shape, flags, dtype)
        is_shared = _scales_in_row(flags.version)
        indexed = sum(i in shape.indexed for i in stage) if is_shared else full
        index = _index_bytes(shape) * indexed
        return KvCell(row * full + index, row * sliding, notes)
    ranks = flags.layout.attn_tp
    return KvCell(
        _head_bytes(shape.row, ranks, dtype, flags) * full,
        _head_bytes(shape.sliding_row, ranks, dtype, flags) * sliding,
    )


def _head_bytes(row: HeadRow, ranks: int, dtype: str, flags: ServingFlags) -> float:
    heads = max(1, row.kv_heads // ranks)
    has_own_values = is_at_least(flags.version, (0, 5, 3)) or flags.version is None
    values = heads * (row.key_dim + (row.value_dim if has_own_values else row.key_dim))
    return values * value_bytes(dtype)


def _latent_row(
    shape: ModelShape, flags: ServingFlags, dtype: str
) -> tuple[float, tuple[str, ...]]:
    values = shape.latent_values + shape.rope_values
    if not shape.index_values or not dtype.startswith("fp8") or not _scales_in_row(flags.version):
        return values * value_bytes(dtype), ()
    scales = shape.latent_values // _INDEX_BLOCK * 4
    note = "fp8 rows of sparse attention carry scales and bf16 rope (not with trtllm kernels)"
    return shape.latent_values + scales + shape.rope_values * 2, (note,)


def _scales_in_row(version: str | None) -> bool:
    # 0.5.10 and 0.5.15 size the pool without the scales although its rows have them.
    return version is None or is_at_least(version, (0, 5, 16))


def _index_bytes(shape: ModelShape) -> int:
    values = shape.index_values + shape.index_values // _INDEX_BLOCK * 4
    return -(-values // shape.index_pool)


def value_bytes(dtype: str) -> float:
    """Return the bytes of one stored value, scales included; what is not known counts as 2."""
    if dtype in _FP4:
        return 0.5 + 1 / _FP4_BLOCK
    if dtype == "mxfp8":
        return 1 + 1 / _MXFP8_BLOCK
    return 1 if dtype.startswith(("fp8", "float8")) else _BYTES.get(dtype, 2)


def _with_draft(cell: KvCell, shape: ModelShape, flags: ServingFlags) -> KvCell:
    """Add a draft's rows, which share the pool from 0.5.14 on; before, they come out of the slack.

    Source: DefaultPoolConfigurator.__init__, 0.5.14 to 0.5.23.
    """
    is_shared = flags.version is None or is_at_least(flags.version, (0, 5, 14))
    if flags.speculative not in _DRAFTED or not is_shared:
        return cell
    layers = shape.nextn_layers if flags.draft_path is None else 1
    layers = max(1, layers)
    full = shape.count(*_KEEPS_ALL) // flags.layout.pp or 1
    note = f"the draft keeps {layers} layer{'s' if layers > 1 else ''} of KV in the same pool"
    grown = cell.full_bytes * (1 + layers / full)
    return KvCell(grown, cell.sliding_bytes, (*cell.notes, note))
