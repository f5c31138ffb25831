"""What the log told lately: the last decode line of every DP rank, prefills and retractions.

Only lines that arrive while the log is followed count; what was in the file before is history.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvctl.core.domain.loglines import LogKind, LogRecord

FRESH_S = 15.0
"""A decode line older than this tells nothing about now."""
PREFILL_WINDOW_S = 10.0
RETRACTION_WINDOW_S = 60.0
_BUCKET_S = 0.25
"""Events closer than this share an entry, which bounds the memory."""


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """The last decode line of one DP rank."""

    rank: str
    """"DP1", "" where the server has one."""
    at: float
    """Monotonic seconds when it was read."""
    previous_at: float | None
    """When the line before was read; this line's rate is the mean since then."""
    record: LogRecord


@dataclass(frozen=True, slots=True)
class Amount:
    """Something counted at a moment."""

    at: float
    count: float
    tokens: float | None = 0.0
    """None where a line did not tell."""


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The recent past of a followed log."""

    since: float | None = None
    """Monotonic seconds when following began."""
    decodes: tuple[DecodeLine, ...] = ()
    prefills: tuple[Amount, ...] = ()
    """Computed prompt tokens of the last seconds."""
    retractions: tuple[Amount, ...] = ()
    """Retracted requests of the last minute, with the tokens they lost."""
    retracted_total: int = 0
    """Retracted requests since following began."""
    lost_total: int = 0
    """Requests aborted for lack of KV since following began."""
    prefill_at: float | None = None
    decode_at: float | None = None
    """When the last line of each kind was read."""


def fold_records(state: LogWindow, records: Iterable[LogRecord], now: float) -> LogWindow:
    """Return the window after new records, read at `now`."""
    if state.since is None:
        state = replace(state, since=now)
    for record in records:
        if not record.is_backlog:
            state = _fold(state, record, now)
    return replace(
        state,
        prefills=_recent(state.prefills, now - PREFILL_WINDOW_S),
        retractions=_recent(state.retractions, now - RETRACTION_WINDOW_S),
    )


def fresh_decodes(state: LogWindow, now: float) -> tuple[DecodeLine, ...]:
    """Return the decode lines, one a DP rank, that are young enough to speak of now."""
    return tuple(line for line in state.decodes if now - line.at <= FRESH_S)


def dp_rank_of(record: LogRecord) -> str:
    """Return "DP1" of "DP1 PP0 TP0": lines of one DP rank's other ranks are copies."""
    return next((part for part in record.rank.split() if part.startswith("DP")), "")


def _fold(state: LogWindow, record: LogRecord, now: float) -> LogWindow:
    match record.kind:
        case LogKind.DECODE:
            return _fold_decode(state, record, now)
        case LogKind.PREFILL:
            amount = Amount(now, 1.0, record.number_of("new_tokens") or 0.0)
            return replace(state, prefills=_added(state.prefills, amount), prefill_at=now)
        case LogKind.RETRACTION:
            count = record.number_of("retracted") or 0.0
            amount = Amount(now, count, record.number_of("tokens_gained"))
            return replace(
                state,
                retractions=_added(state.retractions, amount) if count else state.retractions,
                retracted_total=state.retracted_total + int(count),
            )
        case LogKind.LOST_WORK:
            return replace(state, lost_total=state.lost_total + 1)
        case _:
            return state


def _fold_decode(state: LogWindow, record: LogRecord, now: float) -> LogWindow:
    rank = dp_rank_of(record)
    old = next((line for line in state.decodes if line.rank == rank), None)
    if old is not None and old.record.rank != record.rank and now - old.at <= FRESH_S:
        return state  # another pipeline stage of the same DP rank: a copy
    line = DecodeLine(rank, now, None if old is None else old.at, record)
    others = tuple(kept for kept in state.decodes if kept.rank != rank)
    return replace(state, decodes=(*others, line), decode_at=now)


def _added(amounts: tuple[Amount, ...], amount: Amount) -> tuple[Amount, ...]:
    if amounts and amount.at - amounts[-1].at < _BUCKET_S:
        last = amounts[-1]
        is_told = last.tokens is not None and amount.tokens is not None
        tokens = (last.tokens or 0.0) + (amount.tokens or 0.0) if is_told else None
        return (*amounts[:-1], Amount(last.at, last.count + amount.count, tokens))
    return (*amounts, amount)


def _recent(amounts: tuple[Amount, ...], since: float) -> tuple[Amount, ...]:
    return tuple(amount for amount in amounts if amount.at >= since)
