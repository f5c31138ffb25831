"""What came back for one request, and the lines that are written of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from kvctl.core.domain.runs.outcomes import Answer, Judgement, continued_sampling, judge
from kvctl.core.ports import GenerateReply, GenerateRequest
from kvctl.core.runs.inputs.partition import Prompt
from kvctl.core.runs.inputs.templates import Renderer
from kvctl.core.runs.opening.schedule import Job
from kvctl.core.runs.outputs.records import (
    VERSION,
    FinishHead,
    Partial,
    ResponseHead,
    Segment,
    prompt_hash,
    sampling_hash,
)
from kvctl.core.runs.sending.slots import Flight, ServerFacts
from kvctl.core.runs.sending.token_ids import TokenIds


@dataclass(frozen=True, slots=True)
class Came:
    """A reply with everything that is needed to write it down."""

    partition: str
    server: str
    facts: ServerFacts
    flight: Flight
    prompt: Prompt
    reply: GenerateReply
    """The whole answer: a continued prefix and its continuation joined."""
    kept: Partial | None
    """The prefix that was continued."""
    sent_wall: float | None
    """UTC seconds; None where no request was needed."""

    @property
    def new_tokens(self) -> int:
        """Tokens that this request made."""
        return len(self.reply.output_ids) - self.flight.kept_tokens

    def judged(self, vocabulary: int | None) -> Judgement:
        """Return its class; `vocabulary` is the number of token ids, None if unknown."""
        reply, ids = self.reply, self.reply.output_ids
        if vocabulary is not None and isinstance(ids, TokenIds) and ids.are_below(vocabulary):
            vocabulary = None  # looked at, in six tenths of the time
        return judge(Answer(reply.status, reply.finish, ids, reply.text, reply.error), vocabulary)

    @property
    def is_capped(self) -> bool:
        """Whether it ended at max_new_tokens."""
        return (self.reply.finish or {}).get("type") == "length"


def request_of(
    rid: str, prompt: Prompt, kept: Partial | None, vocabulary: int | None
) -> GenerateRequest:
    """Return the request for a prompt, or for the rest of an answer that has begun."""
    if kept is None:
        return GenerateRequest(rid, prompt.text, prompt.input_ids, prompt.sampling, vocabulary)
    ids = (*(prompt.input_ids or ()), *kept.output_ids)
    rest = continued_sampling(prompt.sampling, kept.n_output)
    return GenerateRequest(rid, None, ids, rest, vocabulary)


def joined(reply: GenerateReply, kept: Partial | None) -> GenerateReply:
    """Return the whole answer of a continued request."""
    if kept is None:
        return reply
    text = None if kept.text is None or reply.text is None else kept.text + reply.text
    return replace(reply, output_ids=(*kept.output_ids, *reply.output_ids), text=text)


def at_limit(kept: Partial) -> GenerateReply:
    """Return the answer that a prefix is when nothing of the budget is left."""
    finish = {"type": "length", "length": kept.n_output}
    return GenerateReply(200, kept.text, tuple(kept.output_ids), finish, {}, None)


def prompt_tokens(came: Came) -> int | None:
    """Return the prompt's own tokens, without a continued prefix; None if not known."""
    if came.prompt.input_ids is not None:
        return len(came.prompt.input_ids)
    found = came.reply.meta.get("prompt_tokens")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def response_record(came: Came, wall: float, renderer: Renderer | None) -> dict[str, object]:
    """Return the record of an accepted answer, as it stands in raw_responses.jsonl."""
    prompt, reply, meta = came.prompt, came.reply, came.reply.meta
    record: dict[str, object] = {
        "v": VERSION,
        "id": prompt.id,
        "partition": came.partition,
        "attempt": max(0, came.flight.job.attempt - 1),
        "prompt_sha256": prompt_hash(prompt.text, prompt.input_ids),
        "n_prompt": prompt_tokens(came),
    }
    if prompt.input_ids is not None:
        record["input_ids"] = prompt.input_ids
    else:
        record["prompt"] = prompt.text
    record |= {
        "output_ids": _as_written(reply.output_ids),
        "text": _text(came, renderer),
        "finish_reason": reply.finish,
        "prompt_tokens": prompt_tokens(came),
        "completion_tokens": len(reply.output_ids),
        "cached_tokens": meta.get("cached_tokens"),
        "e2e_latency": meta.get("e2e_latency"),
        "t_submit": came.sent_wall,
        "t_done": wall,
        "server": came.server,
        "launch": came.facts.launch,
        "model": came.facts.model,
        "weight_version": meta.get("weight_version", came.facts.weight_version),
        "sampling": sampling_hash(prompt.sampling),
        "rid": came.flight.rid,
    }
    if came.kept is not None:
        record["segments"] = _segments(came)
    return record


def response_head(came: Came, wall: float) -> ResponseHead:
    """Return what the index holds of an accepted answer: what its record says."""
    return ResponseHead(
        id=came.prompt.id,
        partition=came.partition,
        completion_tokens=len(came.reply.output_ids),
        finish_reason=FinishHead(str((came.reply.finish or {}).get("type"))),
        prompt_tokens=prompt_tokens(came),
        t_done=wall,
    )


def _as_written(ids: Sequence[int]) -> Sequence[int] | msgspec.Raw:
    return msgspec.Raw(ids.json) if isinstance(ids, TokenIds) else ids


def _text(came: Came, renderer: Renderer | None) -> str | None:
    if came.kept is not None and renderer is not None:
        # Joining two texts would spoil a character that lies across the cut.
        return renderer.decode(came.reply.output_ids)
    return came.reply.text


def _segments(came: Came) -> list[Segment]:
    before = came.kept.segments if came.kept is not None else []
    if not came.new_tokens:
        return list(before)
    version = came.reply.meta.get("weight_version")
    made = Segment(
        n=came.new_tokens,
        rid=came.flight.rid,
        server=came.server,
        launch=came.facts.launch,
        numerics=came.facts.numerics,
        weight_version=version if isinstance(version, str) else None,
    )
    return [*before, made]


def partial_record(came: Came, wall: float) -> Partial:
    """Return the record of a cut answer, as it stands in partials.jsonl."""
    reply, prompt = came.reply, came.prompt
    return Partial(
        v=VERSION,
        id=prompt.id,
        partition=came.partition,
        attempt=max(0, came.flight.job.attempt - 1),
        prompt_sha256=prompt_hash(prompt.text, prompt.input_ids),
        n_prompt=len(prompt.input_ids or ()),
        output_ids=list(reply.output_ids),
        n_output=len(reply.output_ids),
        segments=_segments(came),
        numerics=came.facts.numerics,
        text=reply.text,
        reason=str((reply.finish or {}).get("message") or "aborted"),
        t=wall,
    )


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt was no answer."""

    kind: str
    """The class, as in `kvctl.core.domain.runs.outcomes.Kind`, or "retried"."""
    message: str
    is_final: bool
    """The row is not tried again by itself."""
    server: str


def error_record(
    place: tuple[str, str], job: Job, failure: Failure, wall: float
) -> dict[str, object]:
    """Return the record of a failed attempt, as it stands in errors.jsonl."""
    partition, name = place
    return {
        "v": VERSION,
        "id": name,
        "partition": partition,
        "attempt": max(0, job.attempt - 1),
        "counted": job.failures,
        "class": str(failure.kind),
        "message": failure.message[:2000],
        "final": failure.is_final,
        "server": failure.server,
        "t": wall,
    }
