"""The formats of an export: one accepted answer in, one JSON line out.

ids is the source of truth: text that is tokenized again does not always give the sampled ids.
preformatted is the whole templated string with its special tokens (SpecForge: `is_preformatted:
true`); messages and conversations hold the turns of the input and the answer as the last one. A
conversation that was made turn by turn is one line of these three, with all its new answers.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from kvctl.core.runs.inputs.rows import Row, RowRejected
from kvctl.core.runs.inputs.templates import NEEDS_TEMPLATES, Renderer
from kvctl.core.runs.outputs.records import line_of, whole_text

_TEXT_KEYS = ("text", "content", "response", "output")
"""Where clients keep the text of an answer."""


class ExportFormat(StrEnum):
    """What a line of an export holds."""

    IDS = "ids"
    """`id`, `partition`, `input_ids`, `output_ids`."""
    TEXT = "text"
    """`id`, `partition`, `prompt`, `response`: each as text."""
    PREFORMATTED = "preformatted"
    """`id`, `text`: prompt and answer as one string."""
    MESSAGES = "messages"
    """`id`, `messages`; `tools` where the input has them."""
    CONVERSATIONS = "conversations"
    """`id`, `conversations`: the same turns under SpecForge's name."""

    @property
    def needs_turns(self) -> bool:
        """Whether the input's own messages are in it."""
        return self in (ExportFormat.MESSAGES, ExportFormat.CONVERSATIONS)

    @property
    def is_whole(self) -> bool:
        """Whether a line holds a whole conversation, the earlier turns with it."""
        return self.needs_turns or self is ExportFormat.PREFORMATTED


class NotExportable(Exception):
    """An answer does not hold what a format needs; the message says what."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """One accepted answer as it lies on disk; None is not known."""

    id: str
    partition: str
    input_ids: msgspec.Raw | None
    """The prompt's token ids as JSON."""
    prompt: str | None
    """The prompt where it was sent as text."""
    output_ids: msgspec.Raw | None
    text: str | None


RowSource: TypeAlias = Callable[[], Row]
"""Reads the input row of an answer; raises NotExportable where there is none."""
Shape: TypeAlias = Callable[[StoredAnswer, RowSource, Renderer | None], bytes]


class _Record(msgspec.Struct):
    """The parts of a record that are exported, ids left as they are."""

    id: str
    partition: str
    input_ids: msgspec.Raw = msgspec.Raw(b"null")
    prompt: str | None = None
    output_ids: msgspec.Raw = msgspec.Raw(b"null")
    text: str | None = None


_decode_record = msgspec.json.Decoder(_Record).decode


def own_answer(line: bytes) -> StoredAnswer:
    """Return a record of kvctl's own. Raises msgspec's errors if it is none."""
    found = _decode_record(line)
    return StoredAnswer(
        found.id,
        found.partition,
        _given(found.input_ids),
        found.prompt,
        _given(found.output_ids),
        found.text,
    )


def foreign_answer(record: Mapping[str, Any], partition: str) -> StoredAnswer:
    """Return a record of a `done_from` file; another client's prompt is in the input alone."""
    prompt = record.get("prompt") if isinstance(record.get("v"), int) else None
    texts = (record.get(key) for key in _TEXT_KEYS)
    return StoredAnswer(
        str(record.get("id")),
        partition,
        _ids(record.get("input_ids")),
        prompt if isinstance(prompt, str) else None,
        _ids(record.get("output_ids")),
        next((str(whole_text(t)) for t in texts if isinstance(t, str) and t), None),
    )


def _given(raw: msgspec.Raw) -> msgspec.Raw | None:
    return None if bytes(raw) == b"null" else raw


def _ids(value: object) -> msgspec.Raw | None:
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        return None
    return msgspec.Raw(msgspec.json.encode(value))


def _as_ids(answer: StoredAnswer, _row: RowSource, _renderer: Renderer | None) -> bytes:
    if answer.output_ids is None:
        raise NotExportable("its answer was kept as text, without token ids")
    record: dict[str, object] = {
        "id": answer.id,
        "partition": answer.partition,
        "input_ids": answer.input_ids,
        "output_ids": answer.output_ids,
    }
    if answer.input_ids is None:
        if answer.prompt is None:
            raise NotExportable("the token ids of its prompt were not kept")
        record["prompt"] = answer.prompt
    return msgspec.json.encode(record) + b"\n"


