"""The largest number of requests that SGLang lets run at once, from pool, context and flag.

Pure.

Source: resolve_max_num_reqs, mem_cache/kv_cache_configurator.py, 0.5.23; seen on an
H200, 0.5.17: 2,488 for 159,277 tokens at a context of 32,768.
"""

from kvctl.core.domain.capacity.state_pool import requests_of_slots
from kvctl.core.domain.presets.serving_flags import ServingFlags
from kvctl.core.domain.versions import is_at_least

_SHARE = 512
_LEAST, _MOST = 2048, 4096


def max_running(
    pool_tokens: int, context_tokens: int, flags: ServingFlags, slots: int | None = None
) -> int:
    """Return max_running_requests of one pool (one DP rank).

    `slots` are the request states of a hybrid model; None for others.
    """
    estimate = min(max(int(pool_tokens / max(1, context_tokens) * _SHARE), _LEAST), _MOST)
    half = pool_tokens // 2
    if flags.max_running is None:
        running = min(estimate, half)
    else:
        asked = max(1, flags.max_running // flags.layout.pools)
        is_old = flags.version is not None and not is_at_least(flags.version, (0, 5, 11))
        running = min(asked, estimate if is_old else half)
    return running if slots is None else min(running, requests_of_slots(slots, flags))
