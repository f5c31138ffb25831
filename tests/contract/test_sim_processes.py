"""The simulated host sees its own processes and nobody else's."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from kvctl.core.probes.processes import HostProcesses
from kvctl.core.sim.processes import SimulatedProcesses
from kvctl.core.sim.simclock import FOLDER_VARIABLE


def sleeper(folder: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, FOLDER_VARIABLE: folder}
    return subprocess.Popen(
        ["sglang::scheduler_TP0", "60"], executable="/bin/sleep", env=environment
    )


@pytest.fixture
def two_hosts() -> Iterator[tuple[int, int]]:
    mine, theirs = sleeper("/host/mine"), sleeper("/host/theirs")
    yield mine.pid, theirs.pid
    for child in (mine, theirs):
        child.kill()
        child.wait()


def test_only_processes_of_this_simulated_host_are_shown(two_hosts: tuple[int, int]) -> None:
    mine, theirs = two_hosts
    shown = {f.identity.pid for f in SimulatedProcesses(HostProcesses(), "/host/mine").all_facts()}
    assert mine in shown
    assert theirs not in shown
    assert os.getpid() not in shown
