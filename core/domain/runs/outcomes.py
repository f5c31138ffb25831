"""How one answer ended: judged by its finish reason, never by the HTTP status alone.

Also says when a cut answer may be continued from its prefix, and what makes two launches
numerically the same. Pure: the transport turns replies into `Answer`, the driver acts on `Kind`.

Source: SGLang 0.5.23 /generate: `finish_reason` is {"type": "stop"|"length"|"abort", ...}; a plain
abort is HTTP 200 with partial output; status codes 503 (queue full), 500 and 400 become the HTTP
status of a non-streamed request.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The class of one answer."""

    GOOD = "good"
    """Ended by itself (stop)."""
    CAPPED = "capped"
    """Ended at max_new_tokens (length); accepted, and counted apart."""
    ABORTED = "aborted"
    """Cut: by us it is a partial, by others it is sent again."""
    EMPTY = "empty"
    """Nothing in it, whatever the finish reason says."""
    UNFINISHED = "unfinished"
    """No finish reason: not an answer."""
    BAD_TOKENS = "bad tokens"
    """Ids outside the vocabulary came back."""
    QUEUE_FULL = "queue full"
    """503 or 429: the server would not take it now; nothing was done."""
    DUPLICATE_RID = "duplicate rid"
    """The server still knows the id of an earlier attempt."""
    REFUSED = "refused"
    """400: this request can never be served."""
    DENIED = "denied"
    """401, 403 or 404: no request can be served until something is set right."""
    SERVER_ERROR = "server error"
    """5xx: the server failed at it."""
    ENGINE_GONE = "engine gone"
    """No answer: the connection was refused or broke."""

    @property
    def is_accepted(self) -> bool:
        """Whether the row is done with this answer."""
        return self in _ACCEPTED

    @property
    def is_counted(self) -> bool:
        """Whether it uses up one of the row's attempts."""
        return self in _COUNTED

    @property
    def is_permanent(self) -> bool:
        """Whether sending the same row again cannot help."""
        return self is Kind.REFUSED


_ACCEPTED = {Kind.GOOD, Kind.CAPPED}
_COUNTED = {Kind.EMPTY, Kind.UNFINISHED, Kind.BAD_TOKENS, Kind.SERVER_ERROR, Kind.REFUSED}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request, reduced to what decides its class."""

    status: int
    """HTTP status."""
    finish: Mapping[str, object] | None
    """finish_reason; None where there is none."""
    output_ids: Sequence[int]
    text: str | None
    """None where the server returns ids only."""
    error: str | None = None
    """The text of an error body."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The class of an answer and one line that says why."""

    kind: Kind
    detail: str = ""


def judge(answer: Answer, vocabulary: int | None = None) -> Judgement:
    """Return the class of an answer; `vocabulary` is the number of token ids, None if unknown."""
    if answer.status != 200:
        return _judge_status(answer.status, answer.error or f"HTTP {answer.status}")
    if answer.finish is None:
        return Judgement(Kind.UNFINISHED, "the answer has no finish reason")
    reason = str(answer.finish.get("type"))
    if reason == "abort":
        return _judge_abort(answer.finish)
    if reason not in ("stop", "length"):
        return Judgement(Kind.UNFINISHED, f"finish reason {reason!r} is not known")
    if bad := ids_outside(answer.output_ids, vocabulary):
        return Judgement(Kind.BAD_TOKENS, f"token id {bad[0]} is outside the vocabulary")
    if _is_empty(answer):
        return Judgement(Kind.EMPTY, f"no content, finish reason {reason}")
    return Judgement(Kind.GOOD if reason == "stop" else Kind.CAPPED)


def _judge_status(status: int, error: str) -> Judgement:
    if status in (429, 503):
        return Judgement(Kind.QUEUE_FULL, error)
    if status in (401, 403, 404, 405):
        return Judgement(Kind.DENIED, error)
    if status == 499:
        return Judgement(Kind.ABORTED, error)
    if status == 400 and "Duplicate request ID" in error:
        return Judgement(Kind.DUPLICATE_RID, error)
    if 400 <= status < 500:
        return Judgement(Kind.REFUSED, error)
    return Judgement(Kind.SERVER_ERROR, error)


def _judge_abort(finish: Mapping[str, object]) -> Judgement:
    message = str(finish.get("message") or "aborted")
    status = finish.get("status_code")
    if isinstance(status, int) and status >= 400:
        return _judge_status(status, message)
    return Judgement(Kind.ABORTED, message)


