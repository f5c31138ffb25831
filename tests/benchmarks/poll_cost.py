"""What kvctl's polling costs a server: CPU seconds of its processes, polled minus unpolled.

    python -m tests.benchmarks.poll_cost [--seconds 60] [--rounds 5] [--load]

Starts the CPU engine, then alternates windows with and without the very polls that kvctld makes
(its own loops and periods). With --load a paced open loop of requests runs all the time, so that
the work, and its CPU time, is the same in every window.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from tests.engine.server import EngineServer, start_server

from kvctl.core.clock import RealClock
from kvctl.core.controller.polling import Poll
from kvctl.core.controller.servers.sources import LOADS_S, METRICS_S
from kvctl.core.probes.sglang_http import SglangEngine

_TICKS = os.sysconf("SC_CLK_TCK")
PACE_S = 1.0
TOKENS = 64


def cpu_s(server: EngineServer) -> float:
    """Return CPU seconds that the server's processes have used so far."""
    total = 0
    for process in server.members():
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{process.pid}/stat").read_text()
            utime, stime = stat.rpartition(")")[2].split()[11:13]
            total += int(utime) + int(stime)
    return total / _TICKS


@contextlib.asynccontextmanager
async def polled(url: str) -> AsyncIterator[None]:
    """Poll the server as kvctld does while the block runs."""
    clock, engine = RealClock(), SglangEngine(url, RealClock())
    await engine.server_info()
    loops = (
        Poll("loads", LOADS_S, engine.loads, lambda _: None, lambda _: None),
        Poll("metrics", METRICS_S, engine.metrics, lambda _: None, lambda _: None),
    )
    tasks = [asyncio.create_task(loop.run(clock)) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await engine.close()


async def window(server: EngineServer, seconds: float, *, is_polled: bool) -> float:
    """Return the cores that the server used over one window."""
    async with contextlib.AsyncExitStack() as stack:
        if is_polled:
            await stack.enter_async_context(polled(server.url))
        before, begin = cpu_s(server), time.monotonic()
        await asyncio.sleep(seconds)
        return (cpu_s(server) - before) / (time.monotonic() - begin)


async def paced(url: str) -> None:
    """Send one short request a second, whatever becomes of the ones before."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        sent: set[asyncio.Task[httpx.Response]] = set()
        for number in range(1_000_000):
            body = {
                "rid": f"pace-{number}.",
                "input_ids": [1 + number % 200] * 40,
                "sampling_params": {"max_new_tokens": TOKENS, "ignore_eos": True},
            }
            task = asyncio.create_task(http.post("/generate", json=body))
            sent.add(task)
            task.add_done_callback(sent.discard)
            await asyncio.sleep(PACE_S)


async def measure(server: EngineServer, seconds: float, rounds: int) -> list[tuple[float, float]]:
    """Return (unpolled, polled) cores of every round, the order turned round each time."""
    found = []
    for number in range(rounds):
        pair: dict[bool, float] = {}
        for is_polled in (False, True) if number % 2 == 0 else (True, False):
            pair[is_polled] = await window(server, seconds, is_polled=is_polled)
        found.append((pair[False], pair[True]))
        print(f"round {number + 1}: unpolled {pair[False]:.4f} polled {pair[True]:.4f} cores"
              f"  (host load {os.getloadavg()[0]:.1f})", flush=True)  # fmt: skip
    return found


async def run(words: argparse.Namespace, server: EngineServer) -> None:
    """Measure and print the table."""
    load = asyncio.create_task(paced(server.url)) if words.load else None
    await asyncio.sleep(5)
    pairs = await measure(server, words.seconds, words.rounds)
    if load is not None:
        load.cancel()
    costs = [polled_cores - unpolled for unpolled, polled_cores in pairs]
    mean, spread = statistics.mean(costs), statistics.stdev(costs) if len(costs) > 1 else 0.0
    print(f"cost: {mean:.2%} of one core, from {min(costs):.2%} to {max(costs):.2%}")
    print(f"standard deviation {spread:.2%}; {words.rounds} rounds of 2 x {words.seconds:g} s")


def main() -> None:
    """Start the engine, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", action="store_true")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(Path(folder) / "server.log")
        try:
            server.wait_ready()
            asyncio.run(run(words, server))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
