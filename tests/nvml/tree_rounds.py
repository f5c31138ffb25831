"""Rounds of whole server trees, killed in kvctl's every way; run in a pid namespace of its own.

In each round two trees and some canaries are planted, a main may be killed, a pid may be given to
another process, then one action of kvctl's own desk is carried out. What has ended must be exactly
what was meant. Prints one JSON line a round.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.nvml.ticks import wait_past

from kvctl.core.clock import RealClock
from kvctl.core.controller.commands import ClearGpus, KillProcesses
from kvctl.core.controller.gpus import desk as gpu_desk
from kvctl.core.controller.gpus.desk import GpuDesk
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus.devices import DeviceProcess, GpuDevice, GpuReading, ProcessIdentity
from kvctl.core.probes.processes import HostProcesses, read_me

HOST = HostProcesses()
PLANT = """
for spec in "$@"; do
  flag=${spec%%|*} title=${spec#*|}
  ( [ "$flag" = i ] && trap '' TERM
    [ "$flag" = s ] && exec setsid bash -c 'exec -a "$0" sleep 600' "$title"
    exec -a "$title" sleep 600 ) >/dev/null &
  echo $!
done
exec -a "python -m sglang.launch_server" sleep 600
"""


def mib(count: int, at: float) -> Figure:
    return Figure(float(count << 20), "rounds", at)


class Devices:
    """One GPU that is held by whoever the round says, as long as they live."""

    is_simulated = True

    def __init__(self) -> None:
        self.held: list[ProcessIdentity] = []

    def read(self, at: float) -> GpuReading:
        living = [one for one in self.held if HOST.is_alive(one)]
        unknown = Figure(None, "rounds", None, "not told")
        device = GpuDevice(
            0, "GPU-0", "round", "0", mib(4 + 1000 * len(living), at), mib(80_000, at), unknown,
            unknown, unknown, unknown, unknown,
            processes=tuple(DeviceProcess(one.pid, 1000 << 20) for one in living),
        )  # fmt: skip
        return GpuReading(at, (device,))


class Tree:
    """A main and its children, one of which may ignore TERM or sit in another session."""

    def __init__(self, rng: random.Random) -> None:
        count = rng.randint(1, 3)
        specs = [f"{rng.choice('-is')}|sglang::scheduler_TP{n}" for n in range(count)]
        self.popen = subprocess.Popen(
            ["bash", "-c", PLANT, "plant", *specs],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.popen.stdout is not None
        pids = [int(self.popen.stdout.readline()) for _ in specs]
        self.children = [titled(pid, b"sglang::") for pid in pids]
        self.main = titled(self.popen.pid, b"python -m")

    def behead(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def clear(self) -> None:
        for one in self.children:
            end(one)
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


def titled(pid: int, title: bytes) -> ProcessIdentity:
    """The identity of a process once it has its title."""
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title):
        pass
    facts = HOST.facts(pid)
    assert facts is not None
    return facts.identity


def end(one: ProcessIdentity) -> None:
    try:
        HOST.send(one, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_collected(pid: int) -> None:
    """Wait until process 1 has collected an orphan, so that its pid is free."""
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.001)


def start(title: str, pid: int | None = None) -> subprocess.Popen[bytes]:
    if pid is not None:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    return subprocess.Popen([title, "600"], executable="/bin/sleep")


async def one_round(rng: random.Random, desk: GpuDesk, devices: Devices) -> dict[str, Any]:
    first, second = Tree(rng), Tree(rng)
    canaries = [start("python train.py"), start("sglang::scheduler_TP7"), start("vim")]
    seen = [titled(canary.pid, b"") for canary in canaries]
    devices.held = [*first.children, *second.children, seen[0]]
    if is_beheaded := rng.random() < 0.6:
        first.behead()
    action = rng.choice(("one", "group", "leftovers", "gpu"))
    target = rng.choice(first.children)
    meant = {target}
    command: KillProcesses | ClearGpus = KillProcesses(
        (target,), "TERM", 0.15, escalate=True, confirmed=True, group=action == "group"
    )
    if action == "group":
        meant = {*first.children} if is_beheaded else {*first.children, first.main}
        if is_beheaded:  # who sits in a session of its own has nothing left that ties it
            meant = {one for one in meant if session(one) == session(target)}
    elif action == "leftovers":
        command, meant = ClearGpus(wait_s=0.15), set(first.children if is_beheaded else ())
    elif action == "gpu":
        command = ClearGpus(gpu=0, every_holder=True, wait_s=0.15, confirmed=True)
        meant = set(devices.held)
    reused = None
    if action == "one" and is_beheaded and rng.random() < 0.7:
        end(target)
        wait_collected(target.pid)
        wait_past(target)
        reused = start("canary", target.pid)
    if isinstance(command, KillProcesses):
        outcome = await desk.kill(command, "round")
    else:
        outcome = await desk.clear(command, "round")
    everything = {*first.children, *second.children, second.main, *seen}
    everything |= set() if is_beheaded else {first.main}
    wrong = [one for one in everything - meant if not HOST.is_alive(one)]
    left = [one for one in meant if HOST.is_alive(one)]
    hit = reused is not None and reused.poll() is not None
    row = {
        "action": action,
        "signalled": len(meant),
        "reused": int(reused is not None and reused.pid == target.pid),
        "wrong": len(wrong) + int(hit),
        "left": len(left),
        "said": outcome.message if left else "",
    }
    for tree in (first, second):
        tree.clear()
    for popen in (*canaries, *([reused] if reused else [])):
        popen.kill()
        popen.wait()
    return row


def session(one: ProcessIdentity) -> int:
    facts = HOST.facts(one.pid)
    assert facts is not None
    return facts.session


async def main() -> None:
    rng, clock, devices = random.Random(23), RealClock(), Devices()
    # What is in the way of a proof, or comes back, shows at once here: nothing is worth a wait.
    gpu_desk.PROOF_S, gpu_desk.RESPAWN_S = 0.0, 0.0
    me = replace(read_me(), is_container=False)  # the devices list pids of this very namespace
    host: Any = SimpleNamespace(clock=clock, me=me, gpus=devices, processes=HOST, pace=1.0)
    with tempfile.TemporaryDirectory() as folder:
        desk = GpuDesk(host, EventFeed(clock, Path(folder) / "audit.jsonl"), lambda: ())
        for _ in range(int(sys.argv[1])):
            print(json.dumps(await one_round(rng, desk, devices)), flush=True)


asyncio.run(main())
