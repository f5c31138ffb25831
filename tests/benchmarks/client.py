"""kvctl's client against others on the same server, which answers 4,000 tokens at once.

    python -m tests.benchmarks.client [--count 10000] [--rounds 3] [--long 100000] [--write]

Client and server have a core each. `kvctl` is the run driver as kvctld runs it, journal on; `raw
aiohttp` posts, reads and parses the body and does nothing else; the peers are sglang's
bench_serving from the test engine's interpreter and, where KVCTL_AIPERF names its command,
NVIDIA's aiperf. Writes results/client.md.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import aiohttp
import msgspec
from tests.benchmarks.measured import Measured
from tests.benchmarks.peers import PEERS, Load
from tests.benchmarks.trivial_server import ANSWER, TOKENS, body
from tests.fakes.sim_server import free_port

from kvctl.core.clock import RealClock
from kvctl.core.daemon.process import collect_seldom
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.opening.opening import OpenOptions
from kvctl.core.runs.opening.run_file import load_run
from kvctl.core.runs.sending.transport import AiohttpGenerator

SLOTS, PROMPT_TOKENS = 150, 200
CLIENT_CORE, SERVER_CORE = 0, 1
LAG_STEP_S = 0.01
VOCABULARY = 65_536
PEER_COUNT = 2000
"""Peers make all their prompts first: a longer run tells nothing more."""
RESULT = Path(__file__).parent / "results" / "client.md"


class Lag:
    """How late the event loop is."""

    def __init__(self) -> None:
        """Begin with nothing measured."""
        self.late: list[float] = []

    async def watch(self) -> None:
        """Sleep shortly again and again until cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_STEP_S)
            self.late.append(time.perf_counter() - before - LAG_STEP_S)

    def p99_ms(self) -> float:
        """Return the 99th percentile, milliseconds."""
        return 1000 * sorted(self.late)[int(0.99 * (len(self.late) - 1))]


def cpu_s() -> float:
    """Return this process's CPU seconds so far, threads included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rss_mb() -> float:
    """Return this process's resident memory now, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


# -- the clients, each in a process of its own -----------------------------------------------


async def run_kvctl(url: str, count: int, vocabulary: int | None = None) -> Measured:
    """Drive a run of that many rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = OpenOptions(vocabulary=vocabulary)
        spec = load_run(write_run(folder, count))
        driver = RunDriver(spec, RealClock(), [_at(url)], options=options)
        await driver.open()
        lag, rss = Lag(), [rss_mb()]
        watching = asyncio.create_task(lag.watch())
        driver.set_target(SLOTS)
        began, cpu = time.perf_counter(), cpu_s()
        driver.start()
        for tenth in range(1, 11):
            await driver.until(_reached(driver, count * tenth // 10), 3600.0)
            rss.append(rss_mb())
        await driver.finished()
        measured = Measured(
            count, time.perf_counter() - began, cpu_s() - cpu, lag.p99_ms(), tuple(rss)
        )
        watching.cancel()
        await driver.close()
        return measured


def _at(url: str) -> Callable[[], AiohttpGenerator]:
    return lambda: AiohttpGenerator(url)


def _reached(driver: RunDriver, wanted: int) -> Callable[[], bool]:
    assert driver._pump is not None
    parts = driver._pump.opened.counters.partitions
    return lambda: sum(part.done for part in parts) >= wanted


def write_run(folder: Path, count: int) -> Path:
    """Write a run of that many rows of ids."""
    tail = ",".join(["5"] * (PROMPT_TOKENS - 1))
    with (folder / "B.jsonl").open("w") as lines:
        for row in range(count):
            lines.write(f'{{"id":"r{row}","input_ids":[{row % 900},{tail}]}}\n')
    path = folder / "run.toml"
    path.write_text(
        f'[run]\nname = "client"\noutput = "out"\nconcurrency = {SLOTS}\n'
        f"[sampling]\nmax_new_tokens = {TOKENS}\n"
        '[[partition]]\nname = "B"\ninput = "B.jsonl"\n'
    )
    return path


async def run_raw(url: str, count: int, parse: Callable[[bytes], object]) -> Measured:
    """Post, read and parse with bare aiohttp."""
    tail = [5] * (PROMPT_TOKENS - 1)
    numbers = iter(range(count))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def worker() -> None:
            for row in numbers:
                body = {
                    "rid": f"r{row:08d}.",
                    "input_ids": [row % 900, *tail],
                    "sampling_params": {"max_new_tokens": TOKENS},
                }
                async with session.post(f"{url}/generate", json=body) as response:
                    parse(await response.read())

        lag = Lag()
        watching = asyncio.create_task(lag.watch())
        began, cpu = time.perf_counter(), cpu_s()
        await asyncio.gather(*(worker() for _ in range(SLOTS)))
        watching.cancel()
        return Measured(count, time.perf_counter() - began, cpu_s() - cpu, lag.p99_ms())


def as_child(which: str, url: str, count: int) -> None:
    """Be one client on its core and print what was measured."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    if which.startswith("kvctl"):
        collect_seldom()
        vocabulary = VOCABULARY if which == "kvctl-vocabulary" else None
        measured = asyncio.run(run_kvctl(url, count, vocabulary))
    else:
        parse = json.loads if which == "raw" else msgspec.json.decode
        measured = asyncio.run(run_raw(url, count, parse))
    print(json.dumps(asdict(measured)))


