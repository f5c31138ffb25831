"""The wire keeps what it carries and refuses what it does not know."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.controller import plain_snapshot

from kvctl.core.controller.commands import COMMANDS, Command, Outcome, Throttle
from kvctl.core.daemon.wire import (
    DaemonInfo,
    Goodbye,
    WireMismatch,
    decode,
    decode_command,
    encode,
    encode_command,
)
from kvctl.core.domain.errors import UsageError
from kvctl.core.domain.events import Event
from kvctl.core.domain.snapshot import Snapshot

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
number = st.integers(-(2**53), 2**53)


@pytest.fixture(scope="module", autouse=True)
def _json_shaped_values() -> None:
    st.register_type_strategy(str, text)
    st.register_type_strategy(float, finite)
    st.register_type_strategy(int, number)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_snapshot_comes_back_equal(data: st.DataObject) -> None:
    snapshot = data.draw(st.from_type(Snapshot))
    assert decode(encode(snapshot), Snapshot) == snapshot


@pytest.mark.parametrize("kind", COMMANDS.values(), ids=COMMANDS.keys())
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_command_comes_back_equal(kind: type[Command], data: st.DataObject) -> None:
    command = data.draw(st.from_type(kind))
    assert decode_command(encode_command(command)) == command


def test_outcomes_events_and_goodbyes_come_back_equal() -> None:
    outcome = Outcome(4, "refused", ("GPU 4: 1 holder",), {"pids": [1, 2], "free": None})
    event = Event(1.0, 2.0, "killed", "pid 7 is gone", "c1")
    assert decode(encode(outcome), Outcome) == outcome
    assert decode(encode(event), Event) == event
    assert decode(encode(Goodbye("idle")), Goodbye) == Goodbye("idle")


def test_a_lone_surrogate_arrives_as_a_replacement_character() -> None:
    event = Event(1.0, 2.0, "log", "title \udcff end")
    assert decode(encode(event), Event).text == "title \ufffd end"


def test_a_message_is_one_line_whatever_its_text() -> None:
    assert b"\n" not in encode(Event(1.0, 2.0, "log", "a\nb\r\x1b[2J"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"{}", "unknown command None"),
        (b'{"command": "launch-missiles"}', "unknown command 'launch-missiles'"),
        (b'{"command": "throttle", "tarket": 3}', "no field 'tarket'; its fields: target"),
        (b'{"command": "throttle", "target": "many"}', "command throttle: Expected"),
        (b'{"command": "throttle"}', "missing required field"),
        (b'{"command": "run-pause", "how": "politely"}', "Invalid enum value"),
        (b'{"v": 99, "command": "refresh"}', "of protocol version 99"),
    ],
)
def test_a_command_that_is_not_understood_is_refused_in_one_line(body: bytes, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode_command(body)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_command_needs_no_version() -> None:
    assert decode_command(b'{"command": "throttle", "target": null}') == Throttle(None)


def test_another_protocol_version_names_the_remedy() -> None:
    line = json.dumps({"v": 2, "snapshot": {}}).encode()
    with pytest.raises(WireMismatch, match="kvctl daemon stop"):
        decode(line, Snapshot)


@pytest.mark.parametrize("line", [b"", b"nonsense", b"{}", b'{"v":1}', b'{"v":1,"snapshot":{}}'])
def test_an_answer_that_is_no_message_is_a_mismatch(line: bytes) -> None:
    with pytest.raises(WireMismatch):
        decode(line, Snapshot)


def test_keys_a_newer_kvctld_adds_are_skipped() -> None:
    words = json.loads(encode(plain_snapshot()))
    words["snapshot"]["weather"] = "fair"
    assert decode(json.dumps(words).encode(), Snapshot) == plain_snapshot()


def test_another_content_than_asked_for_is_a_mismatch() -> None:
    with pytest.raises(WireMismatch, match="Goodbye for DaemonInfo"):
        decode(encode(Goodbye("idle")), DaemonInfo)
