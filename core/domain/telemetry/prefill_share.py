"""The share of time that prefill takes from decoding, from the busy time of each rank.

Source: /v1/loads `total_prefill_busy_us` (0.5.17 and later), written after every prefill.
"""

from dataclasses import dataclass

from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.telemetry.readings import LoadsReading

WINDOW_S = 10.0
MIN_SPAN_S = 0.9
_SPACING_S = 0.5
"""Answers closer than this replace each other, which bounds the memory."""


@dataclass(frozen=True, slots=True)
class BusyTime:
    """Seconds that each DP rank had spent in prefill at one moment."""

    at: float
    seconds: tuple[tuple[int, float], ...]
    """(DP rank, seconds), every rank of the answer."""


def fold_busy(kept: tuple[BusyTime, ...], reading: LoadsReading) -> tuple[BusyTime, ...]:
    """Return the last seconds of busy times after one more answer; a restart starts over."""
    known = [(r.dp_rank, r.prefill_busy_s) for r in reading.ranks if r.prefill_busy_s is not None]
    if not known or len(known) < len(reading.ranks):
        return ()
    newest = BusyTime(reading.at, tuple(known))
    if kept and (newest.at < kept[-1].at or _is_reset(kept[-1], newest)):
        return (newest,)
    if len(kept) > 1 and newest.at - kept[-2].at < _SPACING_S:
        kept = kept[:-1]
    return (*(k for k in kept if newest.at - k.at <= WINDOW_S + 1.0), newest)


def share_of(kept: tuple[BusyTime, ...], source: str, now: float) -> Figure:
    """Return the share (0..1) of the busiest rank's time over about the last 10 s."""
    if not kept:
        return unknown("this version does not tell the time of its prefills", source)
    newer, older = kept[-1], kept[0]
    elapsed = newer.at - older.at
    if now - newer.at > WINDOW_S or elapsed < MIN_SPAN_S:
        return unknown("measuring", source)
    before = dict(older.seconds)
    grown = [seconds - before[rank] for rank, seconds in newer.seconds if rank in before]
    share = min(1.0, max(grown, default=0.0) / elapsed)
    return Figure(share, f"{source}, {elapsed:.0f} s", newer.at)


def _is_reset(before: BusyTime, after: BusyTime) -> bool:
    was = dict(before.seconds)
    return any(seconds < was.get(rank, 0.0) for rank, seconds in after.seconds)
