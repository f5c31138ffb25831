"""Why a start or a server ended, out of its log: the first cause, advice by phase, the evidence.

The advice depends on the phase: a start without room for the KV pool needs a higher
mem-fraction-static, a running server that ran out of memory a lower one.
Source: failure paths of SGLang 0.4.0 to 0.5.23.
"""

import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from kvctl.core.domain.logs.failures import CONSEQUENCES, WARNINGS, WRAPPERS
from kvctl.core.domain.logs.lines import LogKind, LogRecord
from kvctl.core.domain.logs.stages import DISTRIBUTED, END, GRAPHS, PROCESS, WEIGHTS
from kvctl.core.domain.servers.server import Failure
from kvctl.core.domain.servers.start_advice import TEXT_CUT, Cause, saying_of

_GENERIC = "exception"
_EVIDENCE_LINES = 6


def cause_of(records: Sequence[LogRecord]) -> Cause | None:
    """Return the first cause among a launch's records, None where nothing failed."""
    failures = [(i, r) for i, r in enumerate(records) if r.kind is LogKind.FAILURE]
    found = _first_cause(records, failures)
    if found is None:
        return None
    index, record = found
    phase = _phase(records[:index])
    return Cause(_refined(record, phase), record, index, phase)


def failure_of(records: Sequence[LogRecord]) -> Failure | None:
    """Return why a launch ended, None where its log tells of no failure."""
    cause = cause_of(records)
    if cause is None:
        return None
    headline, advice = saying_of(cause, records)
    return Failure(
        headline=headline,
        advice=advice,
        evidence=_evidence(records, cause),
        stage=None if cause.phase == "run" else cause.phase,
        after_s=_after_s(records, cause),
    )


def silent_end(code: int | None, last_line: str | None, log_problem: str | None) -> Failure:
    """Return the card of a process that ended without a cause in its log.

    `code` is its exit status, negative for a signal, None where another was its parent;
    `log_problem` says why nothing more could be written to its log.
    """
    ended = _ending(code)
    evidence = (last_line,) if last_line else ()
    if log_problem is not None:
        full = ("free space there: without its log no cause can be told", "then start it again")
        return Failure(f"{log_problem}; the server {ended}", full, evidence, is_silent=True)
    guess = ": killed, by hand or for lack of memory" if code is None else ""
    told = f"The server {ended}; its log names no cause{guess}"
    return Failure(told, (), evidence, is_silent=True)


def _ending(code: int | None) -> str:
    if code is None:
        return "ended"
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL: by hand or for lack of memory)"
    with suppress(ValueError):
        if code < 0:
            return f"was killed ({signal.Signals(-code).name})"
    return f"ended (exit status {code})"


def _first_cause(
    records: Sequence[LogRecord], failures: Sequence[tuple[int, LogRecord]]
) -> tuple[int, LogRecord] | None:
    """Return the first failure by weight: a named class, an exception, a wrapper, a consequence.

    A warning counts only if something fatal follows it; alone it ended nothing.
    """
    kinds = {index: record.word_of("class") or "" for index, record in failures}
    is_fatal = any(kind not in WARNINGS for kind in kinds.values())
    if not is_fatal:
        return None
    secondary = {*CONSEQUENCES, *WRAPPERS, *WARNINGS, _GENERIC, "parent_gone"}
    weights: tuple[Callable[[str], bool], ...] = (
        lambda kind: kind not in secondary,
        lambda kind: kind == _GENERIC,
        lambda kind: kind == "parent_gone",
        lambda kind: kind in WRAPPERS,
        lambda kind: kind in CONSEQUENCES,
    )
    for is_wanted in weights:
        for index, record in failures:
            if is_wanted(kinds[index]) and not _is_survived(records, index, kinds[index]):
                return index, record
    return None


def _is_survived(records: Sequence[LogRecord], index: int, kind: str) -> bool:
    """Return whether a plain exception was followed by the ready line or by decoding."""
    if kind != _GENERIC:
        return False
    later = records[index + 1 :]
    return any(r.kind in (LogKind.READY, LogKind.DECODE, LogKind.PREFILL) for r in later)


def _phase(before: Sequence[LogRecord]) -> str:
    if any(record.kind is LogKind.READY for record in before):
        return "run"
    stages = [record for record in before if record.kind is LogKind.STAGE]
    if not stages:
        return PROCESS
    if any(r.word_of("stage") == GRAPHS for r in stages) and not _is_ended(stages, GRAPHS):
        return GRAPHS
    if any(r.word_of("stage") == WEIGHTS for r in stages) and not _is_ended(stages, WEIGHTS):
        return WEIGHTS
    last = stages[-1].word_of("stage") or PROCESS
    return PROCESS if last == DISTRIBUTED else last


def _is_ended(stages: Sequence[LogRecord], stage: str) -> bool:
    of_stage = [record for record in stages if record.word_of("stage") == stage]
    open_ranks: dict[str, bool] = {}
    for record in of_stage:
        open_ranks[record.rank] = record.word_of("edge") != END
    return not any(open_ranks.values())


def _refined(record: LogRecord, phase: str) -> str:
    kind = record.word_of("class") or _GENERIC
    if kind == "oom":
        return {"run": "oom_run", GRAPHS: "oom_graphs"}.get(phase, "oom_start")
    return kind


def _evidence(records: Sequence[LogRecord], cause: Cause) -> tuple[str, ...]:
    """Return the lines that show it, numbered: rank phases, the announcement, the cause itself."""
    chosen: list[LogRecord] = []
    if cause.kind == "slow_load":
        chosen += [r for r in records[: cause.index] if r.word_of("stage") == WEIGHTS]
    announced = [r for r in records[: cause.index] if r.word_of("class") in WRAPPERS]
    chosen += [*announced[-1:], cause.record]
    chosen += [r for r in records[cause.index + 1 :] if r.kind is LogKind.FAILURE][:2]
    return tuple(_numbered(record) for record in chosen[:_EVIDENCE_LINES])


def _numbered(record: LogRecord) -> str:
    number = "?" if record.number is None else str(record.number)
    return f"{number}  {record.text[:TEXT_CUT]}"


def _after_s(records: Sequence[LogRecord], cause: Cause) -> float | None:
    """Return the seconds from the first stamp to the failure's (or the next one after it)."""
    first = next((r.wall for r in records if r.wall is not None), None)
    last = next((r.wall for r in records[cause.index :] if r.wall is not None), None)
    return None if first is None or last is None else max(0.0, last - first)
