"""GPU memory of the simulated host: what a server's flags make of it.

Eight devices of 97,887 MiB hold an MLA model whose KV cache costs 70,272 bytes a token in bf16
(576 values in 61 layers). Weights and the free memory before loading follow from two published
pools: 159,277 tokens at 0.88 in bf16 and 376,029 at 0.90 in fp8. The same two figures then give
116 K at 0.85 and the published headroom after graph capture.

Source: SGLang 0.5.23 mem_cache/kv_cache_configurator.py, arg_groups/memory_hook.py.
"""

from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20
DEVICES = 8
DEVICE_NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
DEVICE_MIB = 97_887
IDLE_MIB = 4
LEFTOVER_MIB = 93_699
"""What a scheduler that is left behind holds."""
KV_VALUES_PER_TOKEN = 576 * 61
CONTEXT_GIB = 1.556
"""CUDA context, NCCL and workspace, taken before the weights are loaded."""
WEIGHTS_GIB = 578.6263
"""Weights over all ranks."""
GRAPH_GIB = {1: 5.88, 2: 5.81}
"""Graphs and activations after the pool is allocated, by KV bytes a value."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """How one rank's GPU memory is used, GiB, and the pool that fits."""

    total: float
    before_load: float
    """Free before the weights are loaded."""
    weights: float
    kv_cache: float
    graphs: float
    pool_tokens: int
    """max_total_num_tokens; 0 or less means that the server cannot start."""

    @property
    def after_load(self) -> float:
        """Return what is free after the weights, GiB."""
        return self.before_load - self.weights

    @property
    def after_pool(self) -> float:
        """Return what is free after the KV pool, GiB."""
        return self.after_load - self.kv_cache

    @property
    def after_graphs(self) -> float:
        """Return what is free once the server is ready, GiB."""
        return self.after_pool - self.graphs

    def used_bytes(self, free_gib: float) -> int:
        """Return the bytes a rank holds while that much is free."""
        return int((self.total - free_gib) * GIB) - IDLE_MIB * MIB


def value_bytes(kv_cache_dtype: str) -> int:
    """Return the bytes of one KV value for a kv_cache_dtype."""
    return 1 if kv_cache_dtype.startswith("fp8") else 2


def default_fraction(ranks: int) -> float:
    """Return the mem_fraction_static that SGLang picks for these devices."""
    reserved = 512 + 1.5 * 8192 + ranks / 8 * 1024 + 2 * (512 if ranks >= 4 else 256) + 1536
    return round((DEVICE_MIB - reserved) / DEVICE_MIB, 3)


def plan_rank(
    fraction: float, kv_cache_dtype: str, ranks: int, cap_tokens: int | None, taken_bytes: int = 0
) -> RankMemory:
    """Return the memory of a rank, `taken_bytes` of whose device others already hold."""
    width = value_bytes(kv_cache_dtype)
    total = DEVICE_MIB / 1024
    before = total - CONTEXT_GIB - taken_bytes / GIB
    weights = WEIGHTS_GIB / ranks
    rest = before * fraction - weights
    tokens = int(rest * GIB // (KV_VALUES_PER_TOKEN * width))
    if cap_tokens is not None:
        tokens = min(tokens, cap_tokens)
    kv_cache = max(0, tokens) * KV_VALUES_PER_TOKEN * width / GIB
    return RankMemory(total, before, weights, kv_cache, GRAPH_GIB[width], tokens)
