"""The lines of a run's output files, version 1: what is written and what is read back.

raw_responses.jsonl holds one accepted answer a line, errors.jsonl one failed attempt, and
partials.jsonl the prefix of an answer that was cut; skipped.jsonl is written once from the inputs.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from kvctl.core.domain.runs.outcomes import Answer, judge

VERSION = 1


class FinishHead(msgspec.Struct, gc=False):
    """The part of finish_reason that is counted."""

    type: str = ""


class ResponseHead(msgspec.Struct, gc=False):
    """The fields of an accepted answer that a resume needs."""

    id: str
    partition: str
    completion_tokens: int
    finish_reason: FinishHead
    prompt_tokens: int | None = None
    t_done: float = 0.0


class WholeResponse(msgspec.Struct):
    """An accepted answer, as far as it is checked."""

    id: str
    partition: str
    output_ids: list[int]
    completion_tokens: int
    finish_reason: dict[str, object]
    text: str | None = None
    prompt_tokens: int | None = None


def why_not_accepted(record: WholeResponse, vocabulary: int | None) -> str | None:
    """Return why a whole record is no accepted answer, None if it is one."""
    if record.completion_tokens != len(record.output_ids):
        return f"says {record.completion_tokens} tokens, holds {len(record.output_ids)}"
    answer = Answer(200, record.finish_reason, record.output_ids, record.text)
    judgement = judge(answer, vocabulary)
    return None if judgement.kind.is_accepted else f"{judgement.kind}: {judgement.detail}"


class ErrorHead(msgspec.Struct):
    """The fields of a failed attempt that a resume needs."""

    id: str
    partition: str
    kind: str = msgspec.field(name="class")
    is_final: bool = msgspec.field(name="final")
    attempt: int = 0
    counted: int = 0


class PartialHead(msgspec.Struct):
    """The fields of a partial that a resume needs."""

    id: str
    partition: str
    n_output: int
    numerics: str | None = None
    attempt: int = 0


class Segment(msgspec.Struct):
    """One stretch of an answer that was made in one go."""

    n: int
    """Tokens."""
    rid: str
    server: str
    launch: str | None = None
    """Which start of the server made it."""
    numerics: str | None = None
    weight_version: str | None = None


class Partial(msgspec.Struct):
    """What is there of an answer that was cut; a later line of the same row supersedes it."""

    v: int
    id: str
    partition: str
    attempt: int
    prompt_sha256: str
    n_prompt: int
    output_ids: list[int]
    n_output: int
    segments: list[Segment]
    numerics: str | None
    text: str | None
    reason: str
    t: float
    """UTC seconds."""


def line_of(record: object) -> bytes:
    r"""Return a record as one line ending in \n; half surrogates become U+FFFD."""
    try:
        return msgspec.json.encode(record) + b"\n"
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(record)
        return msgspec.json.encode(whole_text(plain)) + b"\n"


def whole_text(value: object) -> object:
    """Return a JSON value with half surrogate pairs replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {str(whole_text(k)): whole_text(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [whole_text(item) for item in value]
    return value


def prompt_hash(text: str | None, input_ids: Sequence[int] | None) -> str:
    """Return the hash that ties an answer to its prompt."""
    if text is not None:
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    # As json.dumps spells a list, in a fourth of its time; earlier journals hold this hash.
    spelled = msgspec.json.encode(input_ids or ()).replace(b",", b", ")
    return hashlib.sha256(spelled).hexdigest()


def sampling_hash(sampling: Mapping[str, Any]) -> str:
    """Return a short hash of sampling parameters, whatever their order."""
    return _sampling_hash(msgspec.json.encode(dict(sampling)))


@lru_cache(maxsize=64)
def _sampling_hash(plain: bytes) -> str:
    """Hash what most rows of a partition share."""
    canonical = json.dumps(json.loads(plain), sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def read_partial(file: str, offset: int) -> Partial:
    """Read a partial back. Raises OSError or msgspec's errors if it is not there as written."""
    with open(file, "rb") as stream:
        stream.seek(offset)
        return msgspec.json.decode(stream.readline(), type=Partial)
