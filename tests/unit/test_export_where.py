"""Conditions of an export: what is allowed means what it says, the rest is one clear line."""

import pytest

from kvctl.core.runs.export.where import NUMBERS, TEXTS, WhereError, parse_where

RECORD: dict[str, object] = {
    **dict.fromkeys((*TEXTS, *NUMBERS)),
    "id": "r001",
    "partition": "B2",
    "finish": "stop",
    "source": "run",
    "attempt": 0,
    "completion_tokens": 4000,
    "e2e_latency": 12.5,
    "segments": 1,
}


@pytest.mark.parametrize(
    "text",
    [
        "finish == 'stop' and completion_tokens < 8000",
        "finish != 'length'",
        "0 < completion_tokens <= 4_000",
        "partition in ('B1', 'B2')",
        "partition not in ['B1']",
        "not (finish == 'length' or attempt > 0)",
        "cached_tokens == None",
        "attempt > -1",
        "completion_tokens != prompt_tokens or True == 1",
        "id >= 'r001'",
        " e2e_latency < 1e9 ",
        "finish in {'stop'} and source == 'run'",
    ],
)
def test_a_condition_that_is_met(text: str) -> None:
    assert parse_where(text)(RECORD)


@pytest.mark.parametrize(
    "text",
    [
        "finish == 'length'",
        "completion_tokens > 4000",
        "cached_tokens < 5",
        "cached_tokens != 5",
        "cached_tokens in (1, 2)",
        "finish != None and completion_tokens == None",
        "partition == 'B2' and not finish == 'stop'",
    ],
)
def test_a_condition_that_is_not_met(text: str) -> None:
    assert not parse_where(text)(RECORD)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("finish = 'stop'", "use == to compare"),
        ("finish == stop", "there is no field 'stop'"),
        ("finsh == 'stop'", "there is no field 'finsh'"),
        ("completion_tokens < '8000'", "one is a text, one a number"),
        ("partition in ('B1', 2)", "one is a text, one a number"),
        ("finish", "finish is no comparison"),
        ("True", "True is no comparison"),
        ("1 + 1 == 2", "neither a field nor a plain value"),
        ("len(id) > 3", "neither a field nor a plain value"),
        ("id.upper() == 'A'", "neither a field nor a plain value"),
        ("__import__('os').system('true')", "is no comparison"),
        ("(lambda: 1)() == 1", "neither a field nor a plain value"),
        ("[x for x in id] == 'a'", "neither a field nor a plain value"),
        ("id in 'abc'", "is no list"),
        ("finish is 'stop'", "cannot be compared with `is`"),
        ("None < attempt", "can only be compared with == and !="),
        ("finish == b'stop'", "neither a field nor a plain value"),
        ("", "not a condition"),
        ("finish ==", "not a condition"),
        ("finish == 'a'; attempt", "not a condition"),
        ("\0", "not a condition"),
        ("(" * 900, "not a condition"),
        ("a" * 3000, "longer than"),
    ],
)
def test_what_is_not_allowed_is_told_in_one_line_with_what_is(text: str, says: str) -> None:
    with pytest.raises(WhereError) as caught:
        parse_where(text)
    line = str(caught.value)
    assert says in line and "completion_tokens" in line and "and or not" in line
    assert len(line.splitlines()) == 1


def test_a_foreign_value_of_another_type_matches_nothing() -> None:
    meant = parse_where("completion_tokens > 1")
    assert not meant({**RECORD, "completion_tokens": ["many"]})
