"""What to tell about a failure: one sentence and advice that fits its class and its phase."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvctl.core.domain.logs.lines import LogRecord
from kvctl.core.domain.logs.stages import END, WEIGHTS

TEXT_CUT = 300
"""Characters of a log line that are quoted."""
PAUSE_PATHS = ("/pause_generation", "/continue_generation")
"""Access lines that tell whether the engine was paused when it ended."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The first cause found in a log."""

    kind: str
    """Failure class, refined by phase: oom_start, oom_run, oom_graphs, port_in_use, …"""
    record: LogRecord
    index: int
    """Its place among the records."""
    phase: str
    """"run" after the ready line, else the start-up step: process, weights, …"""


Saying = tuple[str, tuple[str, ...]]


def _say_oom_start(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    now = cause.record.number_of("mem_fraction_static")
    told = f" (now {now:g})" if now is not None else ""
    if cause.record.word_of("class") == "oom":
        advice = (
            "make room: less on the GPU before the start, fewer weights per GPU (tp-size up)",
            f"or quantized weights; mem-fraction-static{told} cannot help while they do not fit",
        )
        return "GPU memory ran out while the server started", advice
    return "the weights leave no room for the KV pool", (
        f"raise mem-fraction-static{told}",
        "or put fewer weights on each GPU: tp-size up, or quantized weights",
        "check that nothing else holds memory on these GPUs",
    )


def _say_oom_run(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    tried = cause.record.number_of("tried_gib")
    told = f" (it tried to allocate {tried:g} GiB)" if tried is not None else ""
    return f"GPU memory ran out while it served{told}", (
        "lower mem-fraction-static: activations need more room beside the pool",
        "or lower the concurrency or chunked-prefill-size",
    )


def _say_oom_graphs(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    return "GPU memory ran out while graphs were captured", (
        "lower mem-fraction-static, or capture fewer batch sizes (cuda-graph-max-bs)",
    )


def _say_graph_capture(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    reason = _after_colon(cause.record.text, "failed: ")
    is_peer = "onnection" in reason or "peer" in reason.lower()
    advice: tuple[str, ...] = ("this is not a lack of memory",)
    if is_peer:
        advice += ("another rank ended first: look at the log of the other ranks and nodes",)
    return f"graph capture failed: {reason}", advice


def _say_slow_load(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    late = _unfinished_ranks(records[: cause.index])
    waited = _wait_s(records, cause)
    told = f" after {waited / 60:.0f} min" if waited else ""
    who = ", ".join(rank.removeprefix("TP") for rank in late) or "another"
    return f"rank {who} was still loading when the barrier ran out{told}", (
        "slow storage or a dead rank: not a lack of memory",
        "warm the page cache or copy the model to local disk, then start again",
    )


def _say_port(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    return "the port is already in use by another process", (
        "stop the server that holds it, or choose another port",
        "a ready line in this log came from that other server's answer",
    )


def _say_bad_flag(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    return f"a flag was not accepted: {_after_colon(cause.record.text, 'error: ')}", (
        "correct it in the preset; the installed version's flags: kvctl flags --search WORD",
    )


def _say_model_missing(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    return f"the model was not found: {_after_colon(cause.record.text, ': ')}", (
        "check model-path in the preset: a folder with config.json on this host",
    )


def _say_pool(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    return "the KV pool is too small for a single request", (
        "raise max-total-tokens or mem-fraction-static, or lower context-length",
    )


def _say_watchdog(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    timeout = cause.record.number_of("watchdog_timeout_s")
    told = f" of {timeout:g} s" if timeout is not None else ""
    paths = [r.word_of("path") for r in records[: cause.index]]
    asked = [path for path in paths if path in PAUSE_PATHS]
    paused = asked[-1:] == ["/pause_generation"]
    advice: tuple[str, ...] = ("look for the step it hung in: py-spy output or NCCL lines above",)
    if paused:
        advice = (
            "it was paused in place before: that leaves the watchdog armed",
            "pause with retract, or raise watchdog-timeout",
        )
    return f"the scheduler made no step within its watchdog{told}", advice


def _say_nccl(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    rank = cause.record.rank or "a rank"
    return f"communication between GPUs failed, first seen on {rank}", (
        "a rank that ended first is the usual cause: look at the earliest line of every rank",
    )


def _say_peer_lost(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    teller = next((r.rank for r in reversed(records[: cause.index + 1]) if r.rank), "a rank")
    return f"a rank ended without a word: {teller} lost its connection to it", (
        "killed from outside, or by the kernel for memory: see dmesg and the host's memory",
    )


def _say_killed(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    return "a process of the server was killed from outside", (
        "the kernel's out-of-memory killer or an operator: see dmesg and the host's memory",
    )


def _say_host_memory(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    return "the host has too little memory for the host-RAM tier", (
        "lower hicache-ratio or hicache-size: it is taken once for every rank",
    )


def _say_parent_gone(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    return "the main process was killed while the server started", (
        "its children may live on: look for leftovers before the next start",
    )


def _say_sigquit(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    return "a process of the server failed; the log does not say why", (
        "the cause may stand in the log of another rank or node, or in dmesg",
    )


def _say_generic(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    text = _message(cause.record)
    where = "while it served" if cause.phase == "run" else "while it started"
    return f"the server failed {where}: {text[:TEXT_CUT]}", ()


_SAYINGS: dict[str, Callable[[Cause, Sequence[LogRecord]], Saying]] = {
    "oom_start": _say_oom_start,
    "oom_run": _say_oom_run,
    "oom_graphs": _say_oom_graphs,
    "graph_capture": _say_graph_capture,
    "slow_load": _say_slow_load,
    "port_in_use": _say_port,
    "bad_flag": _say_bad_flag,
    "model_missing": _say_model_missing,
    "pool_too_small": _say_pool,
    "watchdog": _say_watchdog,
    "nccl": _say_nccl,
    "peer_lost": _say_peer_lost,
    "killed": _say_killed,
    "host_memory": _say_host_memory,
    "parent_gone": _say_parent_gone,
    "sigquit": _say_sigquit,
    "pipe_closed": _say_sigquit,
}


def _unfinished_ranks(before: Sequence[LogRecord]) -> tuple[str, ...]:
    """Return the ranks that began to load and never ended it."""
    begun: dict[str, bool] = {}
    for record in before:
        if record.word_of("stage") == WEIGHTS and record.rank:
            begun[record.rank] = record.word_of("edge") == END
    return tuple(sorted(rank for rank, is_done in begun.items() if not is_done))


def _wait_s(records: Sequence[LogRecord], cause: Cause) -> float | None:
    """Return the seconds from the last rank that finished loading to the failure."""
    ended = [
        r.wall
        for r in records[: cause.index]
        if r.word_of("stage") == WEIGHTS and r.word_of("edge") == END and r.wall is not None
    ]
    after = [r.wall for r in records[cause.index :] if r.wall is not None]
    return after[0] - ended[-1] if ended and after else None


def _after_colon(text: str, mark: str) -> str:
    _, found, rest = text.partition(mark)
    return (rest if found else text).strip()[:TEXT_CUT]


def _message(record: LogRecord) -> str:
    if record.wall is None:
        return record.text
    return record.text.partition("] ")[2] or record.text


def saying_of(cause: Cause, records: Sequence[LogRecord]) -> Saying:
    """Return the headline and the advice for a cause, seen among its launch's records."""
    return _SAYINGS.get(cause.kind, _say_generic)(cause, records)
