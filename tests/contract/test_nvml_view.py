"""The whole chain: real processes, the real pynvml on the stand-in, kill, and the proof."""

import asyncio
import threading
from collections.abc import Mapping, Sequence

import pytest
from tests.nvml.cases import device, process_facts
from tests.nvml.host import StandinHost
from tests.nvml.tree import Grove, Server

from kvctl.core.clock import RealClock
from kvctl.core.domain.gpus.devices import GpuReading, ProcessFacts
from kvctl.core.domain.gpus.membership import Me
from kvctl.core.probes.gpu_view import GpuViewProbe, read_within, with_ancestors
from kvctl.core.probes.processes import HostProcesses

pytest_plugins = ["tests.nvml.fixtures"]

MAIN = "python -m sglang.launch_server"
VIEW = """
import json, sys
from kvctl.core.domain.gpus.membership import KnownServer, LaunchState
from kvctl.core.probes.gpu_view import GpuViewProbe
from kvctl.core.probes.nvml import NvmlSource
from kvctl.core.probes.processes import HostProcesses, read_me
known = []
if len(sys.argv) > 1:
    pid, start = int(sys.argv[1]), int(sys.argv[2])
    known = [KnownServer("main", pid, start, pid, state=LaunchState(sys.argv[3]))]
view = GpuViewProbe(NvmlSource(), HostProcesses(), read_me()).read(1.0, known)
rows = [[h.gpu_index, h.pid, h.kind, h.server, h.rank, h.evidence] for h in view.holders]
print(json.dumps(rows))
"""
CLEAR = """
import asyncio, json, signal, sys
from kvctl.core.clock import RealClock
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.domain.gpus.holding import learn_idle
from kvctl.core.domain.gpus.devices import GpuView
from kvctl.core.probes.gpu_view import GpuViewProbe, read_within
from kvctl.core.probes.nvml import NvmlSource
from kvctl.core.probes.processes import HostProcesses, read_me
from kvctl.core.servers.processes.clean import prove_clean
from kvctl.core.servers.processes.ending import end_processes

async def main():
    clock, processes = RealClock(), HostProcesses()
    probe = GpuViewProbe(NvmlSource(), processes, read_me())
    async def read() -> GpuView:
        return await read_within(clock, 5, lambda: probe.read(clock.monotonic(), [], fresh=True))
    view = await read()
    targets = [ProcessIdentity(h.pid, h.start_ticks) for h in view.leftovers]
    before = await prove_clean(read, clock, idle_bytes={}, gpus=None, timeout_s=0)
    report = await end_processes(
        processes, clock, targets, first=signal.SIGTERM, wait_s=0.3, escalate=True)
    after = await prove_clean(read, clock, idle_bytes={}, gpus=None, timeout_s=5)
    print(json.dumps([before.lines(), report.lines(), after.is_clean, after.lines()]))
asyncio.run(main())
"""


def hold(standin: StandinHost, server: Server) -> None:
    lines = [f"hold {n} {child.pid} 93699" for n, child in enumerate(server.children)]
    standin.write(f"count {len(server.children)}", *lines)


def holders(
    standin: StandinHost, server: Server | None = None, state: str = "running"
) -> list[list[str]]:
    words = [str(server.main.pid), str(server.main.start_ticks), state] if server else []
    found: list[list[str]] = standin.python(VIEW, *words)
    return found


def test_the_ranks_of_a_known_server_are_ranks_while_it_lives(
    standin: StandinHost, grove: Grove
) -> None:
    server = grove.server(MAIN, "sglang::scheduler_TP0", "sglang::scheduler_TP1")
    hold(standin, server)
    assert [row[2:5] for row in holders(standin, server)] == [
        ["rank", "main", "TP0"],
        ["rank", "main", "TP1"],
    ]
    assert {row[2] for row in holders(standin)} == {"other_sglang"}


