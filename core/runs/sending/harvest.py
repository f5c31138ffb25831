"""Cutting what is in flight at a server, and what came of it."""

import asyncio
import contextlib
from dataclasses import dataclass, field

from kvctl.core.clock import Clock, within
from kvctl.core.ports import TransportFailed
from kvctl.core.runs.sending.slots import Flight, ServerSlots

_AGAIN_S = 1.0
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class HarvestReport:
    """What a harvest kept and what it could not."""

    server: str
    asked: int
    """Requests that were in flight."""
    kept: int
    """Partial answers on disk, to be continued."""
    kept_tokens: int
    queued: int
    """Given back without a token: they waited at the server."""
    restarted: int
    """Answers that start again, for the reasons given."""
    dropped_tokens: int
    finished: int
    """Ended by themselves meanwhile."""
    unanswered: int
    """The server did not give them back in time: their rows start again."""
    reasons: tuple[str, ...]
    """Why answers start again, one line each, with how many."""
    took_s: float


@dataclass(slots=True)
class HarvestCount:
    """Counted while a harvest goes on."""

    kept: int = 0
    kept_tokens: int = 0
    queued: int = 0
    restarted: int = 0
    dropped_tokens: int = 0
    finished: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def keep(self, tokens: int) -> None:
        """Count a partial with that many new tokens."""
        self.kept += 1
        self.kept_tokens += tokens

    def drop(self, tokens: int, reason: str) -> None:
        """Count an answer that starts again."""
        self.restarted += 1
        self.dropped_tokens += tokens
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def report(self, server: str, asked: int, unanswered: int, took_s: float) -> HarvestReport:
        """Return what was counted."""
        return HarvestReport(
            server=server,
            asked=asked,
            kept=self.kept,
            kept_tokens=self.kept_tokens,
            queued=self.queued,
            restarted=self.restarted,
            dropped_tokens=self.dropped_tokens,
            finished=self.finished,
            unanswered=unanswered,
            reasons=tuple(f"{n} {reason}" for reason, n in sorted(self.reasons.items())),
            took_s=took_s,
        )


async def cut_all(
    slots: ServerSlots, clock: Clock, *, timeout_s: float, keep: bool
) -> tuple[Flight, ...]:
    """Abort every own request at a server until none is left; return those that stayed.

    Asked again every second: a request that the front end still tokenizes, or that a pause holds
    back, is not reached the first time. Only own ids are aborted, one by one.
    """
    deadline = clock.monotonic() + timeout_s
    while slots.flights:
        waiting = list(slots.flights.values())
        for flight in waiting:
            flight.is_cut, flight.keeps_partial = True, keep
        await _abort_each(slots, waiting)
        await _wait_ended(waiting, clock, min(_AGAIN_S, deadline - clock.monotonic()))
        if clock.monotonic() >= deadline:
            break
    return tuple(slots.flights.values())


async def _abort_each(slots: ServerSlots, flights: list[Flight]) -> None:
    rids = [f.rid for f in flights if f.is_sent and not f.ended.is_set()]
    for first in range(0, len(rids), _AT_ONCE):
        calls = [slots.generator.abort(rid) for rid in rids[first : first + _AT_ONCE]]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for problem in filter(None, results):
            if not isinstance(problem, TransportFailed):
                raise problem
            return


async def _wait_ended(flights: list[Flight], clock: Clock, seconds: float) -> None:
    """Wait until all have ended, or that long."""
    ended = asyncio.gather(*(flight.ended.wait() for flight in flights))
    with contextlib.suppress(TimeoutError):
        await within(clock, max(0.0, seconds), ended)
