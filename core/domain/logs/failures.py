"""Failure lines of a server's log: the class of one line, without its context.

Source: failure lines of SGLang 0.4.0 to 0.5.23 and the text of torch, NCCL, uvicorn and argparse.
What a failure means as a whole (first cause, phase, advice) is judged in `startup_failure`.
"""

import re
from dataclasses import dataclass

from kvctl.core.domain.logs.numbers import Fields, first_number

CONSEQUENCES = frozenset({"sigquit", "pipe_closed"})
"""Classes that only tell that something else failed before."""
WRAPPERS = frozenset({"scheduler_exception", "process_exception", "crashed", "warmup_failed"})
"""Classes that announce a cause, which the next lines (or nothing) name."""
WARNINGS = frozenset({"watchdog_soft", "health_check", "memory_unbalanced", "memory_leak"})
"""Classes that a server can survive: a cause only where nothing else is found."""


@dataclass(frozen=True, slots=True)
class FailureLine:
    """What one failure line says."""

    kind: str
    """The class: oom, oom_start, oom_graphs, graph_capture, port_in_use, …"""
    fields: Fields = ()


_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("scheduler_exception", r"Scheduler hit an exception"),
        ("process_exception", r"(?:Detokenizer|Tokenizer)Manager hit an exception"),
        ("sigquit", r"Received sigquit from a child process|SIGQUIT received\."),
        ("watchdog_soft", r".*[Ww]atchdog timeout \(.*soft=True"),
        ("watchdog", r"(?:\w+ )?[Ww]atchdog timeout \(self\.watchdog_timeout="),
        ("killed", r"Subprocess \S+ \(pid=\d+\) crashed with exit code -9\b|Killed\Z"),
        ("killed", r"\w+: Rank \d+ scheduler died during initialization \(exit code: -9\)"),
        ("killed", r"Exit code: -9\Z"),
        ("crashed", r"Subprocess \S+ \(pid=\d+\) crashed with exit code"),
        ("crashed", r"(?:\w+: )?Rank \d+ scheduler (?:died|is dead)|Exit code: -?\d+\Z"),
        ("pipe_closed", r"EOFError\Z"),
        ("peer_lost", r"\w+: \[\S*gloo\S*\] (?:Connection (?:closed|reset) by peer|Socket closed)"),
        ("peer_lost", r"\w+: \[\S*gloo\S*\] (?:Read error|writev) .*: (?:Connection reset|Broken)"),
        ("oom_start", r"(?:[\w.]+: )?Not enough memory\. Please try to increase --mem-fraction"),
        ("oom_start", r"(?:[\w.]+: )?Loaded weights leave no GPU memory for the KV cache"),
        ("host_memory", r"(?:[\w.]+: )?Not enough host memory available"),
        ("oom_graphs", r"(?:\w+: )?Capture .*graph failed: .*out of memory"),
        ("graph_capture", r"(?:\w+: )?Capture .*graph failed: "),
        ("oom", r"(?:[\w.]+: )?(?:HIP|CUDA|NPU) out of memory|(?:[\w.]+\.)?OutOfMemoryError: "),
        ("oom", r"(?:\w+: )?Prefill out of memory"),
        ("slow_load", r"(?:\w+: )?TP rank \d+ could finish the model loading, but"),
        ("memory_unbalanced", r"(?:\w+: )?The memory capacity is unbalanced"),
        ("memory_leak", r"(?:[\w.]+: )?\w+ memory leak detected!"),
        ("pool_too_small", r"\w+: max_running_request is zero"),
        ("pool_too_small", r"(?:\w+: )?No space left for only one request"),
        ("port_in_use", r"ERROR: +\[Errno 98\]|(?:\w+: )?Port is already in use"),
        ("port_in_use", r"(?:OSError: )?\[Errno 98\]|.*EADDRINUSE"),
        ("port_in_use", r"(?:\w+: )?\S.* at \d+ is not available in \d+ seconds"),
        (
            "bad_flag",
            r"\S[^\[]*: error: (?:unrecognized|ambiguous|argument|the following|expected)",
        ),
        ("bad_flag", r"Invalid integer value: "),
        ("model_missing", r"\S*Error: (?:Repo id must be|Can't load|Incorrect path_or_model_id)"),
        ("model_missing", r"\S*Error: .*(?:is not a local folder|does not appear to have a file)"),
        ("model_missing", r"\S*(?:RepositoryNotFoundError|EntryNotFoundError)\b"),
        ("model_missing", r"FileNotFoundError: .*(?:config\.json|safetensors|tokenizer)"),
        ("parent_gone", r"BrokenPipeError: "),
        ("health_check", r"Health check failed\. Server couldn't get a response"),
        ("warmup_failed", r"Initialization failed\. "),
    )
)
_ANYWHERE: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("nccl", re.compile(r"NCCL error|\bnccl(?:Unhandled|System|Internal|Remote|Invalid)\w*")),
    ("nccl", re.compile(r"ProcessGroupNCCL.*(?:[Ww]atchdog|timeout|terminat)")),
    ("cuda", re.compile(r"illegal memory access|device-side assert")),
)
_HINTS = re.compile(
    r"error|Error|exception|Exception|fail|SIGQUIT|sigquit|atchdog|memory|Killed|Errno|nccl|NCCL"
    r"|EADDRINUSE|Port is|not available|Invalid integer|could finish|No space|max_running_request"
    r"|device-side|crashed|scheduler (?:died|is dead)|Exit code"
)
_QUOTED = re.compile(r"(?:Receive|Finish): obj=|HTTP/1")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: |\Z)")
_NUMBERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("mem_fraction_static", r"mem_fraction_static=([\d.]+)"),
        ("watchdog_timeout_s", r"self\.watchdog_timeout=([\d.]+)"),
        ("exit_code", r"(?:crashed with exit code|[Ee]xit code:) (-?\d+)"),
        ("tried_gib", r"Tried to allocate ([\d.]+) GiB"),
        ("free_gib", r"of which ([\d.]+) GiB is free"),
    )
)


def failure_in(message: str) -> FailureLine | None:
    """Return the class of a failure line, None where the message tells of none."""
    if not _HINTS.search(message) or _QUOTED.match(message):
        return None
    kind = _class_of(message)
    return None if kind is None else FailureLine(kind, _numbers(message))


def _class_of(message: str) -> str | None:
    for kind, pattern in _CLASSES:
        if pattern.match(message):
            return kind
    for kind, pattern in _ANYWHERE:
        if pattern.search(message):
            return kind
    return "exception" if _EXCEPTION.match(message) else None


def _numbers(message: str) -> Fields:
    found = ((name, first_number(pattern, message)) for name, pattern in _NUMBERS)
    return tuple((name, value) for name, value in found if value is not None)
