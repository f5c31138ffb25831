"""An answer is judged by its finish reason, never by the HTTP status alone."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvctl.core.domain.runs.outcomes import (
    Answer,
    ForeignKind,
    Kind,
    continued_sampling,
    count_kinds,
    ids_outside,
    judge,
    judge_foreign,
    numerics_of,
    why_not_continued,
)

CASES = Path(__file__).parents[1] / "data" / "cases"


FULL = {"type": "abort", "message": "The request queue is full.", "status_code": 503}


def answer(
    finish: Mapping[str, object] | None, ids: tuple[int, ...] = (5, 6), text: str = "ab"
) -> Answer:
    return Answer(200, finish, ids, text, None)


@pytest.mark.parametrize(
    ("came", "kind"),
    [
        (answer({"type": "stop", "matched": 7}), Kind.GOOD),
        (answer({"type": "length", "length": 2}), Kind.CAPPED),
        (answer({"type": "abort", "message": "Aborted", "status_code": None}), Kind.ABORTED),
        (answer(FULL), Kind.QUEUE_FULL),
        (answer({"type": "abort", "message": "bad", "status_code": 400}), Kind.REFUSED),
        (answer({"type": "abort", "message": "no room", "status_code": 500}), Kind.SERVER_ERROR),
        (answer({"type": "stop", "matched": 7}, ids=(), text=""), Kind.EMPTY),
        (answer({"type": "stop", "matched": 7}, ids=(7,), text=""), Kind.EMPTY),
        (answer({"type": "length", "length": 0}, ids=(), text=""), Kind.EMPTY),
        (answer(None), Kind.UNFINISHED),
        (answer({"type": "weird"}), Kind.UNFINISHED),
        (answer({"type": "stop"}, ids=(5, 320)), Kind.BAD_TOKENS),
    ],
)  # fmt: skip
def test_a_200_is_judged_by_its_finish_reason(came: Answer, kind: Kind) -> None:
    assert judge(came, vocabulary=320).kind is kind


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (503, "The request queue is full.", Kind.QUEUE_FULL),
        (429, "slow down", Kind.QUEUE_FULL),
        (400, "The input is longer than the model's context length", Kind.REFUSED),
        (400, "Duplicate request ID detected: x", Kind.DUPLICATE_RID),
        (401, "Unauthorized", Kind.DENIED),
        (404, "Not Found", Kind.DENIED),
        (499, "", Kind.ABORTED),
        (500, "boom", Kind.SERVER_ERROR),
        (502, "", Kind.SERVER_ERROR),
    ],
)
def test_an_error_status_says_whose_fault_it_is(status: int, error: str, kind: Kind) -> None:
    assert judge(Answer(status, None, (), None, error)).kind is kind


def test_only_stop_and_length_are_accepted() -> None:
    assert {kind for kind in Kind if kind.is_accepted} == {Kind.GOOD, Kind.CAPPED}


def test_being_turned_away_never_uses_up_an_attempt() -> None:
    free = {Kind.QUEUE_FULL, Kind.ABORTED, Kind.DENIED, Kind.DUPLICATE_RID, Kind.ENGINE_GONE}
    assert not any(kind.is_counted for kind in free)


def test_the_recorded_foreign_answers_are_two_of_ten_good() -> None:
    lines = (CASES / "o16-finish-reasons.jsonl").read_text().splitlines()
    kinds = {(r := json.loads(line))["id"]: judge_foreign(r) for line in lines}
    assert [i for i, kind in kinds.items() if kind is ForeignKind.GOOD] == ["r001", "r010"]
    assert count_kinds(kinds.values()) == Counter(
        {
            ForeignKind.GOOD: 2,
            ForeignKind.TRUNCATED: 2,
            ForeignKind.ABORTED: 2,
            ForeignKind.EMPTY_LENGTH: 1,
            ForeignKind.EMPTY_STOP: 1,
            ForeignKind.UNFINISHED: 1,
            ForeignKind.FAILED: 1,
        }
    )


def test_ids_outside_the_vocabulary_are_found_before_they_end_a_server() -> None:
    assert ids_outside([0, 319, 320, -1], 320) == (320, -1)
    assert ids_outside([10**9], None) == ()


@pytest.mark.parametrize(
    ("sampling", "may"),
    [
        ({"temperature": 0.7, "max_new_tokens": 100, "stop_token_ids": [7]}, True),
        ({"repetition_penalty": 1.0, "frequency_penalty": 0.0, "stop": []}, True),
        ({"repetition_penalty": 1.1}, False),
        ({"stop": ["\n\n"]}, False),
        ({"regex": "a+"}, False),
        ({"json_schema": "{}"}, False),
    ],
)
def test_a_cut_answer_goes_on_only_where_the_cut_changes_nothing(
    sampling: dict[str, object], may: bool
) -> None:
    assert (why_not_continued(sampling) is None) is may


def test_the_rest_of_an_answer_has_the_rest_of_the_budget() -> None:
    assert continued_sampling({"max_new_tokens": 100, "top_p": 0.9}, 30) == {
        "max_new_tokens": 70,
        "top_p": 0.9,
    }
    assert continued_sampling({}, 30)["max_new_tokens"] == 98
    assert continued_sampling({"max_new_tokens": 10}, 30)["max_new_tokens"] == 0


def test_numerics_differ_by_kv_dtype_and_not_by_port() -> None:
    base = {"kv_cache_dtype": "auto", "port": 1, "model_path": "m"}
    assert numerics_of(base) == numerics_of({**base, "port": 2, "mem_fraction_static": 0.9})
    assert numerics_of(base) != numerics_of({**base, "kv_cache_dtype": "fp8_e4m3"})
    assert numerics_of(base, "1") != numerics_of(base, "2")
