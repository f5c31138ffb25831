"""`kvctl report`: one page to decide by, in Markdown."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Kvctl
from tests.cli.test_launches import FULL
from tests.fakes.plans import LAUNCH, point

from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.wire import DaemonInfo
from kvctl.core.servers.ledger import Ledger


@pytest.fixture
def measured(paths: DaemonPaths) -> None:
    ledger = Ledger(paths.state / "launches.jsonl")
    ledger.begin(LAUNCH)
    ledger.begin(FULL)


@pytest.mark.usefixtures("measured")
def test_the_memo_has_verdict_run_measurements_and_what_each_preset_would_bring(
    kvctl: Kvctl, kvctld: DaemonInfo
) -> None:
    out = kvctl("report").out
    titles = [line for line in out.splitlines() if line.startswith("#")]
    assert titles[1:4] == ["## The run", "## What was measured", "## What each preset would bring"]
    assert "| hicache-bf16 | bf16 | 0.88 | 48 GB a rank | 159K | B2 | 34 / 8 | 0.93 |" in out
    assert "| B2 |" in out and "rule on kv-cache-dtype" in out
    assert not any("989" in line for line in out.splitlines())  # a burst beside a steady window


def test_before_anything_was_measured_it_says_so(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    assert "Nothing yet: no window of a launch has been measured." in kvctl("report").out


def test_it_is_written_as_a_whole_or_not_at_all(
    kvctl: Kvctl, kvctld: DaemonInfo, tmp_path: Path
) -> None:
    target = tmp_path / "memo.md"
    target.write_text("older")
    assert kvctl("report", "-o", str(target)).out == f"the report is in {target}\n"
    assert target.read_text().startswith("# ") and target.read_text().endswith("prediction.\n")
    assert list(tmp_path.glob(".memo*")) == []
    missing = tmp_path / "none" / "memo.md"
    assert f"{missing}: cannot be written: No such file" in kvctl(
        "report", "-o", str(missing)
    ).one_error(1)


@pytest.mark.usefixtures("kvctld")
def test_a_bar_in_a_name_breaks_no_table(kvctl: Kvctl, paths: DaemonPaths) -> None:
    named = replace(FULL, preset="a|b", points=(point("B2", 34, 606, 600, 1260),))
    Ledger(paths.state / "launches.jsonl").begin(named)
    assert "| a\\|b |" in kvctl("report").out
