"""Ids of an answer that are counted and written down without being read."""

import hashlib

import msgspec
import pytest

from kvctl.core.runs.outputs.records import prompt_hash
from kvctl.core.runs.sending.token_ids import TokenIds


def test_they_are_counted_and_read_like_any_sequence() -> None:
    ids = TokenIds(b"[5,0,128255]")
    assert len(ids) == 3 and list(ids) == [5, 0, 128255]
    assert ids[-1] == 128255 and ids[:2] == [5, 0] and ids[0] in ids
    assert ids == (5, 0, 128255) and ids != (5, 0)


@pytest.mark.parametrize("text", [b"[]", b"[ ]"])
def test_none_are_none(text: bytes) -> None:
    assert len(TokenIds(text)) == 0 and not TokenIds(text) and list(TokenIds(text)) == []


def test_one_is_one_and_blanks_between_are_allowed() -> None:
    assert len(TokenIds(b"[7]")) == 1
    assert list(TokenIds(b"[1, 2, 3]")) == [1, 2, 3] and len(TokenIds(b"[1, 2, 3]")) == 3


@pytest.mark.parametrize(
    "text", [b"null", b"[[1]]", b"[-1]", b"[1.5]", b'["1"]', b"[1,\n2]", b"{}"]
)
def test_what_is_no_such_array_or_no_single_line_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not an array of token ids"):
        TokenIds(text)


def test_a_vocabulary_is_held_against_all_of_them() -> None:
    ids = TokenIds(b"[5,0,128255]")
    assert ids.are_below(128256) and not ids.are_below(128255)


def test_they_are_written_as_they_came() -> None:
    ids = TokenIds(b"[5,0,128255]")
    line = msgspec.json.encode({"output_ids": msgspec.Raw(ids.json)})
    assert line == b'{"output_ids":[5,0,128255]}'


def test_the_hash_of_a_prompt_of_ids_is_that_of_its_list_as_json_spells_it() -> None:
    ids = (5, 0, 128255)
    assert prompt_hash(None, ids) == hashlib.sha256(b"[5, 0, 128255]").hexdigest()
    assert prompt_hash(None, ()) == hashlib.sha256(b"[]").hexdigest()
    assert prompt_hash("5, 0", None) == hashlib.sha256(b"5, 0").hexdigest()