def _is_empty(answer: Answer) -> bool:
    ids = answer.output_ids
    if not ids:
        return not answer.text
    matched = answer.finish.get("matched") if answer.finish else None
    return len(ids) == 1 and ids[0] == matched


def ids_outside(ids: Collection[int], vocabulary: int | None) -> tuple[int, ...]:
    """Return the ids that are not in a vocabulary of that size; none if its size is unknown.

    One such id in `input_ids` ends a 0.5.23 server, which does not check them.
    """
    if vocabulary is None:
        return ()
    return tuple([i for i in ids if not 0 <= i < vocabulary])  # 4,000 ids: a third faster so


DEFAULT_MAX_NEW_TOKENS = 128
"""What SGLang takes where max_new_tokens is not given."""

_CHANGES_BY_CUT = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "regex": None,
    "json_schema": None,
    "ebnf": None,
    "structural_tag": None,
    "stop": None,
    "stop_regex": None,
    "custom_logit_processor": None,
    "logit_bias": None,
}


def why_not_continued(sampling: Mapping[str, object]) -> str | None:
    """Return why a cut answer under this sampling must start again, None if it may go on.

    Penalties and grammars depend on all output so far, a stop string may lie across the cut.
    """
    for name, neutral in _CHANGES_BY_CUT.items():
        value = sampling.get(name, neutral)
        if value not in (neutral, None, [], {}, ""):
            return f"{name} is set: it looks at the whole answer"
    return None


def continued_sampling(sampling: Mapping[str, object], kept: int) -> dict[str, object]:
    """Return the sampling of the rest of an answer of which `kept` tokens are there."""
    rest = {"max_new_tokens": DEFAULT_MAX_NEW_TOKENS, **sampling}
    for name in ("max_new_tokens", "min_new_tokens"):
        value = rest.get(name)
        if isinstance(value, int):
            rest[name] = max(0, value - kept)
    return rest


_NUMERIC_FLAGS = (
    "model_path",
    "revision",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "load_format",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "attention_backend",
    "lora_paths",
)


def numerics_of(flags: Mapping[str, object], weight_version: str | None = None) -> str:
    """Return what must be equal for a prefix of one launch to be continued under another.

    Units: a stable one-line text of the flags that change the computed distribution.
    """
    parts = [f"{name}={flags[name]}" for name in _NUMERIC_FLAGS if flags.get(name) is not None]
    if weight_version is not None:
        parts.append(f"weight_version={weight_version}")
    return " ".join(parts)


class ForeignKind(StrEnum):
    """The class of a record that another client wrote."""

    GOOD = "good"
    TRUNCATED = "truncated"
    """Ended at the token limit, with text."""
    ABORTED = "aborted"
    EMPTY_LENGTH = "reasoning ate it"
    """No content at the token limit."""
    EMPTY_STOP = "stop inside reasoning"
    """No content although it ended by itself."""
    UNFINISHED = "no finish reason"
    FAILED = "transport error"


_CONTENT_KEYS = ("content", "text", "response", "output", "output_ids")


def judge_foreign(record: Mapping[str, object]) -> ForeignKind:
    """Return the class of one record of a foreign output file, whatever client wrote it."""
    finish = _foreign_finish(record)
    if finish == "abort":
        return ForeignKind.ABORTED
    if record.get("error") and finish is None:
        return ForeignKind.FAILED
    if finish is None:
        return ForeignKind.UNFINISHED
    has_content = any(record.get(key) for key in _CONTENT_KEYS)
    if not has_content:
        return ForeignKind.EMPTY_LENGTH if finish == "length" else ForeignKind.EMPTY_STOP
    return ForeignKind.TRUNCATED if finish == "length" else ForeignKind.GOOD


def _foreign_finish(record: Mapping[str, object]) -> str | None:
    meta = record.get("meta_info")
    found = record.get("finish_reason")
    if found is None and isinstance(meta, Mapping):
        found = meta.get("finish_reason")
    if isinstance(found, Mapping):
        found = found.get("type")
    return str(found) if found else None


def count_kinds(kinds: Collection[ForeignKind]) -> dict[ForeignKind, int]:
    """Return how many there are of each class, classes that do not occur left out."""
    return {kind: n for kind in ForeignKind if (n := sum(k is kind for k in kinds))}
