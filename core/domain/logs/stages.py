"""Start-up lines of a server's log: which stage begins, goes on or ends, and its numbers.

Source: start-up sequence of SGLang 0.4.0 to 0.5.23, CUDA and CPU.
"""

import re
from dataclasses import dataclass

from kvctl.core.domain.logs.numbers import Fields, first_number

PROCESS, DISTRIBUTED, WEIGHTS, KV_POOL, GRAPHS, WARMUP = (
    "process",
    "distributed",
    "weights",
    "kv_pool",
    "graphs",
    "warmup",
)
BEGIN, PROGRESS, END = "begin", "progress", "end"


@dataclass(frozen=True, slots=True)
class StageLine:
    """What one start-up line tells."""

    stage: str
    """process, distributed, weights, kv_pool, graphs or warmup."""
    edge: str
    """begin, progress or end."""
    fields: Fields = ()


_EDGES: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), stage, edge)
    for pattern, stage, edge in (
        (r"server_args=", PROCESS, BEGIN),
        (r"Init (?:torch distributed|parallel) begin", DISTRIBUTED, BEGIN),
        (r"Init (?:torch distributed|parallel) ends?\b", DISTRIBUTED, END),
        (r"Load weight begin", WEIGHTS, BEGIN),
        (r"Load weight end", WEIGHTS, END),
        (r"KV Cache is allocated|KV Cache VA upper bound", KV_POOL, BEGIN),
        (r"Mamba Cache is allocated|Use sliding window memory pool", KV_POOL, PROGRESS),
        (r"Memory pool end", KV_POOL, END),
        (r"Post-capture KV sizing", KV_POOL, END),
        (r"Capture .*graph begin", GRAPHS, BEGIN),
        (r"Capture .*graph end", GRAPHS, END),
        (r"max_total_num_tokens=\d", KV_POOL, END),
        (r"INFO: +Uvicorn running on ", WARMUP, BEGIN),
    )
)
_STARTS = re.compile(
    r"server_args=|Init |Load weight|KV Cache|Mamba Cache|Use sliding|Memory pool end"
    r"|Post-capture|Capture |max_total_num_tokens=|INFO: +Uvicorn running"
)
_NUMBERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("mem_usage_gb", r"\bmem usage=(-?[\d.]+)"),
        ("available_gb", r"\b(?:avail mem|available_[a-z]+_mem)=(-?[\d.]+)"),
        ("elapsed_s", r"(?:\belapsed=|Time elapsed: )([\d.]+)"),
        ("pool_tokens", r"\bmax_total_num_tokens=(-?\d+)"),
        ("pool_tokens", r"#tokens: (-?\d+)"),
        ("full_pool_tokens", r"\bfull_layer_tokens=(\d+)"),
        ("swa_pool_tokens", r"\bswa_layer_tokens=(\d+)"),
        ("max_running", r"\bmax_running_requests=(\d+)"),
        ("context_tokens", r"\bcontext_len=(\d+)"),
        ("chunked_prefill_tokens", r"\bchunked_prefill_size=(-?\d+)"),
    )
)
_BAR = re.compile(r"(?P<label>\S.*?): +(?P<percent>\d+)%.*?\| *(?P<done>\d+)/(?P<total>\d+)\b")
_SHARDS = re.compile(r"(?:Loading|Multi-thread loading)\b.*\bshards", re.IGNORECASE)
_CAPTURING = re.compile(r"Capturing (?:batches|num tokens|.*graph)")


def stage_in(message: str) -> StageLine | None:
    """Return what a message tells of the start-up, None if it is not about that."""
    if _STARTS.match(message):
        for pattern, stage, edge in _EDGES:
            if pattern.match(message):
                return StageLine(stage, edge, _numbers(message))
    return _bar(message)


def _numbers(message: str) -> Fields:
    if message.startswith("server_args="):
        return ()  # every argument is in there, resolved or not: not facts of the start
    found: dict[str, float] = {}
    for name, pattern in _NUMBERS:
        value = first_number(pattern, message)
        if value is not None:
            found.setdefault(name, value)
    return tuple(found.items())


def _bar(message: str) -> StageLine | None:
    """Return the state of a progress bar of weight shards or graph captures."""
    bar = _BAR.match(message) if "%" in message else None
    if bar is None:
        return None
    done, total = float(bar["done"]), float(bar["total"])
    if total <= 0 or done > total:
        return None
    if _SHARDS.match(bar["label"]):
        shards = (("shards_done", done), ("shards_total", total))
        return StageLine(WEIGHTS, PROGRESS, (("progress_ratio", done / total), *shards))
    if _CAPTURING.match(bar["label"]):
        return StageLine(GRAPHS, PROGRESS, (("progress_ratio", done / total),))
    return None
