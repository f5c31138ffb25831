"""Rounds of start, end and real pid reuse; run as process 1 of a pid namespace of its own.

In each round some victims end by themselves and canaries are started on their very pids; then
kvctl is told to end every victim. Prints one JSON line a round.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys

from tests.nvml.ticks import wait_past

from kvctl.core.clock import RealClock
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.probes.processes import HostProcesses, read_me
from kvctl.core.servers.processes.ending import end_processes

HOST = HostProcesses()


def start(title: str, pid: int | None = None) -> subprocess.Popen[bytes]:
    """Start `sleep`, on a certain pid if that is free."""
    if pid is not None:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
    return subprocess.Popen([title, "600"], executable="/bin/sleep")


def identity_of(pid: int) -> ProcessIdentity:
    facts = HOST.facts(pid)
    assert facts is not None
    return facts.identity


async def one_round(rng: random.Random) -> dict[str, int]:
    victims = [start("sglang::scheduler_TP0") for _ in range(rng.randint(2, 4))]
    targets = [identity_of(victim.pid) for victim in victims]
    for target in targets:
        wait_past(target)
    canaries = []
    for victim in victims:
        if rng.random() < 0.6:
            victim.kill()
            victim.wait()
            canaries.append(start("canary", victim.pid))
    rng.shuffle(targets)
    ending = end_processes(
        HOST,
        RealClock(),
        targets,
        first=rng.choice((signal.SIGTERM, signal.SIGKILL)),
        wait_s=2,
        escalate=True,
    )
    if rng.random() < 0.5:
        await asyncio.gather(ending, late_end(rng, victims))
    else:
        await ending
    hit = sum(1 for canary in canaries if canary.poll() is not None)
    left = sum(1 for target in targets if HOST.is_alive(target))
    reused = sum(1 for canary in canaries if canary.pid in {t.pid for t in targets})
    for process in (*canaries, *victims):
        process.kill()
        process.wait()
    return {"reused": reused, "canaries_hit": hit, "victims_left": left}


async def late_end(rng: random.Random, victims: list[subprocess.Popen[bytes]]) -> None:
    """Collect victims at odd moments, so that their pids become free while kvctl waits."""
    for victim in victims:
        await asyncio.sleep(rng.random() * 0.01)
        victim.poll()


async def main() -> None:
    rng = random.Random(11)
    is_container = int(read_me().is_container)
    for _ in range(int(sys.argv[1])):
        print(json.dumps({**await one_round(rng), "is_container": is_container}), flush=True)


asyncio.run(main())
