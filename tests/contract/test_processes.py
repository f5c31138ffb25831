"""HostProcesses on real processes, and on a made-up /proc where device nodes are needed."""

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.nvml.tree import Grove, identity_of, wait_until

from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.probes.processes import HostProcesses, read_me

pytest_plugins = ["tests.nvml.fixtures"]


def fake_process(proc: Path, pid: int, *links: str, maps: str = "", name: str = "python") -> None:
    """Lay one process into a made-up /proc."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    for number, target in enumerate(links):
        (folder / "fd" / str(number)).symlink_to(target)
    (folder / "maps").write_text(maps)
    fields = " ".join(["S", "1", str(pid), str(pid), *["0"] * 15, "777", "0", "0"])
    (folder / "stat").write_text(f"{pid} ({name}) {fields}\n")


def test_facts_say_who_a_process_is(grove: Grove) -> None:
    one = grove.sleeper("sglang::scheduler_DP0_TP4")
    facts = HostProcesses().facts(one.pid)
    assert facts is not None
    assert facts.title == "sglang::scheduler_DP0_TP4 600"
    assert facts.identity == one
    assert facts.parent_pid == os.getpid()
    assert facts.session == facts.group == one.pid
    assert facts.uid == os.getuid()
    assert facts.state in "RS"


def test_a_process_name_with_spaces_and_brackets_is_parsed(tmp_path: Path) -> None:
    fake_process(tmp_path, 41, name="a) S 1 (b")
    facts = HostProcesses(tmp_path).facts(41)
    assert facts is not None
    assert facts.identity == ProcessIdentity(41, 777)
    assert facts.title == "a) S 1 (b"


def test_a_title_loses_control_characters_and_direction_overrides(grove: Grove) -> None:
    one = grove.sleeper("sglang::x\x1b[31m\nroot\u202etxt [bold]")
    facts = HostProcesses().facts(one.pid)
    assert facts is not None
    assert facts.title == "sglang::x�[31m�root�txt [bold] 600"


def test_a_process_that_is_gone_has_no_facts() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert HostProcesses().facts(done.pid) is None


def test_every_process_is_listed_once(grove: Grove) -> None:
    one = grove.sleeper("sglang::scheduler_TP0")
    pids = [facts.identity.pid for facts in HostProcesses().all_facts()]
    assert {one.pid, os.getpid()} <= set(pids)
    assert len(pids) == len(set(pids))


def test_a_signal_reaches_the_process_that_was_named(grove: Grove) -> None:
    one = grove.sleeper("sglang::scheduler_TP0")
    processes = HostProcesses()
    processes.send(one, signal.SIGTERM)
    wait_until(lambda: not processes.is_alive(one))


def test_a_pid_with_another_start_time_gets_no_signal(grove: Grove) -> None:
    canary = grove.sleeper("canary")
    stale = replace(canary, start_ticks=canary.start_ticks - 1)
    with pytest.raises(ProcessLookupError, match="another process now"):
        HostProcesses().send(stale, signal.SIGKILL)
    assert HostProcesses().is_alive(canary)
    assert not HostProcesses().is_alive(stale)


def test_the_start_time_is_read_after_the_pidfd_was_opened(
    grove: Grove, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pid taken over before the pidfd was opened must be seen by the check that follows."""
    canary = grove.sleeper("canary")
    order: list[str] = []
    processes = HostProcesses()
    opened, text = os.pidfd_open, processes._text

    def open_pidfd(pid: int) -> int:
        order.append("open")
        return opened(pid)

    def read_text(pid: int, name: str) -> str:
        order.append(name)
        return text(pid, name)

    monkeypatch.setattr(os, "pidfd_open", open_pidfd)
    monkeypatch.setattr(processes, "_text", read_text)
    processes.send(canary, signal.SIGCONT)
    assert order == ["open", "stat"]


