"""The mem-fraction-static that SGLang chooses where none is given, and what it reserves for what.

Pure. Multimodal models and a few attention set-ups get less in a way that hangs on parts of the
model not read here: the answer then names that as uncertain.

Source: _handle_gpu_memory_settings in server_args.py (0.5.10) and
arg_groups/memory_hook.py (0.5.23); confirmed on an H200, 0.5.17: 0.903.
"""

from dataclasses import dataclass

from kvctl.core.domain.capacity.model_shape import AttentionKind, ModelShape
from kvctl.core.domain.presets.serving_flags import Layout, ServingFlags
from kvctl.core.domain.versions import is_at_least

_KIB = 1024
_UNKNOWN_MEMORY = (4096, 160, 160)
_TIERS: tuple[tuple[int, int, int, int], ...] = (
    (20 * _KIB, 2048, 8, 8),
    (35 * _KIB, 4096, 48, 160),
    (60 * _KIB, 4096, 32, 160),
    (160 * _KIB, 8192, 256, 512),
)
"""Below so many MiB: chunked prefill, largest decode graph for tp below 4, and from 4 on."""
_OLD_SMALL_TIER = (2048, 24, 80)
_LARGEST_TIER = (16384, 512, 512)
_LARGE_GPU_MIB = 60 * _KIB
_LARGE_GPU_RESERVE_MIB = 10 * _KIB
_VISION_FACTOR = (0.76, 1.0)
"""What a multimodal model multiplies the fraction by, lowest and highest."""


@dataclass(frozen=True, slots=True)
class MemFraction:
    """A fraction of the memory that is free before the weights load."""

    low: float
    expected: float
    high: float
    is_chosen: bool
    """By SGLang; False: given by a flag."""


def mem_fraction(shape: ModelShape, flags: ServingFlags, total_mib: float | None) -> MemFraction:
    """Return the fraction of a launch on devices of `total_mib` (as nvidia-smi reports it)."""
    if flags.mem_fraction is not None:
        given = flags.mem_fraction
        return MemFraction(given, given, given, is_chosen=False)
    chosen = _chosen(shape, flags, total_mib)
    if not shape.is_multimodal:
        return MemFraction(chosen, chosen, chosen, is_chosen=True)
    low, high = (chosen * factor for factor in _VISION_FACTOR)
    return MemFraction(low, chosen * 0.95, high, is_chosen=True)


def chunked_prefill(flags: ServingFlags, total_mib: float | None) -> int:
    """Return the chunked prefill size of a launch, -1 where it is off."""
    return flags.chunked_prefill or _tier(flags, total_mib)[0]


def _chosen(shape: ModelShape, flags: ServingFlags, total_mib: float | None) -> float:
    is_new = flags.version is None or is_at_least(flags.version, (0, 5, 11))
    if total_mib is None:
        return 0.95 if is_new else 0.88
    if flags.version is not None and not is_at_least(flags.version, (0, 5, 3)):
        return _old(flags.layout, total_mib)
    reserved = _reserved_mib(shape, flags, total_mib)
    if total_mib > _LARGE_GPU_MIB:
        reserved = max(reserved, _LARGE_GPU_RESERVE_MIB)
    if flags.speculative is not None and not is_new:
        reserved += {"STANDALONE": 6, "NGRAM": 0}.get(flags.speculative, 4) * _KIB
    if dict(flags.weight_flags).get("moe-a2a-backend") == "deepep" and is_new:
        reserved += 2 * _KIB
    return round((total_mib - reserved) / total_mib, 3)


def _reserved_mib(shape: ModelShape, flags: ServingFlags, total_mib: float) -> float:
    layout = flags.layout
    chunk, small_batch, large_batch = _tier(flags, total_mib)
    chunk = flags.chunked_prefill or chunk
    batch = flags.graph_max_batch or (small_batch if layout.tp < 4 else large_batch)
    if flags.graph_max_batch is None and flags.max_running is not None:
        batch = min(batch, flags.max_running)
    tokens = chunk if chunk > 0 else 16384
    reserved = 512 + 1.5 * max(tokens, 2048) + layout.tp * layout.pp / 8 * _KIB
    if flags.has_decode_graphs:
        reserved += 2 * batch
    if layout.attn_dp > 1:
        reserved += batch * layout.attn_dp * (4.5 if batch > 300 else 3)
    if flags.has_prefill_graphs and not flags.is_cpu:
        is_latent = shape.attention is AttentionKind.LATENT
        reserved += 1536 if is_latent else 8 * _prefill_buckets(chunk, flags.max_total_tokens)
    return reserved


def _tier(flags: ServingFlags, total_mib: float | None) -> tuple[int, int, int]:
    if total_mib is None:
        return _UNKNOWN_MEMORY
    for limit, *tier in _TIERS:
        if total_mib < limit:
            is_old = flags.version is not None and not is_at_least(flags.version, (0, 5, 11))
            if limit == 35 * _KIB and is_old:
                return _OLD_SMALL_TIER
            return tier[0], tier[1], tier[2]
    return _LARGEST_TIER


def _prefill_buckets(chunk: int, max_total_tokens: int | None) -> int:
    """Return how many prefill graphs are captured up to a number of tokens.

    Source: generate_prefill_cuda_graph_batch_sizes, arg_groups/cuda_graph_hook.py, 0.5.23; the
    recorded H200 captures 58 for 8,192.
    """
    largest = chunk if max_total_tokens is None else min(chunk, max_total_tokens)
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
    sizes = [size for step in steps for size in range(*step)]
    sizes += range(4608, largest + 1, 512)
    return sum(size <= largest for size in sizes)


def _old(layout: Layout, total_mib: float) -> float:
    """Return the choice of 0.5.2 and before (as of 0.5.2; 0.4 differs by up to 0.03)."""
    ranks = layout.tp * layout.pp
    if total_mib < 35 * _KIB:
        reserved = 2.8 + ranks / 10
    elif total_mib < 90 * _KIB:
        reserved = 9.5 + ranks / 2
    else:
        reserved = 12 + ranks / 2 if total_mib < 160 * _KIB else 32.0
    reserved += 4 if layout.attn_dp > 1 else 0
    return round(1 - reserved * _KIB / total_mib, 3)
