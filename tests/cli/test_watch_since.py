"""`kvctl watch --since`: the kept history first, then what is now."""

import argparse
import json
import time
from datetime import datetime

import pytest
from tests.cli.conftest import Kvctl
from tests.tui.mission import STEADY

from kvctl.core.cli.moments import since
from kvctl.core.controller.history import History
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.wire import DaemonInfo

NOON = datetime(2026, 11, 29, 12, 0, 0).timestamp()


@pytest.mark.parametrize(
    ("text", "ago"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("11:00", 3600), ("11:59:30", 30),
     ("12:30", 84600), ("2026-11-29T10:00", 7200), ("2026-11-29", 43200)],
)  # fmt: skip
def test_a_moment_is_read_as_an_operator_types_it(text: str, ago: float) -> None:
    assert since(text)(NOON) == NOON - ago


@pytest.mark.parametrize("text", ["", "soon", "-5m", "25:00", "5", "5 m", "nan", "2026-13-01"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time such as"):
        since(text)


def test_history_comes_first_a_line_a_step_and_unknown_is_not_zero(
    kvctl: Kvctl, kvctld: DaemonInfo, paths: DaemonPaths
) -> None:
    history = History(paths.state)
    for second in range(6):
        history.record(STEADY.wall - 100 + second, {"pool": 0.934, "generation": None})
    history.record(STEADY.wall - 60, {"pool": 0.5, "generation": 981.2})
    history.flush()
    said = kvctl("watch", "--since", "2m", "--json", "--count", "1")
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert [row.get("past") for row in rows] == [{"pool": 0.934, "generation": None}] * 6 + [None]
    assert rows[-1]["host"] == STEADY.host
    assert rows[0]["step_s"] == 1.0
    lines = kvctl("watch", "--since", "2m", "--count", "1").out.splitlines()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(rows[0]["wall"]))
    assert lines[0] == f"{stamp}  pool 0.93  generation –"
    assert len(kvctl("watch", "--since", "97s", "--count", "1").out.splitlines()) < len(lines)


def test_a_bad_moment_is_one_line_and_exit_2(kvctl: Kvctl) -> None:
    assert "'soon' is not a time" in kvctl("watch", "--since", "soon").one_error(2)


def test_each_servers_history_is_there_and_one_is_shown(
    kvctl: Kvctl, kvctld: DaemonInfo, paths: DaemonPaths
) -> None:
    server = STEADY.servers[0].name
    history = History(paths.state)
    values = {f"{server}/pool": 0.93, "other/pool": 0.11, "effective": 631.0}
    for second in range(3):
        history.record(STEADY.wall - 60 + second, values)
    history.flush()
    shown = kvctl("watch", "--since", "2m", "--count", "1").out.splitlines()[0]
    assert shown.endswith("pool 0.93  effective 631 tok/s")
    other = kvctl("watch", "--since", "2m", "--count", "1", "--server", "other").out
    assert other.splitlines()[0].endswith("pool 0.11  effective 631 tok/s")
    document = kvctl("watch", "--since", "2m", "--count", "1", "--json").out.splitlines()[0]
    row = json.loads(document)
    assert row["past"] == {"pool": 0.93, "effective": 631.0}
    assert row["servers"] == {server: {"pool": 0.93}, "other": {"pool": 0.11}}
