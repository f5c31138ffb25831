"""One request from its row to what becomes of it: an answer, a partial, another try, a failure.

Outcomes are judged by `kvctl.core.domain.runs.outcomes`; everything that has to outlive the process
goes through the journal first and is counted when it is durable.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from kvctl.core.clock import Clock
from kvctl.core.domain.runs.outcomes import Judgement, Kind, why_not_continued
from kvctl.core.ports import TransportFailed
from kvctl.core.runs.inputs.partition import Prompt
from kvctl.core.runs.inputs.rows import RowRejected
from kvctl.core.runs.opening.opened import OpenedRun
from kvctl.core.runs.opening.schedule import Job, PartialAt
from kvctl.core.runs.outputs.journal import PARTIALS, RESPONSES, Journal, Offload, Where, in_thread
from kvctl.core.runs.outputs.records import Partial, line_of, prompt_hash, read_partial
from kvctl.core.runs.sending.answers import (
    Came,
    at_limit,
    joined,
    partial_record,
    request_of,
    response_head,
    response_record,
)
from kvctl.core.runs.sending.attempts import Attempts
from kvctl.core.runs.sending.harvest import HarvestCount
from kvctl.core.runs.sending.loading import Loader
from kvctl.core.runs.sending.slots import Flight, ServerSlots


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
    attempts: Attempts = field(init=False)
    loader: Loader[Job, tuple[Prompt, Partial | None]] = field(init=False)

    def __post_init__(self) -> None:
        """Share the journal with what counts failed attempts."""
        self.loader = Loader(self._load, self.offload)
        self.attempts = Attempts(self.opened, self.journal, self.clock, self.hold, self.wake)

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
            prompt, kept = await self.loader.load(flight.job)
        except RowRejected as error:
            self.attempts.fail(flight.job, slots, Judgement(Kind.REFUSED, str(error)))
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
        prompt = self.opened.load(job)
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
        request = request_of(flight.rid, prompt, kept, self.opened.facts.vocabulary)
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
            await self.attempts.broken(slots, flight, error)
            return
        whole = joined(reply, kept)
        self._settle(slots, Came(name, slots.url, facts, flight, prompt, whole, kept, sent_wall))

    def _settle(self, slots: ServerSlots, came: Came) -> None:
        judgement = came.judged(self.opened.facts.vocabulary)
        job = came.flight.job
        match judgement.kind:
            case Kind.GOOD | Kind.CAPPED:
                slots.note_success()
                self._accept(came)
            case Kind.ABORTED:
                self._cut(slots, came)
            case Kind.QUEUE_FULL:
                self.opened.counters.queue_full += 1
                self.attempts.retry_later(job)
            case Kind.DUPLICATE_RID:
                self.opened.schedule.requeue(job, self.clock.monotonic())
            case Kind.DENIED:
                self.hold("denied", f"{slots.url} refuses every request: {judgement.detail}")
                self.opened.schedule.requeue(job)
            case Kind.SERVER_ERROR:
                slots.note_server_error(f"{slots.url} fails: {judgement.detail}", job.key)
                self.attempts.fail(job, slots, judgement, spared=slots.is_failing_broadly)
            case Kind.REFUSED if came.kept is not None:
                # The prefix may be what it refuses: the row has another try without it.
                self.drop_partial(job, came.kept.n_output)
                self.attempts.fail(job, slots, Judgement(Kind.SERVER_ERROR, judgement.detail))
            case _:
                self.attempts.fail(job, slots, judgement)

    def _accept(self, came: Came) -> None:
        self.attempts.refused_in_a_row = 0
        job, now = came.flight.job, self.clock.monotonic()
        wall = self.clock.wall()
        line = line_of(response_record(came, wall, self.opened.facts.renderer))
        head, new_tokens = response_head(came, wall), came.new_tokens
        is_capped = came.is_capped
        counters = self.opened.counters
        if (cut := self.counting.get(came.server)) and came.flight.is_cut:
            cut.finished += 1
        took = None if came.sent_wall is None else now - came.flight.started_at

        def durable(where: Where) -> None:
            # Without `came`: beside the lines that wait for the disk it would double the memory.
            tokens, of_prompt = head.completion_tokens, head.prompt_tokens
            counters.accept(job.partition, tokens, of_prompt, is_capped)
            counters.complete(job.partition, now, new_tokens, took)
            counters.partitions[job.partition].last_wall = wall
            self.opened.tries.pop((job.partition, job.row), None)
            self.opened.note_answer(job, where)

        self.attempts.write(job, RESPONSES, line, durable, head)

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
            self.attempts.retry_later(flight.job)

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

        self.attempts.write(job, PARTIALS, line_of(partial), durable)

    def drop_partial(self, job: Job, tokens: int) -> None:
        """Start a row again without the prefix it had; its tokens count as dropped."""
        job.partial = None
        self.opened.counters.dropped_tokens += tokens
        self.opened.counters.partitions[job.partition].restarted += 1
