"""One SGLang log line to a typed record, by key/value scanning, never by field position.

Source: line shapes of SGLang 0.4.0 to 0.5.23. A line is only recognised where its message begins
with SGLang's own words, so that logged prompts cannot pose as figures; what is not recognised is
`UNRECOGNISED` and no number is invented for it.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

from kvctl.core.domain.logs.failures import failure_in
from kvctl.core.domain.logs.lines import LogKind, LogRecord
from kvctl.core.domain.logs.numbers import Fields, numbers_of, plain_number
from kvctl.core.domain.logs.stages import stage_in
from kvctl.core.domain.logs.text import clean_line

_STAMP = re.compile(
    r"\[(?P<minute>\d{4}-\d\d-\d\d \d\d:\d\d):(?P<second>\d\d(?:\.\d{1,6})?)"
    r"(?P<ranks>(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+)*)\] ?"
)
_OLD_PREFIX = re.compile(r"\[gpu_id=\d+\] ")
_BATCH = re.compile(r"(Decode|Prefill) batch(?: \[\d+\])?[.,] ")
_ACCESS = re.compile(r'INFO: +\S+ - "([A-Z]+) (\S+) HTTP/[\d.]+" (\d{3})')
_RETRACTION = re.compile(
    r"(?:Decode out of memory happened\.|KV cache pool is full\. Retract requests\.)"
    r"|(?P<test>Testing retraction\.)"
)
_RATIO = re.compile(r"#new_token_ratio: ([\d.]+) -> ([\d.]+)")
_LOST = re.compile(r"retract_decode: aborted (?:last )?request ([^\s:]+)")
_REMAINING = re.compile(r"Gracefully exiting\.\.\. Remaining number of requests (\d+)")
_READY = "The server is fired up and ready to roll!"

_DECODE = {
    "#running-req": "running",
    "#token": "tokens",
    "#full token": "full_tokens",
    "#swa token": "swa_tokens",
    "mamba num": "mamba_slots",
    "accept len": "accept_length",
    "accept rate": "accept_ratio",
    "gen throughput (token/s)": "generation_tokens_per_s",
    "#queue-req": "queued",
    "pre-allocated usage": "preallocated_usage",
    "#retracted-req": "retracted_waiting",
    "#prealloc-req": "preallocating",
    "#transfer-req": "transferring",
}
_PREFILL = {
    "#new-seq": "new_seq",
    "#new-token": "new_tokens",
    "#cached-token": "cached_tokens",
    "#running-req": "running",
    "#queue-req": "queued",
    "#pending-token": "pending_tokens",
    "cache hit rate": "cache_hit_ratio",
    "input throughput (token/s)": "input_tokens_per_s",
    "#bootstrap-req": "bootstrapping",
    "#inflight-req": "in_flight",
}
_RETRACT = {
    "#retracted_reqs": "retracted",
    "#aborted_retracted_reqs": "lost_requests",
    "#new_tokens_gained": "tokens_gained",
    "#mamba_num_gained": "mamba_slots_gained",
}
_POOLS = {
    "token usage": "",
    "full token usage": "full",
    "swa token usage": "swa",
    "mamba usage": "mamba",
    "gpu token usage": "gpu",
}
_GRAPH = re.compile(r"(?:cuda|cpu|npu|musa|\w+) graph\Z")


def parse_line(text: str, number: int | None = None) -> LogRecord:
    """Return the record of one line (the last state of a progress bar); never raises.

    >>> record = parse_line("[2026-11-02 09:30:00 TP0] Decode batch, #running-req: 96, "
    ...                     "token usage: 0.48, gen throughput (token/s): 0.00, #queue-req: 7")
    >>> record.kind.value, record.rank, record.number_of("generation_tokens_per_s")
    ('decode', 'TP0', 0.0)
    """
    shown = clean_line(text)
    stamp = _STAMP.search(shown)
    if stamp is None:
        message, wall, rank = _OLD_PREFIX.sub("", shown, count=1), None, ""
    else:
        message, rank = shown[stamp.end() :], stamp["ranks"].strip()
        wall = _wall(stamp["minute"], stamp["second"])
    kind, fields, words = _recognise(message)
    return LogRecord(kind, shown, number, wall, rank, fields, words)


_Found = tuple[LogKind, Fields, tuple[tuple[str, str], ...]]
_NOTHING: _Found = (LogKind.UNRECOGNISED, (), ())


def _recognise(message: str) -> _Found:
    """Return kind, numbers and words of a message; the frequent kinds are tried first."""
    if batch := _BATCH.match(message):
        is_decode = batch[1] == "Decode"
        return _batch(message[batch.end() :], is_decode=is_decode)
    if message.startswith("INFO: "):
        if access := _ACCESS.match(message):
            status = (("status", float(access[3])),)
            return LogKind.ACCESS, status, (("method", access[1]), ("path", access[2]))
    elif retraction := _RETRACTION.match(message):
        return _retraction(message, is_test=retraction["test"] is not None)
    return _rare(message)


def _rare(message: str) -> _Found:
    if message.startswith(_READY):
        return LogKind.READY, (), ()
    if message.startswith("SIGTERM received."):
        return LogKind.DRAINING, (), ()
    if remaining := _REMAINING.match(message):
        return LogKind.DRAINING, (("remaining", float(remaining[1])),), ()
    if lost := _LOST.match(message):
        return LogKind.LOST_WORK, (("lost_requests", 1.0),), (("rid", lost[1]),)
    if stage := stage_in(message):
        words = (("stage", stage.stage), ("edge", stage.edge))
        return LogKind.STAGE, stage.fields, words
    if failure := failure_in(message):
        return LogKind.FAILURE, failure.fields, (("class", failure.kind),)
    return _NOTHING


def _batch(message: str, *, is_decode: bool) -> _Found:
    pairs = _pairs(message)
    found = dict(numbers_of(pairs, _DECODE if is_decode else _PREFILL))
    needed = "running" if is_decode else "new_tokens"
    if needed not in found:
        return _NOTHING
    if "tokens" not in found and "full_tokens" in found:
        found["tokens"] = found["full_tokens"]
    graph = next((value for key, value in pairs.items() if _GRAPH.match(key)), None)
    if graph in ("True", "False"):
        found["graph"] = float(graph == "True")
    usage, pool = _worst_pool(pairs)
    if usage is not None:
        found["token_usage"] = usage
    kind = LogKind.DECODE if is_decode else LogKind.PREFILL
    return kind, tuple(found.items()), (("pool", pool),) if pool else ()


def _worst_pool(pairs: Mapping[str, str]) -> tuple[float | None, str]:
    """Return the highest usage and its pool; the pool is "" where the model has one only."""
    usages = {
        pool: value
        for key, pool in _POOLS.items()
        if (value := plain_number(pairs.get(key, ""))) is not None
    }
    if not usages:
        return None, ""
    pool = max(usages, key=lambda name: usages[name])
    return usages[pool], pool


def _retraction(message: str, *, is_test: bool) -> _Found:
    found = numbers_of(_pairs(message[message.find("#") :]), _RETRACT)
    if is_test:
        # A test retraction is the operator's own experiment: never in the count of real ones.
        renamed = tuple((f"test_{name}", value) for name, value in found)
        return LogKind.RETRACTION, renamed, (("test", "yes"),)
    if ratio := _RATIO.search(message):
        before, after = plain_number(ratio[1]), plain_number(ratio[2])
        if before is not None and after is not None:
            found += (("new_token_ratio_from", before), ("new_token_ratio_to", after))
    return (LogKind.RETRACTION, found, ()) if found else _NOTHING


def _pairs(message: str) -> dict[str, str]:
    """Return "key: value" pieces; the first of two equal keys counts."""
    pairs: dict[str, str] = {}
    for piece in message.split(", "):
        key, colon, value = piece.partition(": ")
        if colon:
            pairs.setdefault(key, value.rstrip(" ,"))
    return pairs


def _wall(minute: str, second: str) -> float | None:
    whole = _minute_wall(minute)
    return None if whole is None else whole + float(second)


@lru_cache(maxsize=64)
def _minute_wall(minute: str) -> float | None:
    try:
        return datetime.strptime(minute, "%Y-%m-%d %H:%M").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
