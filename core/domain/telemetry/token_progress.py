"""Whether tokens are being made: the only proof that an engine works.

Progress is any growth of a token count: the live counters, the prefill counter of /v1/loads, the
tokens in the pool, or a new decode or prefill line of the log.
"""

from dataclasses import dataclass, replace

from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading


@dataclass(frozen=True, slots=True)
class TokenProgress:
    """When which kind of token was last seen to be made."""

    decode_at: float | None = None
    """Monotonic seconds; None: not seen yet."""
    prefill_at: float | None = None
    pool_at: float | None = None
    """When the tokens in the pool last grew: decode or prefill, not known which."""
    busy_since: float | None = None
    """Since when requests run or wait; None: none do, or not known."""
    decoded: float | None = None
    prefilled: float | None = None
    used: float | None = None
    prefilled_by_loads: float | None = None

    @property
    def progress_at(self) -> float | None:
        """Return when any token was last seen to be made."""
        moments = (self.decode_at, self.prefill_at, self.pool_at)
        known = [at for at in moments if at is not None]
        return max(known) if known else None


def progress_of_loads(state: TokenProgress, reading: LoadsReading, now: float) -> TokenProgress:
    """Return the progress after an answer with counts."""
    used = _sum([rank.used_tokens for rank in reading.ranks])
    prefilled = _sum([rank.prefilled_tokens for rank in reading.ranks])
    work = _sum([rank.running for rank in reading.ranks], [rank.queued for rank in reading.ranks])
    has_prefilled = _has_grown(state.prefilled_by_loads, prefilled)
    return replace(
        state,
        prefill_at=now if has_prefilled else state.prefill_at,
        pool_at=now if _has_grown(state.used, used) else state.pool_at,
        busy_since=_busy_since(state.busy_since, work, now),
        used=used,
        prefilled_by_loads=prefilled,
    )


def progress_of_metrics(state: TokenProgress, reading: MetricsReading, now: float) -> TokenProgress:
    """Return the progress after a /metrics answer."""
    decoded = reading.counters.get("realtime_tokens_total.decode")
    if decoded is None:
        decoded = reading.counters.get("generation_tokens_total")
    computed = reading.counters.get("realtime_tokens_total.prefill_compute")
    cached = reading.counters.get("realtime_tokens_total.prefill_cache")
    prefilled = None if computed is None and cached is None else (computed or 0) + (cached or 0)
    return replace(
        state,
        decode_at=now if _has_grown(state.decoded, decoded) else state.decode_at,
        prefill_at=now if _has_grown(state.prefilled, prefilled) else state.prefill_at,
        decoded=decoded,
        prefilled=prefilled,
    )


def progress_of_lines(
    state: TokenProgress, decode_at: float | None, prefill_at: float | None
) -> TokenProgress:
    """Return the progress after log lines: when the last one of each kind was read."""
    return replace(
        state,
        decode_at=_latest(state.decode_at, decode_at),
        prefill_at=_latest(state.prefill_at, prefill_at),
    )


def _busy_since(since: float | None, work: float | None, now: float) -> float | None:
    if work is None:
        return since
    if work <= 0:
        return None
    return now if since is None else since


def _has_grown(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after > before


def _latest(first: float | None, second: float | None) -> float | None:
    known = [at for at in (first, second) if at is not None]
    return max(known) if known else None


def _sum(*columns: list[int | None]) -> float | None:
    values = [value for column in columns for value in column]
    known = [value for value in values if value is not None]
    return float(sum(known)) if values and len(known) == len(values) else None
