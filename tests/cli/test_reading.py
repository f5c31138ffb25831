"""What the reading verbs print: documents that scripts rely on, and text for people."""

import json
import re
import subprocess

import pytest
from tests.cli.conftest import KVCTL, Kvctl
from tests.tui.mission import STEADY

from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.wire import DaemonInfo


def test_version_is_one_line(kvctl: Kvctl) -> None:
    assert re.fullmatch(r"kvctl \d+\.\d+\.\d+\n", kvctl("--version").out)


def test_daemon_status_has_pid_socket_and_version(
    kvctl: Kvctl, kvctld: DaemonInfo, paths: DaemonPaths
) -> None:
    document = json.loads(kvctl("daemon", "status", "--json").out)
    assert document["pid"] == kvctld.pid
    assert document["socket"] == str(paths.socket)
    assert document["version"] == STEADY.version
    assert str(kvctld.pid) in kvctl("daemon", "status").out


def test_gpus_has_devices_processes_and_what_each_is(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    document = json.loads(kvctl("gpus", "--json").out)
    device = document["devices"][0]
    assert {"uuid", "memory_used_bytes", "memory_total_bytes", "processes"} <= set(device)
    assert {"pid", "memory_bytes", "kind", "evidence"} <= set(device["processes"][0])
    assert device["figures"]["memory_used_bytes"].keys() >= {"source", "age_s"}
    listed = sum(len(d["processes"]) for d in document["devices"])
    assert listed == len(STEADY.gpus.holders)


def test_run_status_has_state_target_and_partitions(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    document = json.loads(kvctl("run", "status", "--json").out)
    run = STEADY.run
    assert run is not None
    assert (document["state"], document["target"]) == (run.state.value, run.target)
    assert document["in_flight"] == run.in_flight
    names = {"name", "total", "done", "failed", "tokens"}
    assert all(names <= set(partition) for partition in document["partitions"])
    assert [p["done"] for p in document["partitions"]] == [p.done for p in run.partitions]


def test_an_unknown_figure_is_null_with_its_reason(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    server = json.loads(kvctl("status", "--json").out)["servers"][0]
    for name, truth in server["figures"].items():
        assert (server[name] is None) == ("reason" in truth), name


def test_json_is_ascii_and_one_document(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    for verb in (["status"], ["gpus"], ["run", "status"], ["presets", "list"], ["doctor"]):
        out = kvctl(*verb, "--json").out
        assert out.isascii()
        assert isinstance(json.loads(out), dict)


def test_watch_prints_one_document_a_line(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    said = kvctl("watch", "--json", "--count", "1")
    assert said.status == 0
    assert json.loads(said.out)["host"] == STEADY.host
    assert len(said.out.splitlines()) == 1


def test_plain_watch_is_one_fact_a_line(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    lines = kvctl("watch", "--plain", "--count", "1").out.splitlines()
    assert any(line.startswith("verdict: ") for line in lines)
    assert all(": " in line for line in lines)


@pytest.mark.parametrize("verb", [["status"], ["gpus"], ["run", "status"]], ids=" ".join)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_text_is_printed_in_any_locale(
    kvctl: Kvctl, kvctld: DaemonInfo, verb: list[str], locale: str
) -> None:
    said = kvctl(*verb, LC_ALL=locale, LANG=locale, PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert said.status == 0, said.err
    assert said.out and "\x1b" not in said.out


def test_status_shows_verdict_server_run_and_gpus(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    out = kvctl("status").out
    assert STEADY.run is not None and STEADY.server is not None
    for word in (
        STEADY.verdicts[0].sentence,
        STEADY.server.url,
        STEADY.run.name,
        STEADY.gpus.devices[0].name,
    ):
        assert word in out


def test_events_are_printed_while_a_command_runs(kvctl: Kvctl, kvctld: DaemonInfo) -> None:
    said = kvctl("run", "throttle", "auto")
    assert said.status == 0
    assert "Throttle" in said.out and said.out.splitlines()[-1] == "done"


def test_a_reader_that_stops_early_costs_no_traceback(
    kvctld: DaemonInfo, paths: DaemonPaths, environ: dict[str, str]
) -> None:
    command = f"'{KVCTL}' --state-dir '{paths.state}' status --json | head -c 1"
    done = subprocess.run(
        ["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("{", "")


def test_install_writes_a_unit_and_prints_two_commands(
    kvctl: Kvctl, environ: dict[str, str]
) -> None:
    said = kvctl("daemon", "install")
    unit = f"{environ['HOME']}/.config/systemd/user/kvctld.service"
    assert unit in said.out
    with open(unit, encoding="utf-8") as file:
        text = file.read()
    assert "KillMode=process" in text and "daemon run --stay" in text
    assert len(said.out.splitlines()) == 3


def test_doctor_names_what_is_wrong_and_what_to_do(kvctl: Kvctl, paths: DaemonPaths) -> None:
    (paths.config / "presets").mkdir(parents=True)
    (paths.config / "presets" / "broken.toml").write_text("[flags\n")
    said = kvctl("doctor")
    assert said.status == 1
    wrong = [line for line in said.out.splitlines() if line.startswith("✗")]
    assert len(wrong) == 1 and "broken.toml" in wrong[0]
