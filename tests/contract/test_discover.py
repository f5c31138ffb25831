"""Servers found in a process table, and what is no server although it looks like one."""

from pathlib import Path

import pytest
from tests.contract.test_preflight import FakeProcesses

from kvctl.core.domain.gpus.devices import ProcessFacts, ProcessIdentity
from kvctl.core.servers.processes.discover import address_of, discover, is_server


def facts(pid: int, parent: int = 1, title: str = "", cgroup: str = "/") -> ProcessFacts:
    identity = ProcessIdentity(pid, pid * 10)
    return ProcessFacts(identity, parent, pid, pid, "S", "ann", 1000, title, cgroup)


def put(proc: Path, pid: int, argv: list[str], stdout: Path | None = None) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(b"".join(w.encode() + b"\0" for w in argv))
    if stdout is not None:
        (proc / str(pid) / "fd" / "1").symlink_to(stdout)


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "-m", "sglang.launch_server", "--port", "1"],
        ["/v/bin/python3.12", "-u", "-m", "sglang.launch_server"],
        ["/v/bin/python", "/v/bin/sglang", "serve", "org/model"],
        ["sglang", "serve", "--model-path", "m"],
        ["python3", "-m", "kvctl.core.sim.server"],
    ],
)
def test_a_server_is_recognised(argv: list[str]) -> None:
    assert is_server(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["bash", "-c", "python -m sglang.launch_server --port 1"],
        ["docker", "run", "img", "python", "-m", "sglang.launch_server"],
        ["python", "-m", "sglang.bench_serving"],
        ["python", "-c", "from multiprocessing.spawn import spawn_main"],
        ["python", "-m"],
        ["grep", "sglang.launch_server"],
        ["vim", "sglang", "serve"],
        ["sglang::scheduler_TP0"],
        [""],
        [],
    ],
)
def test_what_is_around_a_server_is_none(argv: list[str]) -> None:
    assert not is_server(argv)


def test_a_server_is_described_from_its_command_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("")
    argv = [
        *("python", "-m", "sglang.launch_server", "--model", "/models/with space"),
        *("--host", "0.0.0.0", "--port=31000", "--api-key", "hunter2"),
    ]
    put(tmp_path, 50, argv, log)
    found = discover(FakeProcesses(facts(50)), tmp_path)
    assert len(found) == 1
    assert found[0].url == "http://127.0.0.1:31000"
    assert found[0].model == "/models/with space"
    assert found[0].log_path == str(log)
    assert found[0].identity == ProcessIdentity(50, 500)
    assert "hunter2" not in repr(found[0])


def test_defaults_are_sglangs_own() -> None:
    assert address_of(["sglang", "serve", "m"]) == ("127.0.0.1", 30000)
    assert address_of(["x", "--host", "::", "--port", "x"]) == ("127.0.0.1", 30000)


def test_the_positional_model_of_sglang_serve_is_read(tmp_path: Path) -> None:
    put(tmp_path, 50, ["sglang", "serve", "org/model", "--tp", "2"])
    assert discover(FakeProcesses(facts(50)), tmp_path)[0].model == "org/model"


def test_a_forked_worker_is_not_a_second_server(tmp_path: Path) -> None:
    argv = ["python", "-m", "sglang.launch_server", "--port", "1"]
    put(tmp_path, 50, argv)
    put(tmp_path, 51, argv)
    found = discover(FakeProcesses(facts(51, parent=50), facts(50)), tmp_path)
    assert [server.identity.pid for server in found] == [50]


def test_two_servers_are_both_found(tmp_path: Path) -> None:
    for pid, port in ((60, 1), (50, 2)):
        put(tmp_path, pid, ["python", "-m", "sglang.launch_server", "--port", str(port)])
    found = discover(FakeProcesses(facts(60), facts(50)), tmp_path)
    assert [server.url for server in found] == ["http://127.0.0.1:2", "http://127.0.0.1:1"]


def test_output_to_a_terminal_is_no_log(tmp_path: Path) -> None:
    put(tmp_path, 50, ["python", "-m", "sglang.launch_server"], Path("/dev/null"))
    assert discover(FakeProcesses(facts(50)), tmp_path)[0].log_path is None


def test_another_users_server_is_found_by_its_title_alone(tmp_path: Path) -> None:
    title = "python -m sglang.launch_server --port 31000"
    found = discover(FakeProcesses(facts(50, title=title)), tmp_path)
    assert found[0].url == "http://127.0.0.1:31000"
    assert found[0].user == "ann"


def test_the_supervisor_is_told(tmp_path: Path) -> None:
    put(tmp_path, 50, ["python", "-m", "sglang.launch_server"])
    found = discover(FakeProcesses(facts(50, cgroup="/system.slice/sglang.service")), tmp_path)
    assert found[0].owner is not None
    assert found[0].owner.text == "systemd sglang.service"


def test_a_simulated_server_says_so(tmp_path: Path) -> None:
    put(tmp_path, 50, ["python", "-m", "kvctl.core.sim.server", "--port", "1"])
    assert discover(FakeProcesses(facts(50)), tmp_path)[0].is_simulated


def test_a_zombie_is_no_server(tmp_path: Path) -> None:
    identity = ProcessIdentity(50, 1)
    title = "python -m sglang.launch_server"
    zombie = ProcessFacts(identity, 1, 50, 50, "Z", "ann", 1000, title, "/")
    assert discover(FakeProcesses(zombie), tmp_path) == ()
