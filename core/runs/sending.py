"""One request from its row to what becomes of it: an answer, a partial, another try, a failure.

Outcomes are judged by `kvctl.core.domain.outcomes`; everything that has to outlive the process
goes through the journal first and is counted when it is durable.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from kvctl.core.clock import Clock
from kvctl.core.domain.outcomes import (
    Judgement,
    Kind,
    judge,
    why_not_continued,
)
from kvctl.core.ports import TransportFailed
from kvctl.core.runs.answers import (
    Came,
    Failure,
    at_limit,
    error_record,
    joined,
    partial_record,
    prompt_tokens,
    request_of,
    response_record,
)
from kvctl.core.runs.harvest import HarvestCount
from kvctl.core.runs.inputs import Prompt
from kvctl.core.runs.journal import ERRORS, PARTIALS, RESPONSES, Journal, Offload, Where, in_thread
from kvctl.core.runs.opened import OpenedRun
from kvctl.core.runs.records import Partial, line_of, prompt_hash, read_partial
from kvctl.core.runs.rows import RowRejected
from kvctl.core.runs.schedule import Job, PartialAt
from kvctl.core.runs.slots import Flight, ServerSlots

ATTEMPTS = 5
"""Counted failures after which a row has failed for good."""
_BACKOFF_S, _BACKOFF_MOST_S = 1.0, 60.0
_REFUSED_IN_A_ROW = 20
_SPARED = 20
"""A row that was there so often when a server failed may be why it fails."""


@dataclass(slots=True)
class Sender:
    """What every request of a run shares."""

    opened: OpenedRun
    journal: Journal
    clock: Clock
    hold: Callable[[str, str], None]
    """Stops sending for a cause, with a reason."""
    wake: Callable[[], None]
    """Called whenever something may be sent or has ended."""
    offload: Offload = in_thread
    counting: dict[str, HarvestCount] = field(default_factory=dict)
    """The harvests that go on, by server."""
    refused_in_a_row: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    def rid(self, job: Job) -> str:
        """Return the request id of a job's next attempt: fixed width, ends in a delimiter."""
        first = sum(len(index) for index in self.opened.indexes[: job.partition])
        return f"{self.opened.run8}-{first + job.row:08d}-{job.attempt % 100:02d}."

    async def fly(self, slots: ServerSlots, flight: Flight) -> None:
        """Carry one job to its outcome at a server."""
        counters = self.opened.counters.partitions[flight.job.partition]
        counters.in_flight += 1
        try:
            await self._fly(slots, flight)
        finally:
            counters.in_flight -= 1
            slots.flights.pop(flight.rid, None)
            flight.ended.set()
            self.wake()

    async def _fly(self, slots: ServerSlots, flight: Flight) -> None:
        try:
            prompt, kept = await self.offload(lambda: self._load(flight.job))
        except RowRejected as error:
            self._fail(flight.job, slots, Judgement(Kind.REFUSED, str(error)))
            return
        except OSError as error:
            self.hold("input", f"an input cannot be read: {error}: press p when it can again")
            self.opened.schedule.requeue(flight.job)
            return
        if flight.is_cut:
            self._count(slots).queued += 1
            self.opened.schedule.requeue(flight.job)
            return
        flight.prompt = prompt
        if kept is None:
            flight.job.partial = None
        await self._send(slots, flight, prompt, kept)

    def _load(self, job: Job) -> tuple[Prompt, Partial | None]:
        prompt = self.opened.indexes[job.partition].load(job.row)
        if job.partial is None:
            return prompt, None
        try:
            kept = read_partial(job.partial.file, job.partial.offset)
        except (OSError, msgspec.MsgspecError):
            return prompt, None
        is_same = kept.prompt_sha256 == prompt_hash(prompt.text, prompt.input_ids)
        is_same = is_same and kept.id == prompt.id and why_not_continued(prompt.sampling) is None
        return prompt, kept if is_same else None

    async def _send(
        self, slots: ServerSlots, flight: Flight, prompt: Prompt, kept: Partial | None
    ) -> None:
        job = flight.job
        flight.kept_tokens = kept.n_output if kept else 0
        request = request_of(flight.rid, prompt, kept)
        name = self.opened.indexes[job.partition].spec.name
        if kept is not None and request.sampling.get("max_new_tokens") == 0:
            reply = at_limit(kept)
            came = Came(name, slots.url, slots.facts, flight, prompt, reply, kept, None)
            self._accept(came)
            return
        flight.is_sent = True
        job.attempt += 1
        flight.started_at, sent_wall = self.clock.monotonic(), self.clock.wall()
        facts = slots.facts
        try:
            reply = await slots.generator.generate(request)
        except TransportFailed as error:
            await self._broken(slots, flight, error)
            return
        whole = joined(reply, kept)
        self._settle(slots, Came(name, slots.url, facts, flight, prompt, whole, kept, sent_wall))

    def _settle(self, slots: ServerSlots, came: Came) -> None:
        judgement = judge(came.answer, self.opened.facts.vocabulary)
        job = came.flight.job
        match judgement.kind:
            case Kind.GOOD | Kind.CAPPED:
                slots.note_success()
                self._accept(came)
            case Kind.ABORTED:
                self._cut(slots, came)
            case Kind.QUEUE_FULL:
                self.opened.counters.queue_full += 1
                self._retry_later(job)
            case Kind.DUPLICATE_RID:
                self.opened.schedule.requeue(job, self.clock.monotonic())
            case Kind.DENIED:
                self.hold("denied", f"{slots.url} refuses every request: {judgement.detail}")
                self.opened.schedule.requeue(job)
            case Kind.SERVER_ERROR:
                slots.note_server_error(f"{slots.url} fails: {judgement.detail}", job.key)
                self._fail(job, slots, judgement, spared=slots.is_failing_broadly)
            case Kind.REFUSED if came.kept is not None:
                # The prefix may be what it refuses: the row has another try without it.
                self.drop_partial(job, came.kept.n_output)
                self._fail(job, slots, Judgement(Kind.SERVER_ERROR, judgement.detail))
            case _:
                self._fail(job, slots, judgement)

    def _accept(self, came: Came) -> None:
        self.refused_in_a_row = 0
        job, now = came.flight.job, self.clock.monotonic()
        wall = self.clock.wall()
        record = response_record(came, wall, self.opened.facts.renderer)
        counters = self.opened.counters
        if (cut := self.counting.get(came.server)) and came.flight.is_cut:
            cut.finished += 1
        took = None if came.sent_wall is None else now - came.flight.started_at

        def durable() -> None:
            tokens = len(came.reply.output_ids)
            counters.accept(job.partition, tokens, prompt_tokens(came), came.is_capped)
            counters.complete(job.partition, now, came.new_tokens, took)
            counters.partitions[job.partition].last_wall = wall
            self.opened.tries.pop((job.partition, job.row), None)

        self._write(job, RESPONSES, line_of(record), lambda _: durable())

    def _write(self, job: Job, stream: str, line: bytes, durable: Callable[[Where], None]) -> None:
        """Append a line, and do the rest once it is durable; until then the row is `writing`."""
        counters = self.opened.counters.partitions[job.partition]
        counters.writing += 1

        def settled(written: "asyncio.Future[Where]") -> None:
            if written.cancelled():
                return
            counters.writing -= 1
            durable(written.result())
            self.wake()

        self.journal.append(stream, line).add_done_callback(settled)

    def _cut(self, slots: ServerSlots, came: Came) -> None:
        """Keep what an aborted answer has, or count what is lost; the row is sent again."""
        flight, job = came.flight, came.flight.job
        if came.new_tokens <= 0:
            if flight.is_cut:
                self._count(slots).queued += 1
            self._send_again(flight)
            return
        reason = self._why_dropped(came)
        if reason is None:
            self._count(slots).keep(came.new_tokens)
            self._keep_partial(came)
            return
        self._count(slots).drop(came.new_tokens, reason)
        self.opened.counters.dropped_tokens += came.new_tokens
        self.opened.counters.partitions[job.partition].restarted += 1
        self._send_again(flight)

    def _count(self, slots: ServerSlots) -> HarvestCount:
        return self.counting.get(slots.url) or HarvestCount()

    def _send_again(self, flight: Flight) -> None:
        if flight.is_cut:
            self.opened.schedule.requeue(flight.job)
        else:
            # Somebody else aborted it: not at once, or both would go on for ever.
            self._retry_later(flight.job)

    def _why_dropped(self, came: Came) -> str | None:
        if not came.flight.keeps_partial:
            return "abandoned"
        if came.prompt.input_ids is None:
            return "sent as text, without a tokenizer"
        return why_not_continued(came.prompt.sampling)

    def _keep_partial(self, came: Came) -> None:
        job, flight = came.flight.job, came.flight
        partial = partial_record(came, self.clock.wall())
        self.opened.counters.kept_tokens += came.new_tokens

        def durable(where: Where) -> None:
            at = PartialAt(where.file, where.offset, partial.n_output, partial.numerics)
            job.partial = at
            self._send_again(flight)

        self._write(job, PARTIALS, line_of(partial), durable)

    def drop_partial(self, job: Job, tokens: int) -> None:
        """Start a row again without the prefix it had; its tokens count as dropped."""
        job.partial = None
        self.opened.counters.dropped_tokens += tokens
        self.opened.counters.partitions[job.partition].restarted += 1

    async def _broken(self, slots: ServerSlots, flight: Flight, error: TransportFailed) -> None:
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
        self._fail(flight.job, slots, judgement, spared=is_servers)

    def _fail(
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
            self.opened.counters.partitions[job.partition].failed += 1

        self._write(job, ERRORS, line, durable)
        if not is_final:
            self._retry_later(job)

    def _error_line(self, job: Job, kind: str, message: str, is_final: bool, server: str) -> bytes:
        index = self.opened.indexes[job.partition]
        place = (index.spec.name, index.id_of(job.row))
        failure = Failure(kind, message, is_final, server)
        return line_of(error_record(place, job, failure, self.clock.wall()))

    def retry_again(self, job: Job) -> None:
        """Give a row that had failed for good all its attempts again, and write that down."""
        job.failures = job.unserved = 0
        line = self._error_line(job, "retried", "queued again by the operator", False, "")
        self.opened.counters.partitions[job.partition].failed -= 1
        self._write(job, ERRORS, line, lambda _: None)

    def _note_refusal(self, slots: ServerSlots, judgement: Judgement) -> None:
        self.refused_in_a_row += 1
        if self.refused_in_a_row == _REFUSED_IN_A_ROW:
            self.hold(
                "refused",
                f"{slots.url} refused {_REFUSED_IN_A_ROW} rows in a row, the last one: "
                f"{judgement.detail}",
            )

    def _retry_later(self, job: Job) -> None:
        job.unserved += 1
        wait = min(_BACKOFF_S * 2.0 ** min(job.unserved - 1, 10), _BACKOFF_MOST_S)
        wait *= self._random.uniform(0.5, 1.0)
        self.opened.schedule.requeue(job, self.clock.monotonic() + wait)
