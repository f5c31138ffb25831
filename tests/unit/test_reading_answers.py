"""Answers read with a vocabulary at hand are read as without it."""

import json

import pytest

from kvctl.core.domain.runs.outcomes import Answer, Kind, judge
from kvctl.core.ports import GenerateReply, TransportFailed
from kvctl.core.runs.sending.token_ids import TokenIds
from kvctl.core.runs.sending.transport import _as_reply

META = '"meta_info":{"finish_reason":{"type":"stop"}}'
ODD = {
    "ids first": '{"output_ids":[4,5],"text":"a",%s}',
    "ids last": '{"text":"a",%s,"output_ids":[4,5]}',
    "blanks": '{"text": "a", %s, "output_ids": [4, 5]}',
    "blanks in the ids": '{"text":"a",%s,"output_ids":[4, 5]}',
    "no ids": '{"text":"a",%s}',
    "none": '{"text":"","output_ids":[],%s}',
    "null": '{"text":"a","output_ids":null,%s}',
    "twice": '{"output_ids":[1],"text":"a","output_ids":[4,5],%s}',
    "in another": '{"text":"a","output_ids":[4,5],%s,"more":{"output_ids":[9]}}',
    "only in another": '{"text":"a",%s,"more":{"output_ids":[9]}}',
    "null, and in another": '{"text":"a","output_ids":null,%s,"more":{"output_ids":[9]}}',
    "in the text": '{"output_ids":[4,5],%s,"text":"\\"output_ids\\":[9]"}',
    "end of another key": '{"output_ids":[4,5],%s,"text":"a","x\\"output_ids":[9]}',
    "an array in it": '{"text":"a","output_ids":[[4],5],%s}',
    "not closed": '{"text":"a","output_ids":[4,5,%s',
    "outside": '{"text":"a","output_ids":[4,100],%s}',
    "far outside": '{"text":"a","output_ids":[4,123456789012345678901],%s}',
    "below 0": '{"text":"a","output_ids":[4,-5],%s}',
    "minus 0": '{"text":"a","output_ids":[4,-0],%s}',
    "a fraction": '{"text":"a","output_ids":[4,5.0],%s}',
    "a text": '{"text":"a","output_ids":[4,"5"],%s}',
    "true": '{"text":"a","output_ids":[true],%s}',
    "leading 0": '{"text":"a","output_ids":[04],%s}',
    "a comma too many": '{"text":"a","output_ids":[4,,5],%s}',
    "two lines": '{"text":"a","output_ids":[4,\n5],%s}',
    "a tab": '{"text":"a","output_ids":[4,\t5],%s}',
    "half a surrogate": '{"text":"\\ud800","output_ids":[4,5],%s}',
    "our own mark": '{"text":"a","output_ids":-7640891576956012809,%s}',
}


def read(answer: bytes, vocabulary: int | None) -> object:
    """What is known and judged of an answer, or that it is none."""
    try:
        reply: GenerateReply = _as_reply(200, answer, vocabulary)
    except TransportFailed:
        return "failed"
    ids = reply.output_ids
    spelt = ids.json if isinstance(ids, TokenIds) else None
    judged = judge(Answer(200, reply.finish, ids, reply.text), 100)
    return reply.text, list(ids), spelt, reply.finish, reply.meta, judged


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_whatever_comes_is_read_the_same(text: str) -> None:
    answer = (text % META).encode()
    assert read(answer, 100) == read(answer, None)


def test_an_answer_as_sglang_spells_it_is_held_against_the_vocabulary_while_it_is_read() -> None:
    body = {"text": "ab", "output_ids": [0, 99], "meta_info": {"finish_reason": {"type": "stop"}}}
    reply = _as_reply(200, json.dumps(body, separators=(",", ":")).encode(), 100)
    ids = reply.output_ids
    assert isinstance(ids, TokenIds) and ids.json == b"[0,99]" and len(ids) == 2
    assert ids.are_below(100) and ids.are_below(101) and not ids.are_below(99)


def test_an_id_outside_the_vocabulary_is_still_found() -> None:
    reply = _as_reply(200, (ODD["outside"] % META).encode(), 100)
    judgement = judge(Answer(200, reply.finish, reply.output_ids, reply.text), 100)
    assert judgement.kind is Kind.BAD_TOKENS and "100" in judgement.detail
