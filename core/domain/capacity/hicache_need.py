"""How much host memory HiCache takes, and whether the host has it.

Pure. HiCache keeps prefixes that were evicted from the GPU: it saves prefill where prompts share
prefixes and is never decode capacity.

Source: HostKVCache.__init__, mem_cache/pool_host/base.py, and
mem_cache/hicache_auto_size.py, 0.5.23.
"""

from dataclasses import dataclass

from kvctl.core.domain.presets.serving_flags import ServingFlags
from kvctl.core.domain.units import GIB
from kvctl.core.domain.versions import is_at_least

_DEFAULT_RATIO = 2.0
_DECIMAL_GB = 10**9
KEPT_FREE_BYTES = 10 * GIB
"""SGLang leaves this much alone, in every version read."""


@dataclass(frozen=True, slots=True)
class HicacheNeed:
    """Pinned host memory of all ranks on this host."""

    rank_bytes: float
    ranks: int
    host_tokens: int
    """Tokens one rank keeps in host memory."""
    can_shrink: bool
    """SGLang takes less where the host has less (no size and no ratio given, 0.5.23)."""

    @property
    def total_bytes(self) -> float:
        """Of all ranks together."""
        return self.rank_bytes * self.ranks

    def fits(self, available_bytes: float | None) -> bool | None:
        """Return whether the host has it; None where its free memory is not known."""
        if available_bytes is None:
            return None
        return self.can_shrink or self.total_bytes <= available_bytes - KEPT_FREE_BYTES


def hicache_need(pool_tokens: int, cell_bytes: float, flags: ServingFlags) -> HicacheNeed | None:
    """Return what HiCache takes beside a pool, None where it is off."""
    if not flags.has_hicache:
        return None
    ranks = flags.layout.ranks_on_host
    if flags.hicache_gb > 0:
        size = flags.hicache_gb * _DECIMAL_GB
        return HicacheNeed(size, ranks, int(size // cell_bytes), can_shrink=False)
    ratio = _DEFAULT_RATIO if flags.hicache_ratio is None else flags.hicache_ratio
    tokens = int(pool_tokens * ratio)
    shrinks = flags.version is None or is_at_least(flags.version, (0, 5, 23))
    can_shrink = flags.hicache_ratio is None and shrinks
    return HicacheNeed(tokens * cell_bytes, ranks, tokens, can_shrink)
