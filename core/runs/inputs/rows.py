"""One row of an input file in any accepted format, reduced to what is sent.

Formats: ids, messages, prompt, conversations (role/content), sharegpt (from/value) and OpenAI
Batch lines. Detection is by keys; nothing is guessed beyond that.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from kvctl.core.domain.runs.run_file import InputFormat, Turns

PROMPT_KEYS = ("prompt", "text", "question")
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
_BATCH_SAMPLING = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "stop": "stop",
    "seed": "sampling_seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}


class RowRejected(Exception):
    """A row cannot be sent; the message says why in one line."""


class Row(msgspec.Struct, frozen=True):
    """One prompt as the file gives it; exactly one of text, input_ids and messages."""

    id: str
    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    sampling: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Sampling parameters of this row alone."""


class RowReading(msgspec.Struct, frozen=True):
    """How the rows of one file are read."""

    partition: str
    format: InputFormat
    prompt_key: str | None = None
    as_chat: bool = False
    turns: Turns = Turns.LAST


def decode_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        RowRejected: It is not one JSON object, or holds text that is not valid Unicode.
    """
    try:
        found = msgspec.json.decode(line)
    except RecursionError:
        raise RowRejected("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = _decode_slowly(line)
    if not isinstance(found, dict):
        raise RowRejected(f"not a JSON object but {type(found).__name__}")
    return found


def _decode_slowly(line: bytes) -> object:
    try:
        found = json.loads(line)
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise RowRejected("holds half a surrogate pair, which is not valid Unicode") from None
    except UnicodeDecodeError as error:
        raise RowRejected(f"not UTF-8 at byte {error.start} of the line") from None
    except RecursionError:
        raise RowRejected("nested too deeply") from None
    except ValueError as error:
        raise RowRejected(f"not valid JSON: {error}") from None
    return found


def detect(row: Mapping[str, Any], prompt_key: str | None = None) -> InputFormat:
    """Return the format that the keys of a row show.

    Raises:
        RowRejected: No accepted format has such keys.
    """
    if "custom_id" in row and "body" in row:
        return InputFormat.OPENAI_BATCH
    if "input_ids" in row:
        return InputFormat.IDS
    if "messages" in row:
        return InputFormat.MESSAGES
    if "conversations" in row:
        turns = row["conversations"]
        first = turns[0] if isinstance(turns, list) and turns else {}
        is_sharegpt = isinstance(first, Mapping) and "from" in first
        return InputFormat.SHAREGPT if is_sharegpt else InputFormat.CONVERSATIONS
    keys = (prompt_key,) if prompt_key else PROMPT_KEYS
    if any(isinstance(row.get(key), str) for key in keys):
        return InputFormat.PROMPT
    shown = ", ".join(sorted(map(str, row))[:6]) or "none"
    raise RowRejected(f"no format has these keys: {shown}")


def read_row(row: Mapping[str, Any], reading: RowReading) -> Row:
    """Return the prompt of one decoded row.

    Raises:
        RowRejected: It is not of that format, or there is nothing to send.
    """
    match reading.format:
        case InputFormat.OPENAI_BATCH:
            return _batch_row(row, reading)
        case InputFormat.IDS:
            ids = _token_ids(row.get("input_ids"))
            return Row(_id(row, reading, list(ids)), input_ids=ids, sampling=_sampling(row))
        case InputFormat.MESSAGES:
            return _chat_row(row, reading, _messages(row.get("messages")))
        case InputFormat.CONVERSATIONS:
            turns = _messages(row.get("conversations"))
            return _chat_row(row, reading, _to_answer(turns, reading))
        case InputFormat.SHAREGPT:
            turns = _sharegpt(row.get("conversations"))
            return _chat_row(row, reading, _to_answer(turns, reading))
        case InputFormat.PROMPT:
            return _prompt_row(row, reading)
        case InputFormat.AUTO:
            return read_row(row, _as_detected(row, reading))


def _as_detected(row: Mapping[str, Any], reading: RowReading) -> RowReading:
    return replace(reading, format=detect(row, reading.prompt_key))


def _prompt_row(row: Mapping[str, Any], reading: RowReading) -> Row:
    keys = (reading.prompt_key,) if reading.prompt_key else PROMPT_KEYS
    text = next((row[key] for key in keys if key in row), None)
    if not isinstance(text, str):
        raise RowRejected(f"no text under {' or '.join(keys)}")
    if not text.strip():
        raise RowRejected("the prompt is empty")
    name = _id(row, reading, text)
    if reading.as_chat:
        return Row(name, messages=({"role": "user", "content": text},), sampling=_sampling(row))
    return Row(name, text=text, sampling=_sampling(row))


Messages = tuple[Mapping[str, Any], ...]


def _chat_row(row: Mapping[str, Any], reading: RowReading, messages: Messages) -> Row:
    messages = _to_answer(messages, reading) if reading.turns is Turns.ALL else messages
    tools = _tools(row.get("tools"))
    return Row(
        _id(row, reading, list(messages)),
        messages=messages,
        tools=tools,
        sampling=_sampling(row),
    )


def _tools(given: object) -> tuple[Mapping[str, Any], ...] | None:
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given)  # a table holds them as text: they have no common columns
        except (ValueError, RecursionError):
            raise RowRejected("tools is text that is not JSON") from None
    if not given:
        return None
    if not isinstance(given, list):
        raise RowRejected("tools is not a list")
    return tuple(given)


def _batch_row(row: Mapping[str, Any], reading: RowReading) -> Row:
    body = row.get("body")
    if not isinstance(body, Mapping):
        raise RowRejected("body is not an object")
    sampling = {new: body[old] for old, new in _BATCH_SAMPLING.items() if body.get(old) is not None}
    if body.get("n", 1) not in (1, None):
        raise RowRejected("n above 1 is not supported: give every answer its own custom_id")
    named = {**row, "id": row.get("custom_id")}
    if "messages" in body:
        messages = _messages(body["messages"])
        messages = _to_answer(messages, reading) if reading.turns is Turns.ALL else messages
        return Row(_id(named, reading, list(messages)), messages=messages, sampling=sampling)
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        ids = _token_ids(prompt)
        return Row(_id(named, reading, list(ids)), input_ids=ids, sampling=sampling)
    if not isinstance(prompt, str) or not prompt.strip():
        raise RowRejected("body has neither messages nor a prompt")
    return Row(_id(named, reading, prompt), text=prompt, sampling=sampling)


def _id(row: Mapping[str, Any], reading: RowReading, content: object) -> str:
    given = row.get("id")
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    if isinstance(given, str) and given:
        return given
    if given not in (None, ""):
        raise RowRejected(f"id must be a text or a whole number, found {type(given).__name__}")
    return content_id(reading.partition, content)


def content_id(partition: str, content: object) -> str:
    """Return the id of a row that has none: the same wherever it stands in the file."""
    canonical = json.dumps([partition, content], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _sampling(row: Mapping[str, Any]) -> dict[str, object]:
    given = row.get("sampling_params")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RowRejected("sampling_params is not an object")
    if given.get("n", 1) != 1:
        raise RowRejected("n above 1 is not supported: give every answer its own id")
    return dict(given)


def _token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise RowRejected("input_ids is not a list")
    if not value:
        raise RowRejected("the prompt is empty")
    if set(map(type, value)) != {int}:
        raise RowRejected("input_ids holds something that is not a whole number")
    if min(value) < 0:
        raise RowRejected(f"token id {min(value)} is negative")
    return tuple(value)


def _messages(value: object) -> Messages:
    if not isinstance(value, list) or not value:
        raise RowRejected("there are no messages")
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RowRejected("a message has no role")
        if isinstance(message.get("content"), list):
            raise RowRejected("a message has several parts: only text is supported")
    if not any(str(m.get("content") or "").strip() for m in value):
        raise RowRejected("the messages are empty")
    return tuple(value)


def _sharegpt(value: object) -> Messages:
    if not isinstance(value, list) or not value:
        raise RowRejected("there are no conversations")
    messages = []
    for turn in value:
        speaker = turn.get("from") if isinstance(turn, Mapping) else None
        if speaker not in _ROLES:
            raise RowRejected(f"a turn is from {speaker!r}, which is not known")
        messages.append({"role": _ROLES[speaker], "content": str(turn.get("value") or "")})
    return _messages(messages)


def _to_answer(messages: Messages, reading: RowReading) -> Messages:
    """Return the turns of a conversation without the answers that are made anew."""
    if reading.turns is Turns.ALL:
        return _without_answers(messages)
    kept = list(messages)
    while kept and kept[-1]["role"] == "assistant":
        kept.pop()
    if not kept:
        raise RowRejected("there is no turn to answer")
    return tuple(kept)


def _without_answers(messages: Messages) -> Messages:
    roles = {m["role"] for m in messages}
    if roles - {"system", "user", "assistant"} or any(m.get("tool_calls") for m in messages):
        raise RowRejected("it uses tools: its turns cannot be made again one by one")
    kept = [m for m in messages if m["role"] != "assistant"]
    while kept and kept[-1]["role"] != "user":
        kept.pop()
    if not kept:
        raise RowRejected("there is no turn to answer")
    return tuple(kept)


def count_turns(row: Row) -> int:
    """Return how many answers a conversation read with `Turns.ALL` gets."""
    return sum(m["role"] == "user" for m in row.messages or ())


def turn_of(row: Row, number: int, answers: Sequence[str]) -> Row:
    """Return one turn of a conversation read with `Turns.ALL`, the new answers before it put in.

    The last turn keeps the conversation's id; earlier ones are called `<id>#1`, `<id>#2`, …

    Args:
        row: The conversation.
        number: The turn, from 0.
        answers: Those of the turns before it; fewer where they are not there yet.
    """
    messages: list[Mapping[str, Any]] = []
    seen = 0
    for message in row.messages or ():
        messages.append(message)
        if message["role"] != "user":
            continue
        if seen == number:
            break
        if seen < len(answers):
            messages.append({"role": "assistant", "content": answers[seen]})
        seen += 1
    is_last = number == count_turns(row) - 1
    name = row.id if is_last else f"{row.id}#{number + 1}"
    return replace(row, id=name, messages=tuple(messages))