def test_the_schedulers_of_a_killed_server_are_leftovers_with_or_without_a_record(
    standin: StandinHost, grove: Grove
) -> None:
    server = grove.server(MAIN, "sglang::scheduler_TP0", "sglang::scheduler_TP1")
    hold(standin, server)
    grove.behead(server)
    for rows in (holders(standin, server), holders(standin)):
        assert {row[2] for row in rows} == {"leftover"}
        assert all("parent gone" in row[5] for row in rows)
    assert {row[3] for row in holders(standin, server)} == {"main"}


def test_untitled_children_are_launching_and_then_leftovers_of_the_start(
    standin: StandinHost, grove: Grove
) -> None:
    server = grove.server(MAIN, "python -c from multiprocessing.spawn import spawn_main")
    hold(standin, server)
    assert [row[2] for row in holders(standin, server, "starting")] == ["launching"]
    grove.behead(server)
    assert [row[2] for row in holders(standin, server, "starting")] == ["leftover"]


def test_leftovers_are_cleared_and_the_gpus_proven_clean(
    standin: StandinHost, grove: Grove
) -> None:
    server = grove.server(MAIN, "sglang::scheduler_TP0", "sglang::scheduler_TP1", flags=["i", "s"])
    canary = grove.sleeper("sglang::scheduler_TP7", own_session=False)
    hold(standin, server)
    grove.behead(server)
    before, ended, is_clean, after = standin.python(CLEAR)
    assert all("93,699 MiB held by" in line for line in before)
    assert any("TERM ignored, gone" in line for line in ended)
    assert is_clean and all("no holder, 4 MiB used" in line for line in after)
    assert HostProcesses().is_alive(canary)


class Devices:
    """A device source that a test scripts."""

    is_simulated = True

    def __init__(self, reading: GpuReading) -> None:
        self.reading = reading

    def read(self, at: float) -> GpuReading:
        return self.reading


class Counting(HostProcesses):
    """Counts scans for open files."""

    scans = 0

    def device_file_holders(self) -> Mapping[int, tuple[int, ...]]:
        self.scans += 1
        return {}


def test_open_files_are_scanned_no_more_often_than_asked() -> None:
    processes = Counting()
    source = Devices(GpuReading(0.0, (device(0),)))
    probe = GpuViewProbe(source, processes, Me(0, "root", 1), files_every_s=5)
    for at in (0.0, 1.0, 4.9, 5.0, 6.0):
        source.reading = GpuReading(at, (device(0),))
        probe.read(at, ())
    assert processes.scans == 2
    probe.read(6.0, (), fresh=True)
    assert processes.scans == 3


def test_a_host_without_devices_costs_no_scan() -> None:
    processes = Counting()
    problem = GpuReading(0.0, (), problem="no NVIDIA driver here")
    view = GpuViewProbe(Devices(problem), processes, Me(0, "root", 1)).read(0.0, ())
    assert (processes.scans, view.problem) == (0, "no NVIDIA driver here")


def test_ancestors_are_read_once_each_up_to_the_first() -> None:
    asked: list[int] = []

    class Chain(HostProcesses):
        def facts(self, pid: int) -> ProcessFacts | None:
            asked.append(pid)
            parents = {30: 20, 31: 20, 20: 1, 1: 0}
            return process_facts(pid, "x", parent_pid=parents[pid]) if pid in parents else None

    found: Sequence[int] = sorted(with_ancestors(Chain(), [30, 31, 99]))
    assert list(found) == [1, 20, 30, 31]
    assert sorted(asked) == [1, 20, 30, 31, 99]


async def test_a_read_that_hangs_is_given_up_and_left_behind() -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError):
        await read_within(RealClock(), 0.05, lambda: release.wait(30))
    release.set()
    await asyncio.sleep(0)


async def test_an_answer_and_a_failure_come_through_the_thread() -> None:
    assert await read_within(RealClock(), 5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await read_within(RealClock(), 5, lambda: 1 // 0)
