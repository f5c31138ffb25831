"""The panel's life in a real terminal: opening, leaving, hanging up, odd sizes and locales."""

import os
import platform
import signal
import time
from pathlib import Path

import psutil
import pytest
from tests.e2e.conftest import OpenPanel
from tests.e2e.terminal import Terminal
from tests.tui.mission import STEADY

from kvctl.core.daemon import spawn
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.wire import DaemonInfo

pytestmark = pytest.mark.terminal

HOST = STEADY.host


def test_the_panel_shows_the_picture_and_q_gives_the_terminal_back(panel: OpenPanel) -> None:
    terminal = panel()
    terminal.wait_for(HOST)
    terminal.wait_for(STEADY.verdicts[0].sentence[:20])
    assert terminal.is_raw()
    terminal.send("q")
    assert terminal.wait_exit() == 0
    assert not terminal.is_raw()
    assert b"\x1b[?1049l" in terminal.received


def test_leaving_the_panel_stops_nothing(
    panel: OpenPanel, kvctld: DaemonInfo, paths: DaemonPaths
) -> None:
    terminal = panel()
    terminal.wait_for(HOST)
    terminal.send("q")
    terminal.wait_exit()
    after = spawn.running(paths)
    assert after is not None and after.pid == kvctld.pid


@pytest.mark.parametrize("how", ["hang up", "SIGHUP", "SIGTERM"])
def test_a_lost_terminal_ends_the_panel_within_a_second_and_nothing_else(
    panel: OpenPanel, kvctld: DaemonInfo, paths: DaemonPaths, tmp_path: Path, how: str
) -> None:
    terminal = panel(TMPDIR=str(tmp_path))
    terminal.wait_for(HOST)
    if how == "hang up":
        terminal.hang_up()
    else:
        os.kill(terminal.pid, signal.Signals[how])
    begin = time.monotonic()
    terminal.wait_exit()
    assert time.monotonic() - begin < 3.0  # 1 s on a quiet machine
    errors = [*tmp_path.rglob("*errors.log")]
    assert not errors, errors[0].read_text()
    if how != "hang up":
        assert not terminal.is_raw()
        assert "Traceback" not in terminal.text
    after = spawn.running(paths)
    assert after is not None and after.pid == kvctld.pid


@pytest.mark.parametrize(("columns", "rows"), [(120, 40), (80, 24), (40, 10), (20, 5), (200, 60)])
def test_it_opens_at_any_size(panel: OpenPanel, columns: int, rows: int) -> None:
    terminal = panel(columns=columns, rows=rows)
    terminal.wait_until(lambda: bool(terminal.text.strip()), "anything drawn")
    terminal.send("q")
    assert terminal.wait_exit() == 0


def test_twenty_quick_resizes_leave_it_whole(panel: OpenPanel) -> None:
    terminal = panel()
    terminal.wait_for(HOST)
    for number in range(20):
        terminal.resize(20 + 10 * (number % 12), 5 + 2 * (number % 18))
    terminal.resize(120, 40)
    terminal.wait_for(HOST)
    terminal.send("q")
    assert terminal.wait_exit() == 0


@pytest.mark.parametrize(
    "variables",
    [
        {"TERM": "xterm"},
        {"TERM": "screen"},
        {"TERM": "tmux-256color"},
        {"NO_COLOR": "1"},
        {"LANG": "C"},
        {"LC_ALL": "C"},
    ],
    ids=str,
)
def test_it_opens_in_any_terminal_and_locale(panel: OpenPanel, variables: dict[str, str]) -> None:
    terminal = panel(**variables)
    terminal.wait_for(HOST)
    if "C" in variables.values():
        terminal.wait_until(terminal.text.isascii, "ASCII only")
    terminal.send("q")
    assert terminal.wait_exit() == 0


def test_a_dumb_terminal_is_refused_in_one_line(panel: OpenPanel) -> None:
    terminal = panel(TERM="dumb")
    assert terminal.wait_exit() == 2
    assert "kvctl status" in terminal.text and "Traceback" not in terminal.text


def test_without_colour_no_cell_hides_its_text(panel: OpenPanel) -> None:
    terminal = panel(NO_COLOR="1")
    terminal.wait_for(HOST)
    cells = [cell for row in terminal.screen.buffer.values() for cell in row.values()]
    hidden = [c for c in cells if c.data.strip() and c.fg == c.bg and c.fg != "default"]
    assert not hidden


def test_after_a_crash_of_kvctld_the_panel_starts_another_and_goes_on(
    panel: OpenPanel, kvctld: DaemonInfo, paths: DaemonPaths
) -> None:
    terminal = panel(KVCTL_FIND="0")
    terminal.wait_for(HOST)
    os.kill(kvctld.pid, signal.SIGKILL)
    # The one that follows is the real kvctld, so the picture is that of this host.
    terminal.wait_gone(HOST)
    terminal.wait_for(platform.node()[:8])
    after = spawn.running(paths)
    assert after is not None and after.pid != kvctld.pid
    terminal.send("q")
    assert terminal.wait_exit() == 0


def test_an_idle_panel_is_quiet(panel: OpenPanel) -> None:
    """Under 3 kB a second to the terminal and a small share of a core when nothing changes."""
    terminal = panel()
    terminal.wait_for(HOST)
    settle(terminal, 2.0)
    before, cpu = len(terminal.received), psutil.Process(terminal.pid).cpu_times()
    settle(terminal, 4.0)
    after = psutil.Process(terminal.pid).cpu_times()
    used = after.user + after.system - cpu.user - cpu.system
    assert len(terminal.received) - before < 4 * 3000
    assert used / 4.0 < 0.15, "share of a core"


def settle(terminal: Terminal, seconds: float) -> None:
    """Read whatever comes for that long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        terminal.wait_until(lambda: time.monotonic() >= end, "the time", seconds + 5)
