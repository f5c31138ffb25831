"""The ledger on disk: windows kept, the file bounded, nothing lost when it is rewritten."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kvctl.core.domain.capacity.prediction import Interval
from kvctl.core.domain.launches.launch import LaunchRecord
from kvctl.core.domain.launches.operating_point import OperatingPoint
from kvctl.core.servers import ledger as module
from kvctl.core.servers.ledger import KEPT, Ledger

RECORD = LaunchRecord(id="a", preset="p", wall=1.0, argv=("x",), env=(("A", "1"),), pid=7)
POINT = OperatingPoint("B2", "p", 38, 8, 0.93, 640, 631, 60, True, launch="a", began_wall=5.0)


def filled(path: Path) -> Ledger:
    ledger = Ledger(path / "launches.jsonl")
    ledger.begin(RECORD)
    ledger.predicted("a", Interval(90, 100, 110), "p (earlier)")
    ledger.ready("a", 620.5, 159_277, 5.47, "0.5.23")
    ledger.measured("a", {"model": "/m", "flags": [("tp-size", 8)], "stages": [("weights", 2.5)]})
    return ledger


def test_everything_of_a_launch_comes_back(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    ledger.point("a", POINT)
    (record,) = Ledger(ledger.path).records()
    assert record.predicted == Interval(90, 100, 110)
    assert record.flags == (("tp-size", 8),)
    assert record.stages == (("weights", 2.5),)
    assert record.points == (POINT,)
    assert ledger.record_of("a") == record
    assert ledger.record_of("b") is None


def test_a_flag_with_a_line_separator_in_it_comes_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "launches.jsonl")
    ledger.begin(replace(RECORD, argv=("x", "--served-model-name", "a\u2028b")))
    (record,) = Ledger(ledger.path).records()
    assert record.argv[2] == "a\u2028b"


def test_a_long_ledger_is_rewritten_with_everything_it_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = filled(tmp_path)
    for minute in range(100):
        ledger.point("a", replace(POINT, window_s=60.0 * (minute + 1)))
    before = ledger.records()
    lines = len(ledger.path.read_bytes().splitlines())
    monkeypatch.setattr(module, "REWRITE_BYTES", 1000)
    ledger.ended("a", 99.0, 0, "stopped")
    assert lines > 100
    assert len(ledger.path.read_bytes().splitlines()) == 1
    (record,) = Ledger(ledger.path).records()
    assert record == replace(before[0], ended_wall=99.0, exit_code=0, cause="stopped")
    assert record.points[0].window_s == 6000
    assert os.stat(ledger.path).st_mode & 0o777 == 0o600


def test_a_rewritten_ledger_goes_on_and_keeps_the_newest_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "launches.jsonl")
    monkeypatch.setattr(module, "REWRITE_BYTES", 1000)
    for number in range(KEPT + 30):
        ledger.begin(replace(RECORD, id=str(number)))
        ledger.ended(str(number), float(number), 0, "stopped")
    records = ledger.records()
    assert records[-1].id == str(KEPT + 29)
    assert records[-1].cause == "stopped"
    assert len(records) <= 2 * KEPT + 30
    assert ledger.path.stat().st_size < 3 * KEPT * len(json.dumps(RECORD.argv)) * 100


def test_a_disk_that_is_full_while_it_is_rewritten_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = filled(tmp_path)
    ledger.point("a", POINT)
    before = ledger.records()
    ledger.path.with_suffix(".tmp").mkdir()  # what would be written cannot be
    monkeypatch.setattr(module, "REWRITE_BYTES", 10)
    ledger.point("a", replace(POINT, window_s=120))
    (record,) = Ledger(ledger.path).records()
    assert record == replace(before[0], points=(replace(POINT, window_s=120),))


def test_what_another_process_appends_is_seen(tmp_path: Path) -> None:
    ledger = filled(tmp_path)
    assert len(ledger.records()) == 1
    Ledger(ledger.path).begin(replace(RECORD, id="b"))
    assert [record.id for record in ledger.records()] == ["a", "b"]
