"""The installed kvctl on real processes and stand-in GPUs; run in a pid namespace of its own.

`tests/e2e/test_gpus_cleared.py` runs each of these: "every leftover on this host" must be the
test's own, and a pid can be given to another process at will.
"""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.terminal import KVCTL, Terminal
from tests.nvml.host import StandinHost
from tests.nvml.tree import SLEEP, Grove, Server, identity_of, wait_until

from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.probes.processes import HostProcesses

pytest_plugins = ["tests.nvml.fixtures"]

MAIN = "python -m sglang.launch_server"
HOST = HostProcesses()
TITLES = [f"sglang::scheduler_TP{n}" for n in range(4)]
KEEPER = textwrap.dedent(
    """
    import subprocess, sys
    while True:
        child = subprocess.Popen(["sglang::scheduler_TP0", "600"], executable=sys.argv[1])
        print(child.pid, flush=True)
        child.wait()
    """
)


@dataclass
class Said:
    status: int
    text: str


@dataclass
class Kvctl:
    """The installed kvctl with its kvctld, both on the stand-in GPUs."""

    standin: StandinHost
    state: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in self.standin.environment.items() if not k.startswith("XDG_")}
        return {**kept, "HOME": str(self.state), "LANG": "C.UTF-8", "TERM": "xterm-256color"}

    def __call__(self, *words: str) -> Said:
        done = subprocess.run(
            [KVCTL, "--state-dir", self.state, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=60,
            check=False,
        )
        return Said(done.returncode, done.stdout + done.stderr)

    def json(self, *words: str) -> dict[str, Any]:
        said = self(*words, "--json")
        assert said.status == 0, said
        found: dict[str, Any] = json.loads(said.text)
        return found

    def terminal(self, *words: str, columns: int = 110, rows: int = 40) -> Terminal:
        command: list[str | Path] = [KVCTL, "--state-dir", self.state, *words]
        return Terminal(command, columns=columns, rows=rows, environ=self.environment)

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 20
        while True:
            document = self.json("gpus")
            if holds(document):
                return document
            assert time.monotonic() < deadline, document


@pytest.fixture
def kvctl(standin: StandinHost, tmp_path: Path) -> Iterator[Kvctl]:
    assert os.getpid() < 1000, "run through tests/e2e/test_gpus_cleared.py"
    made = Kvctl(standin, tmp_path / "s")
    yield made
    made("daemon", "stop")


def on_pid(pid: int, title: str) -> subprocess.Popen[bytes]:
    """Start a process on a pid that has just become free."""
    for _ in range(50):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        popen = subprocess.Popen([title, "600"], executable=SLEEP)
        if popen.pid == pid:
            return popen
        popen.kill()
        popen.wait()
    raise AssertionError(f"pid {pid} could not be had")


def headless_tree(grove: Grove) -> Server:
    """A server whose main was killed: one ignores TERM, one sits in another session."""
    server = grove.server(MAIN, *TITLES, flags=["", "i", "s", ""])
    grove.behead(server)
    return server


def with_canaries(grove: Grove, standin: StandinHost, server: Server) -> list[ProcessIdentity]:
    canaries = [
        grove.sleeper("sglang::scheduler_TP7"),
        grove.sleeper("python train.py"),
        grove.sleeper("sglang::scheduler_TP8", own_session=False),
        grove.sleeper("vim"),
    ]
    held = [f"hold {n} {child.pid} 93699" for n, child in enumerate(server.children)]
    theirs = [f"hold {n} {canary.pid} 41000" for n, canary in enumerate(canaries[:3], 4)]
    standin.write("count 8", *held, *theirs)
    return canaries


def kinds(document: dict[str, Any]) -> dict[int, str]:
    return {p["pid"]: p["kind"] for d in document["devices"] for p in d["processes"]}


def check_cleared(kvctl: Kvctl, server: Server, canaries: list[ProcessIdentity]) -> None:
    assert not any(HOST.is_alive(child) for child in server.children)
    assert all(HOST.is_alive(canary) for canary in canaries)
    devices = kvctl.until(lambda d: all(x["clean"]["is_clean"] for x in d["devices"][:4]))[
        "devices"
    ]
    for device in devices[:4]:
        assert device["clean"]["used_bytes"] == 4 << 20 and device["clean"]["age_s"] < 10
        assert "idle level" in device["clean"]["basis"]
    assert not any(device["clean"]["is_clean"] for device in devices[4:7])


def test_the_command_line_clears_all_of_its_own_and_none_other(
    kvctl: Kvctl, grove: Grove, standin: StandinHost
) -> None:
    server = headless_tree(grove)
    canaries = with_canaries(grove, standin, server)
    document = kvctl.json("gpus")
    found = kinds(document)
    assert {found[child.pid] for child in server.children} == {"leftover"}
    assert "leftover" not in {found[canary.pid] for canary in canaries[:3]}
    assert not any(device["clean"]["is_clean"] for device in document["devices"][:7])
    said = kvctl("kill", "--leftovers", "--yes", "--wait", "1")
    assert said.status == 0, said
    assert "4 of 4 GPUs clean" in said.text and "TERM ignored, gone" in said.text
    check_cleared(kvctl, server, canaries)


def test_the_panel_clears_all_of_its_own_and_none_other(
    kvctl: Kvctl, grove: Grove, standin: StandinHost
) -> None:
    server = headless_tree(grove)
    canaries = with_canaries(grove, standin, server)
    with kvctl.terminal() as panel:
        panel.wait_for("4 leftover, 2 other SGLang")
        panel.send("2")
        for child in server.children:
            panel.wait_for(rf"{child.pid}.*leftover")
        panel.send("K")
        panel.wait_for("What happens")
        panel.send("mmm")
        panel.wait_for(r"\(•\) every leftover")
        panel.wait_for("What happens ── 4 chosen")
        time.sleep(0.6)  # y sleeps for half a second on purpose
        panel.send("y")
        panel.wait_for("4 of 4 GPUs clean")
        panel.send("\x1b")
        panel.wait_gone("Kill ── sent")
        panel.send("q")
        assert panel.wait_exit() == 0
    check_cleared(kvctl, server, canaries)


def test_a_pid_reused_between_the_question_and_the_yes_gets_no_signal(
    kvctl: Kvctl, grove: Grove, standin: StandinHost
) -> None:
    victim = grove.sleeper("sglang::scheduler_TP0")
    standin.write("count 1", f"hold 0 {victim.pid} 93699")
    kvctl.until(lambda d: bool(d["devices"]))
    with kvctl.terminal("kill", str(victim.pid)) as asking:
        asking.wait_for(r"\[y/N\]")
        grove.end(victim)
        canary = on_pid(victim.pid, "canary")
        standin.write("count 1")
        asking.send("y\r")
        asking.wait_for("got no signal")
        asking.wait_exit()
    assert canary.poll() is None
    canary.kill()
    canary.wait()


def test_a_pid_reused_under_the_open_dialog_gets_no_signal(
    kvctl: Kvctl, grove: Grove, standin: StandinHost
) -> None:
    victim = grove.sleeper("sglang::scheduler_TP0")
    standin.write("count 1", f"hold 0 {victim.pid} 93699")
    with kvctl.terminal() as panel:
        panel.wait_for("1 other SGLang")
        panel.send("K")
        panel.wait_for(f"─pid {victim.pid}")
        grove.end(victim)
        canary = on_pid(victim.pid, "sglang::scheduler_TP0")
        time.sleep(0.6)
        panel.send("y")
        panel.wait_for("got no signal|ended meanwhile|nothing is chosen")
    assert canary.poll() is None
    canary.kill()
    canary.wait()


def test_a_whole_launch_ends_by_one_of_its_processes(
    kvctl: Kvctl, grove: Grove, standin: StandinHost
) -> None:
    server = grove.server(MAIN, *TITLES, flags=["", "i", "s", ""])
    other = grove.server(MAIN, "sglang::scheduler_TP0")
    rows = [f"hold {n} {child.pid} 93699" for n, child in enumerate(server.children)]
    standin.write("count 5", *rows, f"hold 4 {other.children[0].pid} 5000")
    said = kvctl("kill", str(server.children[2].pid), "--group", "--wait", "1", "--yes")
    assert said.status == 1 and "still runs" in said.text  # TERM alone, as it was asked for
    said = kvctl("kill", str(server.children[1].pid), "--signal", "KILL", "--group", "--yes")
    assert said.status == 0, said
    assert not any(HOST.is_alive(one) for one in (server.main, *server.children))
    assert all(HOST.is_alive(one) for one in (other.main, *other.children))


def test_one_gpu_is_cleared_in_one_action(kvctl: Kvctl, grove: Grove, standin: StandinHost) -> None:
    one, two = grove.sleeper("sglang::scheduler_TP0"), grove.sleeper("sglang::scheduler_TP1")
    away = grove.sleeper("sglang::scheduler_TP2")
    standin.write("count 2", f"hold 1 {one.pid} 5000", f"hold 1 {two.pid} 6000",
                  f"hold 0 {away.pid} 7000")  # fmt: skip
    kvctl.until(lambda d: bool(d["devices"]))
    with kvctl.terminal("kill", "--gpu", "1") as asking:
        asking.wait_for(r"\[y/N\]")
        asking.send("y\r")
        assert asking.wait_exit() == 0
    assert [HOST.is_alive(process) for process in (one, two, away)] == [False, False, True]


def keeper(title: str) -> tuple[subprocess.Popen[str], int]:
    """Start a tiny supervisor under a title; return it and the child it keeps."""
    popen = subprocess.Popen(
        [title, "-S", "-c", KEEPER, SLEEP],
        executable=sys.executable,
        env={**os.environ, "PYTHONHOME": sys.base_prefix},
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert popen.stdout is not None
    pid = int(popen.stdout.readline())
    wait_until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sglang::"))
    return popen, pid


def end_keeper(popen: subprocess.Popen[str]) -> None:
    popen.kill()
    popen.wait()
    assert popen.stdout is not None
    popen.stdout.close()


def test_a_supervised_server_is_never_signalled_behind_its_supervisors_back(
    kvctl: Kvctl, standin: StandinHost
) -> None:
    supervisor, pid = keeper("/usr/bin/supervisord")
    try:
        child = identity_of(pid)
        standin.write("count 1", f"hold 0 {pid} 93699")
        kvctl.until(lambda d: bool(d["devices"]))
        for words in ([str(pid), "--yes"], [str(pid), "--group", "--yes"]):
            said = kvctl("kill", *words)
            assert said.status == 4 and "supervisorctl stop" in said.text, said
        with kvctl.terminal() as panel:
            panel.wait_for("1 other SGLang")
            panel.send("K")
            panel.wait_for("would start it again: supervisorctl stop NAME")
            time.sleep(0.6)
            panel.send("y")
            panel.send("\x1b")
            panel.wait_gone("What happens")
        assert HOST.is_alive(child), "it was signalled"
    finally:
        end_keeper(supervisor)
        os.kill(pid, 9)


def test_an_unknown_keeper_is_found_out_told_and_not_fought_again(
    kvctl: Kvctl, standin: StandinHost
) -> None:
    script, pid = keeper("python")
    assert script.stdout is not None
    try:
        standin.write("count 1", f"hold 0 {pid} 93699")
        kvctl.until(lambda d: bool(d["devices"]))
        said = kvctl("kill", str(pid), "--yes")
        assert said.status == 1 and "something starts it again" in said.text, said
        pid = int(script.stdout.readline())
        standin.write("count 1", f"hold 0 {pid} 93699")
        said = kvctl("kill", str(pid), "--yes")
        assert said.status == 4 and f"kvctl kill {script.pid}" in said.text, said
        said = kvctl("kill", str(pid), str(script.pid), "--yes")
        assert said.status == 0, said
        assert not HOST.is_alive(identity_of(pid)) if Path(f"/proc/{pid}").exists() else True
    finally:
        end_keeper(script)


def test_kvctld_answers_while_the_driver_hangs_and_says_so(
    kvctl: Kvctl, grove: Grove, standin: StandinHost
) -> None:
    standin.write("count 2", "stall 300")
    began = time.monotonic()
    document = kvctl.json("status")
    assert time.monotonic() - began < 15, "a new kvctld waited for the driver"
    assert document["verdict"] is not None
    waits = []
    with kvctl.terminal() as panel:
        panel.wait_for("stuck")
        steps: list[tuple[str, Callable[[], None]]] = [
            ("?", lambda: panel.wait_for("type to search")),
            ("\x1b", lambda: panel.wait_gone("type to search")),
            ("6", lambda: panel.wait_for("6 or Esc")),
        ]
        for key, look in steps:
            began = time.monotonic()
            panel.send(key)
            look()
            waits.append(time.monotonic() - began)
        panel.send("q")
        assert panel.wait_exit() == 0
    assert max(waits) < 2, waits
    began = time.monotonic()
    problem = kvctl.json("gpus")["problem"]
    assert "not answered" in problem and time.monotonic() - began < 5
