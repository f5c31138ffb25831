"""Every failure is one line on stderr with the exit status of the contract, never a traceback."""

from pathlib import Path

import pytest
from tests.cli.conftest import Kvctl, Said

from kvctl.core.cli.main import run
from kvctl.core.cli.session import Session
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.wire import DaemonInfo


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bogus"], "'bogus'"),
        (["--bogus", "status"], "--bogus"),
        (["server"], "required: VERB"),
        (["server", "start"], "required: PRESET"),
        (["run", "throttle", "many"], "'many' is not a whole number"),
        (["run", "throttle", "-1"], "kvctl run throttle --help"),
        (["run", "weights", "B2"], "NAME=W"),
        (["run", "weights", "B2=x"], "NAME=W with a weight"),
        (["run", "pause", "--how", "politely"], "'politely'"),
        (["kill"], "say what to end"),
        (["kill", "1", "--leftovers"], "say what to end"),
        (["kill", "one"], "'one'"),
        (["tune"], "'tune'"),
        (["demo", "--scenario", "nothing"], "mission"),
        (["demo", "--speed", "0"], "factor"),
        (["presets", "show", "nothing"], "baseline"),
        (["run", "start", "missing.toml"], "missing.toml"),
        ([], "needs a terminal"),
        (["demo"], "needs a terminal"),
    ],
    ids=" ".join,
)
def test_wrong_words_exit_2(kvctl: Kvctl, words: list[str], says: str) -> None:
    assert says in kvctl(*words).one_error(2)


def test_no_daemon_exits_3(kvctl: Kvctl) -> None:
    assert "kvctl daemon start" in kvctl("daemon", "status").one_error(3)
    assert "kvctl daemon start" in kvctl("daemon", "status", "--json").one_error(3)


def test_a_state_folder_that_cannot_be_made_exits_3(kvctl: Kvctl, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = kvctl("--state-dir", str(tmp_path / "file" / "s"), "status").one_error(3)
    assert "--state-dir" in line


def test_a_rule_that_refuses_exits_4_and_is_named(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    said = kvctl("server", "start", "refused")
    assert "rule 1 refuses it: no fp8" in said.one_error(4)
    assert "kv-cache-dtype = fp8_e4m3" in said.out


@pytest.mark.parametrize(
    "words",
    [
        ["server", "stop"],
        ["server", "restart", "baseline"],
        ["kill", "--leftovers"],
        ["kill", "--gpu", "4"],
    ],
    ids=" ".join,
)
def test_destructive_verbs_need_yes_without_a_terminal(
    kvctl: Kvctl, kvctld: DaemonInfo, words: list[str]
) -> None:
    assert "--yes" in kvctl(*words).one_error(4)
    assert kvctl(*words, "--yes").status == 0


def test_a_crash_of_the_controller_is_one_line(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    assert "ZeroDivisionError: by request" in kvctl("server", "start", "crash").one_error(1)


def test_an_unexpected_error_leaves_its_traceback_in_a_file(
    paths: DaemonPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(session: Session) -> int:
        raise ZeroDivisionError("oops\x1b[2J")

    paths.state.mkdir(mode=0o700)
    monkeypatch.setattr("kvctl.core.cli.reading.status", broken)
    status = run(["--state-dir", str(paths.state), "status"], {})
    said = Said(status, *capsys.readouterr())
    log = paths.state / "kvctl-errors.log"
    line = said.one_error(1)
    assert "unexpected ZeroDivisionError: oops;" in line and str(log) in line
    assert 'raise ZeroDivisionError("oops' in log.read_text()


def test_a_broken_config_is_named_with_its_line(kvctl: Kvctl, paths: DaemonPaths) -> None:
    paths.config.mkdir(parents=True)
    (paths.config / "config.toml").write_text("[[rule]\n")
    assert "config.toml: not TOML" in kvctl("presets", "list").one_error(2)


def test_a_preset_that_extends_itself_is_refused(kvctl: Kvctl, paths: DaemonPaths) -> None:
    folder = paths.config / "presets"
    folder.mkdir(parents=True)
    (folder / "loop.toml").write_text('description = "x"\nextends = "loop"\n')
    assert "loop" in kvctl("presets", "show", "loop").one_error(2)


def test_an_unknown_gpu_or_server_is_told_with_those_there_are(
    kvctl: Kvctl, kvctld: DaemonInfo
) -> None:
    assert "there are: 0, 1" in kvctl("kill", "--gpu", "99", "--yes").one_error(2)
    assert "there is no server 'nope'" in kvctl("--server", "nope", "server", "forget").one_error(2)
    assert "there is no run 'nope'" in kvctl("run", "resume", "--run", "nope").one_error(2)


def test_an_option_counts_before_and_after_the_verb(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    before = kvctl("--server", "nope", "server", "cancel").one_error(2)
    after = kvctl("server", "cancel", "--server", "nope").one_error(2)
    assert before == after


def test_a_pid_that_is_not_there_is_told(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    assert "there is no process" in kvctl("kill", str(2**22 - 1), "--yes").one_error(1)
