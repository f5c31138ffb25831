"""What becomes of a row whose attempt failed: tried again later, or failed for good.

Every attempt that failed is written down; a row is only failed for good once that is durable.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kvctl.core.clock import Clock
from kvctl.core.domain.runs.outcomes import Judgement, Kind
from kvctl.core.ports import TransportFailed
from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.opening.schedule import Job
from kvctl.core.runs.outputs.journal import ERRORS, Journal, Where
from kvctl.core.runs.outputs.records import ResponseHead, line_of
from kvctl.core.runs.sending.answers import Failure, error_record
from kvctl.core.runs.sending.slots import Flight, ServerSlots

ATTEMPTS = 5
"""Counted failures after which a row has failed for good."""
_BACKOFF_S, _BACKOFF_MOST_S = 1.0, 60.0
_REFUSED_IN_A_ROW = 20
_SPARED = 20
"""A row that was there so often when a server failed may be why it fails."""


@dataclass(slots=True)
class Attempts:
    """Counts attempts that failed, and decides when a row is tried again."""

    opened: OpenedRun
    journal: Journal
    clock: Clock
    hold: Callable[[str, str], None]
    """Stops sending for a cause, with a reason."""
    wake: Callable[[], None]
    """Called whenever something may be sent or has ended."""
    refused_in_a_row: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    def write(
        self,
        job: Job,
        stream: str,
        line: bytes,
        durable: Callable[[Where], None],
        head: ResponseHead | None = None,
    ) -> None:
        """Append a line, and do the rest once it is durable; until then the row is `writing`."""
        counters = self.opened.counters.partitions[job.partition]
        counters.writing += 1

        def settled(written: "asyncio.Future[Where]") -> None:
            if written.cancelled():
                return
            counters.writing -= 1
            durable(written.result())
            self.wake()

        self.journal.append(stream, line, head).add_done_callback(settled)

    async def broken(self, slots: ServerSlots, flight: Flight, error: TransportFailed) -> None:
        """Decide whether a connection that failed is the server's fault or the row's."""
        slots.trip(str(error), flight.job.key)
        self.wake()
        if not error.sent:
            self.opened.schedule.requeue(flight.job)
            return
        slots.orphans.append(flight.rid)
        is_alive = await slots.is_alive()
        # A server that died took every row with it: none of them is at fault.
        is_servers = not is_alive or slots.is_failing_broadly or flight.is_cut
        judgement = Judgement(Kind.ENGINE_GONE, str(error))
        self.fail(flight.job, slots, judgement, spared=is_servers)

    def fail(
        self, job: Job, slots: ServerSlots, judgement: Judgement, *, spared: bool = False
    ) -> None:
        """Write down an attempt that failed; the row is tried again unless that was the last.

        `spared`: it was the server's fault and does not count, within reason.
        """
        is_counted = judgement.kind.is_counted or judgement.kind is Kind.ENGINE_GONE
        if spared and job.spared < _SPARED:
            job.spared += 1
            job.unserved = 0
            is_counted = False
        job.failures += int(is_counted)
        is_final = judgement.kind.is_permanent or job.failures >= ATTEMPTS
        line = self._error_line(job, judgement.kind, judgement.detail, is_final, slots.url)
        if judgement.kind is Kind.REFUSED:
            self._note_refusal(slots, judgement)

        def durable(_: Where) -> None:
            if not is_final:
                return
            self.opened.failed[(job.partition, job.row)] = job
            self.opened.counters.partitions[job.partition].failed += self.opened.rows_lost(job)

        self.write(job, ERRORS, line, durable)
        if not is_final:
            self.retry_later(job)

    def _error_line(self, job: Job, kind: str, message: str, is_final: bool, server: str) -> bytes:
        index = self.opened.indexes[job.partition]
        place = (index.spec.name, index.id_of(job.row))
        failure = Failure(kind, message, is_final, server)
        return line_of(error_record(place, job, failure, self.clock.wall()))

    def retry_again(self, job: Job) -> None:
        """Give a row that had failed for good all its attempts again, and write that down."""
        job.failures = job.unserved = 0
        line = self._error_line(job, "retried", "queued again by the operator", False, "")
        self.opened.counters.partitions[job.partition].failed -= self.opened.rows_lost(job)
        self.write(job, ERRORS, line, lambda _: None)

    def _note_refusal(self, slots: ServerSlots, judgement: Judgement) -> None:
        self.refused_in_a_row += 1
        if self.refused_in_a_row == _REFUSED_IN_A_ROW:
            self.hold(
                "refused",
                f"{slots.url} refused {_REFUSED_IN_A_ROW} rows in a row, the last one: "
                f"{judgement.detail}",
            )

    def retry_later(self, job: Job) -> None:
        """Give a row back with a time before which it is not sent: longer with each refusal."""
        job.unserved += 1
        wait = min(_BACKOFF_S * 2.0 ** min(job.unserved - 1, 10), _BACKOFF_MOST_S)
        wait *= self._random.uniform(0.5, 1.0)
        self.opened.schedule.requeue(job, self.clock.monotonic() + wait)
