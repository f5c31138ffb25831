"""What the log told lately: the last decode line of every DP rank, prefills and retractions.

Only lines that arrive while the log is followed count; what was in the file before is history.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvctl.core.domain.logs.lines import LogKind, LogRecord

FRESH_S = 15.0
"""A decode line older than this tells nothing about now."""
RATE_WINDOW_S = 10.0
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
    record: LogRecord
    rates: tuple["Amount", ...] = ()
    """Of the lines of the last seconds: running requests, and running over rate."""


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
    lines: int = 0
    """Lines read since following began."""
    unrecognised: int = 0
    """Those among them whose shape is not known: nothing was guessed from them."""
    lost_total: int = 0
    """Requests aborted for lack of KV since following began."""
    prefill_at: float | None = None
    decode_at: float | None = None
    """When the last line of each kind was read."""


def fold_records(state: LogWindow, records: Iterable[LogRecord], now: float) -> LogWindow:
    """Return the window after new records, read at `now`."""
    if state.since is None:
        state = replace(state, since=now)
    lines, unknown = state.lines, state.unrecognised
    for record in records:
        if not record.is_backlog:
            state = _fold(state, record, now)
            lines += 1
            unknown += record.kind is LogKind.UNRECOGNISED
    return replace(
        state,
        lines=lines,
        unrecognised=unknown,
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
    line = DecodeLine(rank, now, record, () if old is None else _rates(old, record, now))
    others = tuple(kept for kept in state.decodes if kept.rank != rank)
    return replace(state, decodes=(*others, line), decode_at=now)


def rate_of(line: DecodeLine, now: float) -> float | None:
    """Return a rank's decode rate over the last seconds of lines, None where none tells.

    Formula: sum(running) / sum(running / rate): every line spans the same number of iterations,
    so slow lines took longer and weigh more. A line's rate counts from the line before; the first
    one, or the first after a long gap, spans idle time and is left out.
    """
    recent = [a for a in line.rates if now - a.at <= RATE_WINDOW_S] or list(line.rates[-1:])
    seconds = sum(amount.tokens or 0.0 for amount in recent)
    if not recent:
        return None
    return sum(amount.count for amount in recent) / seconds if seconds > 0 else 0.0


def _rates(old: DecodeLine, record: LogRecord, now: float) -> tuple[Amount, ...]:
    rate, running = record.number_of("generation_tokens_per_s"), record.number_of("running")
    if now - old.at > FRESH_S or rate is None or running is None:
        return ()
    kept = _recent(old.rates, now - FRESH_S)
    if rate <= 0 or running <= 0:
        return (*kept, Amount(now, 0.0, 0.0))
    return _added(kept, Amount(now, running, running / rate))


def _added(amounts: tuple[Amount, ...], amount: Amount) -> tuple[Amount, ...]:
    if amounts and amount.at - amounts[-1].at < _BUCKET_S:
        last = amounts[-1]
        is_told = last.tokens is not None and amount.tokens is not None
        tokens = (last.tokens or 0.0) + (amount.tokens or 0.0) if is_told else None
        return (*amounts[:-1], Amount(last.at, last.count + amount.count, tokens))
    return (*amounts, amount)


def _recent(amounts: tuple[Amount, ...], since: float) -> tuple[Amount, ...]:
    return tuple(amount for amount in amounts if amount.at >= since)