# -- the bench -------------------------------------------------------------------------------


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Run the trivial server on the other core."""
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.trivial_server", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        os.sched_setaffinity(server.pid, {SERVER_CORE})
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def take_pages(count: int) -> None:
    """Write as much as kvctl's journal does, and remove it.

    A virtual machine gives free memory back to its host; taking it again for the page cache has
    cost 90 µs a response, which is the machine's cost and no client's. Not synced.
    """
    with tempfile.TemporaryFile() as file:
        for _ in range(count):
            file.write(ANSWER)


def measure(which: str, url: str, count: int) -> Measured:
    """Run one client in a process of its own."""
    take_pages(count)
    if which in PEERS:
        load = Load(SLOTS, PROMPT_TOKENS, TOKENS, CLIENT_CORE)
        return PEERS[which](url, min(count, PEER_COUNT), load)
    command = [sys.executable, "-m", "tests.benchmarks.client", "--child", which, url, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return Measured(**{**found, "rss_mb": tuple(found["rss_mb"])})


WHO = {
    "kvctl": "kvctl, journal on",
    "kvctl-vocabulary": "the same, every id held against a vocabulary",
    "raw": "raw aiohttp, read and parsed (json)",
    "raw-msgspec": "raw aiohttp, read and parsed (msgspec)",
    "bench_serving": "sglang bench_serving, not streaming",
    "aiperf": "aiperf, not streaming, without its tokenizer",
}
HEAD = """# What the client costs: 4,000-token answers from a server that makes none

`python -m tests.benchmarks.client --count {count} --rounds {rounds} --long {long}`: {slots}
requests in flight, prompts of {prompt} ids, a body of {size:.0f} KB (ids, text, meta_info), client
and server pinned to a core each; the clients take turns, each round begins with another one.
Medians; "makes" are medians of the ratios of the rounds. Python {python}, load of the host {load}
at the end. A peer's CPU time is of all its processes, start and prompts
included, its rate is its own figure. Before every round, of whatever client, as many pages as the
journal takes are written and freed again, so that the host's giving them is not measured.

| client | responses/s | each round | CPU ms a response | loop lag p99 |
| --- | ---: | --- | ---: | ---: |
"""


def table(
    rounds: dict[str, list[Measured]], long: Measured | None, given: argparse.Namespace
) -> str:
    """Return the whole result page."""
    text = HEAD.format(
        count=given.count,
        rounds=given.rounds,
        long=given.long,
        slots=SLOTS,
        prompt=PROMPT_TOKENS,
        size=len(body()) / 1000,
        python=sys.version.split()[0],
        load=f"{os.getloadavg()[0]:.1f}",
    )
    for which, found in rounds.items():
        lag = [one.lag_p99_ms for one in found if one.lag_p99_ms is not None]
        each = ", ".join(f"{one.per_s:,.0f}" for one in found)
        late = f"{statistics.median(lag):.1f} ms" if lag else "–"
        cpu = statistics.median(one.cpu_ms for one in found)
        text += f"| {WHO[which]} | {rate(found):,.0f} | {each} | {cpu:.2f} | {late} |\n"
    text += "\n"
    for which, wanted in (("raw", 0.8), ("bench_serving", 2.0), ("aiperf", 2.0)):
        if which in rounds:
            plain, checked = (beside(rounds, w, which) for w in ("kvctl", "kvctl-vocabulary"))
            text += f"kvctl makes {plain:.2f} of {WHO[which]} (wanted: {wanted:g} or more)"
            text += f", with a vocabulary {checked:.2f}.\n"
    spent = {w: statistics.median(one.cpu_ms for one in found) for w, found in rounds.items()}
    text += (
        f"\nBy CPU time alone, which other work on the host does not stretch: raw aiohttp takes "
        f"{spent['raw'] / spent['kvctl']:.2f} of what kvctl takes a response, with msgspec "
        f"{spent['raw-msgspec'] / spent['kvctl']:.2f}.\n"
    )
    if long is not None:
        steps = ", ".join(f"{mb:.0f}" for mb in long.rss_mb)
        text += (
            f"\nOver {long.count:,} requests in one run: {long.per_s:,.0f} responses/s, loop lag "
            f"p99 {long.lag_p99_ms:.1f} ms (wanted: below 50), resident memory in MB at the start "
            f"and after each tenth: {steps}.\n"
        )
    return text


def rate(found: list[Measured]) -> float:
    """Return the median responses per second."""
    return statistics.median(one.per_s for one in found)


def beside(rounds: dict[str, list[Measured]], one: str, other: str) -> float:
    """Return the median ratio of two clients' rates, round by round: the host's speed drifts."""
    pairs = zip(rounds[one], rounds[other], strict=True)
    return statistics.median(a.per_s / b.per_s for a, b in pairs)


def main() -> None:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--long", type=int, default=100_000, help="0: leave the long run out")
    parser.add_argument("--without", action="append", default=[], choices=tuple(WHO))
    parser.add_argument("--write", action="store_true", help="write results/client.md")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        as_child(given.child[0], given.child[1], int(given.child[2]))
        return
    left_out = given.without + ([] if "KVCTL_AIPERF" in os.environ else ["aiperf"])
    rounds: dict[str, list[Measured]] = {w: [] for w in WHO if w not in left_out}
    with serving() as url:
        for number in range(given.rounds):
            first = number % len(rounds)
            for which in [*rounds, *rounds][first : first + len(rounds)]:
                found = measure(which, url, given.count)
                rounds[which].append(found)
                told = f"{found.per_s:,.0f}/s, CPU {found.cpu_ms:.2f} ms"
                print(f"round {number + 1}: {which}: {told}, {found.lag_p99_ms}", flush=True)
        long = measure("kvctl", url, given.long) if given.long else None
    text = table(rounds, long, given)
    print(text)
    if given.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