def test_a_zombie_is_not_alive_and_gets_no_signal() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = identity_of(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    processes = HostProcesses()
    wait_until(lambda: (f := processes.facts(child.pid)) is not None and f.state == "Z")
    assert not processes.is_alive(identity)
    with pytest.raises(ProcessLookupError, match="has ended"):
        processes.send(identity, signal.SIGTERM)
    child.wait()


def test_init_and_kvctl_itself_are_never_signalled() -> None:
    processes = HostProcesses()
    for pid in (0, 1, os.getpid()):
        facts = processes.facts(pid) if pid else None
        identity = facts.identity if facts else ProcessIdentity(pid, 0)
        with pytest.raises(PermissionError, match="never signalled"):
            processes.send(identity, signal.SIGKILL)


def test_an_identity_that_never_was_is_a_missing_process() -> None:
    with pytest.raises(ProcessLookupError):
        HostProcesses().send(ProcessIdentity(1 << 22, 1), signal.SIGKILL)


def test_environment_is_read_of_this_very_process_alone(grove: Grove) -> None:
    os.environ["KVCTL_LAUNCH"] = "launch-7"
    try:
        one = grove.sleeper("sglang::scheduler_TP0")
    finally:
        del os.environ["KVCTL_LAUNCH"]
    processes = HostProcesses()
    wait_until(lambda: processes.environment(one, "KVCTL_LAUNCH") == "launch-7")
    assert processes.environment(one, "KVCTL_LAUN") is None
    stale = replace(one, start_ticks=one.start_ticks - 1)
    assert processes.environment(stale, "KVCTL_LAUNCH") is None
    facts = processes.facts(one.pid)
    assert facts is not None and facts.launch_mark == "launch-7"


def test_open_and_mapped_device_nodes_are_found_by_minor(tmp_path: Path) -> None:
    fake_process(tmp_path, 41, "/dev/nvidia4", "/dev/nvidia0", "/dev/nvidiactl", "/dev/null")
    fake_process(tmp_path, 42, "/dev/nvidia-uvm", "/tmp/nvidia3", "/dev/nvidia3 (deleted)")
    fake_process(
        tmp_path, 43, maps="7f00-7f01 rw-s 0 00:06 1 /dev/nvidia2\n7f02-7f03 rw-s /dev/nvidiactl\n"
    )
    (tmp_path / "meminfo").write_text("")
    assert HostProcesses(tmp_path).device_file_holders() == {41: (0, 4), 43: (2,)}


def test_a_mapping_is_remembered_between_looks_and_forgotten_with_the_process(
    tmp_path: Path,
) -> None:
    fake_process(tmp_path, 43, maps="7f00-7f01 rw-s 0 00:06 1 /dev/nvidia2\n")
    processes = HostProcesses(tmp_path)
    assert [processes.device_file_holders() for _ in range(10)] == [{43: (2,)}] * 10
    (tmp_path / "43" / "maps").unlink()
    (tmp_path / "43" / "stat").unlink()
    assert processes.device_file_holders() == {}


def test_a_scan_without_limits_says_nothing(tmp_path: Path) -> None:
    fake_process(tmp_path, 41, "/dev/nvidia4")
    processes = HostProcesses(tmp_path)
    processes.device_file_holders()
    assert processes.scan_limits == ()


def test_another_users_processes_are_shown_but_neither_looked_into_nor_signalled() -> None:
    code = """
import os, signal, sys
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.probes.processes import HostProcesses
other = 1
if os.getuid() == 0:
    other = os.getppid()
    os.setuid(65534)
processes = HostProcesses()
facts = processes.facts(other)
processes.device_file_holders()
try:
    processes.send(facts.identity, signal.SIGURG)
except PermissionError as error:
    print(facts.user, processes.scan_limits[0][:30], "PermissionError", sep="|")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    user, limits, refused = done.stdout.strip().split("|")
    assert (user, refused) == ("root", "PermissionError")
    assert "processes of other" in limits


def test_the_title_of_a_process_in_uninterruptible_sleep_is_the_last_one_seen(
    tmp_path: Path,
) -> None:
    fake_process(tmp_path, 41, name="sglang::schedul")
    (tmp_path / "41" / "cmdline").write_bytes(b"sglang::scheduler_TP4\0\0\0")
    processes = HostProcesses(tmp_path)
    before = processes.facts(41)
    stat = tmp_path / "41" / "stat"
    stat.write_text(stat.read_text().replace(") S ", ") D "))
    (tmp_path / "41" / "cmdline").unlink()
    during = processes.facts(41)
    assert before is not None and during is not None
    assert during.title == before.title == "sglang::scheduler_TP4"
    fresh = HostProcesses(tmp_path).facts(41)
    assert fresh is not None and fresh.title == "sglang::schedul"


@pytest.mark.parametrize(
    ("status", "is_pending"),
    [("ShdPnd:\t0000000000000100\n", True), ("SigPnd:\t0000000000004000\n", False)],
)
def test_a_pending_kill_is_seen(tmp_path: Path, status: str, is_pending: bool) -> None:
    fake_process(tmp_path, 41)
    (tmp_path / "41" / "status").write_text(f"Uid:\t1000\t1000\t1000\t1000\n{status}")
    facts = HostProcesses(tmp_path).facts(41)
    assert facts is not None
    assert (facts.uid, facts.is_kill_pending) == (1000, is_pending)


def test_the_cgroup_is_the_unified_path_or_the_first_that_says_something(tmp_path: Path) -> None:
    fake_process(tmp_path, 41)
    cgroup = tmp_path / "41" / "cgroup"
    cgroup.write_text("9:memory:/docker/abc\n0::/system.slice/x.service\n")
    unified = HostProcesses(tmp_path).facts(41)
    cgroup.write_text("9:memory:/docker/abc\n8:pids:/\n0::/\n")
    hybrid = HostProcesses(tmp_path).facts(41)
    assert unified is not None and unified.cgroup == "/system.slice/x.service"
    assert hybrid is not None and hybrid.cgroup == "/docker/abc"


def test_a_pid_that_is_hidden_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    processes = HostProcesses(tmp_path)
    assert processes.is_hidden(os.getpid())
    assert not processes.is_hidden(1 << 22)
    assert not processes.is_hidden(0)


def test_kvctl_knows_itself_and_whether_it_sits_in_a_container(tmp_path: Path) -> None:
    me = read_me()
    assert (me.uid, me.pid) == (os.geteuid(), os.getpid())
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").write_text("")
    assert read_me(tmp_path).is_container
    assert not read_me(tmp_path / "nothing").is_container


def test_an_orphan_is_seen_with_its_new_parent(grove: Grove) -> None:
    server = grove.server("python -m sglang.launch_server", "sglang::scheduler_TP0")
    (child,) = server.children
    grove.behead(server)
    facts = HostProcesses().facts(child.pid)
    assert facts is not None
    assert facts.parent_pid != server.main.pid and facts.session == server.main.pid


def test_a_stream_of_pids_is_a_stream_of_processes(grove: Grove) -> None:
    """Reading while processes come and go never raises."""
    processes = HostProcesses()
    for _ in range(20):
        child = subprocess.Popen([sys.executable, "-c", ""])
        processes.all_facts()
        processes.device_file_holders()
        child.wait()
    assert select.select([], [], [], 0) == ([], [], [])