def _as_text(answer: StoredAnswer, row: RowSource, renderer: Renderer | None) -> bytes:
    prompt = answer.prompt
    if prompt is None and answer.input_ids is not None:
        if renderer is None:
            raise NotExportable(f"its prompt was sent as token ids: {_NEEDS_TOKENIZER}")
        prompt = renderer.spell(_list(answer.input_ids))
    if prompt is None:
        prompt = _prompt_text(row(), renderer)
    response = answer_text(answer, renderer)
    record = {"id": answer.id, "partition": answer.partition, "prompt": prompt}
    return line_of({**record, "response": response})


def _as_preformatted(answer: StoredAnswer, row: RowSource, renderer: Renderer | None) -> bytes:
    return line_of({"id": answer.id, "text": _whole_text(answer, row, renderer)})


def _whole_text(answer: StoredAnswer, row: RowSource, renderer: Renderer | None) -> str:
    if answer.prompt is not None:
        return answer.prompt + answer_text(answer, renderer)
    if answer.input_ids is not None:
        prompt = _list(answer.input_ids)
        if renderer is None:
            raise NotExportable(f"its prompt was sent as token ids: {_NEEDS_TOKENIZER}")
        if answer.output_ids is not None:
            # In one go: the end token is in it, and a character across the seam stays whole.
            return renderer.spell([*prompt, *_list(answer.output_ids)])
        return renderer.spell(prompt) + answer_text(answer, renderer)
    return _prompt_text(row(), renderer) + answer_text(answer, renderer)


_NEEDS_TOKENIZER = (
    f"its text needs {NEEDS_TEMPLATES} and the model's folder as `tokenizer` in the run file"
)


def _prompt_text(row: Row, renderer: Renderer | None) -> str:
    if row.text is not None:
        return row.text
    if renderer is None:
        raise NotExportable(f"its prompt has no text: {_NEEDS_TOKENIZER}")
    if row.input_ids is not None:
        return renderer.spell(row.input_ids)
    try:
        return renderer.spell(renderer.render(row.messages or (), row.tools))
    except RowRejected as problem:
        raise NotExportable(str(problem)) from None


def answer_text(answer: StoredAnswer, renderer: Renderer | None) -> str:
    """Return the text of an answer. Raises NotExportable where nothing can spell it."""
    if answer.text is not None:
        return answer.text
    if answer.output_ids is None:
        raise NotExportable("it has neither text nor token ids")
    if renderer is None:
        raise NotExportable(f"its answer is token ids: {_NEEDS_TOKENIZER}")
    return renderer.decode(_list(answer.output_ids))


def _as_turns(key: str) -> Shape:
    def shape(answer: StoredAnswer, row: RowSource, renderer: Renderer | None) -> bytes:
        given = row()
        if given.messages is None:
            raise NotExportable("its prompt is raw text or token ids, not messages")
        last = {"role": "assistant", "content": answer_text(answer, renderer)}
        record: dict[str, object] = {"id": answer.id, key: [*given.messages, last]}
        if given.tools:
            record["tools"] = list(given.tools)
        return line_of(record)

    return shape


def _list(raw: msgspec.Raw) -> list[int]:
    found: list[int] = msgspec.json.decode(raw, type=list[int])
    return found


SHAPES: dict[ExportFormat, Shape] = {
    ExportFormat.IDS: _as_ids,
    ExportFormat.TEXT: _as_text,
    ExportFormat.PREFORMATTED: _as_preformatted,
    ExportFormat.MESSAGES: _as_turns("messages"),
    ExportFormat.CONVERSATIONS: _as_turns("conversations"),
}


def columns_of(format: ExportFormat) -> Mapping[str, str]:
    """Return the columns of a table of such lines: text, ids, turns or json by name."""
    return _COLUMNS[format]


_COLUMNS: dict[ExportFormat, dict[str, str]] = {
    ExportFormat.IDS: {
        "id": "text",
        "partition": "text",
        "input_ids": "ids",
        "output_ids": "ids",
        "prompt": "text",
    },
    ExportFormat.TEXT: {"id": "text", "partition": "text", "prompt": "text", "response": "text"},
    ExportFormat.PREFORMATTED: {"id": "text", "text": "text"},
    ExportFormat.MESSAGES: {"id": "text", "messages": "turns", "tools": "json"},
    ExportFormat.CONVERSATIONS: {"id": "text", "conversations": "turns", "tools": "json"},
}


def ascii_line(line: bytes) -> bytes:
    """Return a line that cannot control the terminal it is shown on."""
    return json.dumps(json.loads(line)).encode() + b"\n"
