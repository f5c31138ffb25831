"""kvctl's figures beside counts made without it, on a real server at its KV ceiling.

`pytest -m soak tests/engine/test_truth_counted.py -s` prints the tables that stand in
tests/benchmarks/results/telemetry-truth.md.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from tests.engine.server import EngineServer
from tests.engine.test_runs import write_run

from kvctl.core.controller.commands import AdoptServer, StartRun
from kvctl.core.controller.servers.sources import METRICS_S
from kvctl.core.daemon.client import DaemonClient
from kvctl.core.daemon.paths import DaemonPaths
from kvctl.core.daemon.spawn import DaemonLaunch, ensure_running
from kvctl.core.documents.server import server_document
from kvctl.core.domain.figures import Figure
from kvctl.core.domain.servers.server import Server, ServerState
from kvctl.core.domain.snapshot import Snapshot

pytestmark = pytest.mark.soak

CLIENTS = 14
WATCHED_S = 60.0
LOG_WINDOW_S = 10.0
LIVE = ("running", "queued", "token_usage", "used_tokens", "generation_tokens_per_s")


@dataclass
class Kvctld:
    """A real kvctld that watches one server, and every picture it published."""

    client: DaemonClient
    url: str
    shots: list[tuple[float, Snapshot]] = field(default_factory=list)
    """(our monotonic seconds, snapshot)."""

    def of(self, shot: Snapshot) -> Server | None:
        """Return our server in a picture; kvctld finds others on this host too."""
        return next((s for s in shot.servers if s.url == self.url), None)

    def newest(self) -> Server:
        server = self.of(self.shots[-1][1])
        assert server is not None
        return server

    def told(self, since: float = 0.0) -> list[tuple[float, Snapshot, Server]]:
        """Return (our time, picture, our server) of every picture that has it."""
        pairs = ((at, shot, self.of(shot)) for at, shot in self.shots if at >= since)
        return [(at, shot, server) for at, shot, server in pairs if server is not None]

    def follow(self) -> None:
        with contextlib.suppress(Exception):  # it ends with kvctld
            for shot in self.client.stream():
                self.shots.append((time.monotonic(), shot))

    async def until(
        self, holds: Callable[[Snapshot, Server | None], bool], what: str, within_s: float
    ) -> float:
        """Wait for a picture that holds; return the moment when it came."""
        seen, deadline = len(self.shots), time.monotonic() + within_s
        while time.monotonic() < deadline:
            for at, shot in self.shots[seen:]:
                seen += 1
                if holds(shot, self.of(shot)):
                    return at
            await asyncio.sleep(0.05)
        raise AssertionError(f"not seen within {within_s:.0f} s: {what}")


@contextlib.contextmanager
def kvctld_on(folder: Path, server: EngineServer) -> Iterator[Kvctld]:
    paths = DaemonPaths(folder, folder, folder / "config")
    info = ensure_running(DaemonLaunch(paths, folder))
    client = DaemonClient(paths.socket)
    try:
        # It may have been found already: then it is watched under the name of its port.
        client.submit(AdoptServer(str(server.pid)))
        watched = Kvctld(client, server.url)
        threading.Thread(target=watched.follow, daemon=True).start()
        yield watched
    finally:
        os.kill(info.pid, signal.SIGTERM)


@dataclass
class Counted:
    """Tokens as they arrived at streaming clients."""

    total: int = 0
    marks: list[tuple[float, int]] = field(default_factory=list)

    def add(self, tokens: int) -> None:
        self.total += tokens
        self.marks.append((time.monotonic(), self.total))

    def between(self, begin: float, end: float) -> float:
        return self._at(end) - self._at(begin)

    def _at(self, moment: float) -> float:
        before = [total for at, total in self.marks if at <= moment]
        return before[-1] if before else 0.0


@contextlib.asynccontextmanager
async def load(url: str, clients: int = CLIENTS) -> AsyncIterator[Counted]:
    counted = Counted()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        tasks = [asyncio.create_task(_client(http, n, counted)) for n in range(clients)]
        try:
            yield counted
        finally:
            with contextlib.suppress(httpx.HTTPError):
                await http.post("/abort_request", json={"rid": "", "abort_all": True}, timeout=5)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _client(http: httpx.AsyncClient, number: int, counted: Counted) -> None:
    draw = random.Random(number)
    for turn in range(10_000):
        body = {
            "rid": f"truth-{number:02}-{turn}.",
            "input_ids": [draw.randrange(1, 250) for _ in range(60)],
            "sampling_params": {"max_new_tokens": draw.randrange(300, 600), "temperature": 0},
            "stream": True,
        }
        seen = 0
        async with http.stream("POST", "/generate", json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    count = int(line.rpartition('"completion_tokens":')[2].split(",")[0])
                    counted.add(count - seen)
                    seen = count


def retracted_in(log: str) -> int:
    lines = [x for x in log.splitlines() if "Retract requests." in x]
    return sum(int(re.findall(r"#retracted_reqs: (\d+)", line)[0]) for line in lines)


async def raw_loads(http: httpx.AsyncClient) -> tuple[float, int, int, float]:
    entry = (await http.get("/v1/loads")).json()["loads"][0]
    return (
        entry["timestamp"],
        entry["num_running_reqs"],
        entry["num_waiting_reqs"],
        entry["token_usage"],
    )


async def sampled_raw(url: str, seconds: float) -> list[tuple[float, tuple[int, int, float]]]:
    """Read /v1/loads ten times a second: (the scheduler's own time, counts)."""
    found = []
    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stamp, *counts = await raw_loads(http)
            found.append((stamp, (counts[0], counts[1], counts[2])))
            await asyncio.sleep(0.1)
    return found  # type: ignore[return-value]


def generation_table(kvctld: Kvctld, counted: Counted, since: float) -> list[tuple[float, float]]:
    """Return (shown, counted) of every distinct counter window, over exactly that window."""
    shown: dict[float, float] = {}
    for ours, shot, server in kvctld.told():
        figure = server.decode.generation_tokens_per_s
        if figure.value is not None and figure.at is not None and figure.source.endswith(" s"):
            shown.setdefault(round(ours - (shot.at - figure.at), 1), float(figure.value))
    moments = sorted(shown)
    pairs = []
    for end in moments:
        # The window begins at the newest reading that is ten seconds older (less half a second).
        begin = max((at for at in moments if end - at >= 9.5), default=None)
        if begin is not None and begin >= since:
            pairs.append((shown[end], counted.between(begin, end) / (end - begin)))
    return pairs


@dataclass
class Equality:
    """How pictures compare with what /v1/loads said in the same second."""

    exact: int = 0
    """All three figures are those of one of our own readings."""
    between: int = 0
    """They lie between our readings around them (usage moves by 0.03 in a tenth of a second)."""
    total: int = 0


def equal_seconds(
    kvctld: Kvctld, raw: list[tuple[float, tuple[int, int, float]]], since: float
) -> Equality:
    """Compare every picture with our own readings of the second before it."""
    found = Equality()
    for _, shot, server in kvctld.told(since):
        decode = server.decode
        if decode.running.at is None:
            continue
        # Dated by when the answer came, on a busy host seconds after the scheduler wrote it.
        wall = shot.wall - (shot.at - decode.running.at)
        near = [counts for stamp, counts in raw if -2.5 <= stamp - wall <= 0.1]
        if len(near) < 2:
            continue
        shown = (decode.running.value, decode.queued.value, decode.token_usage.value)
        bounds = [(min(c), max(c)) for c in zip(*near, strict=True)]
        slack = (0, 0, 0.03)
        found.total += 1
        found.exact += shown in near
        found.between += all(
            v is not None and low - s <= v <= high + s
            for v, (low, high), s in zip(shown, bounds, slack, strict=True)
        )
    return found


@pytest.mark.parametrize("metrics", [True, False], ids=["metrics", "no-metrics"])
async def test_figures_at_the_ceiling_equal_counts_made_without_kvctl(
    engine_server: Callable[..., EngineServer], tmp_path: Path, metrics: bool
) -> None:
    server = engine_server(enable_metrics=metrics)
    with kvctld_on(tmp_path / "state", server) as kvctld:
        offset = server.log_size()
        async with load(server.url) as counted:
            await asyncio.sleep(15)
            since = time.monotonic()
            raw = await sampled_raw(server.url, WATCHED_S)
            decode = kvctld.newest().decode
            rate = counted.between(since, time.monotonic()) / (time.monotonic() - since)
            pairs = generation_table(kvctld, counted, since)
            rates = [
                (float(told.decode.generation_tokens_per_s.value or 0), at)
                for at, _, told in kvctld.told(since + LOG_WINDOW_S)
            ]
            looked_back = [
                (value, counted.between(at - LOG_WINDOW_S, at) / LOG_WINDOW_S)
                for value, at in rates
            ]
        equal = equal_seconds(kvctld, raw, since + 1)
        await asyncio.sleep(6)
        after = kvctld.newest().decode
        logged = retracted_in(server.log_text(offset))
        shown = after.retracted_total.value
        mean = sum(value for value, _ in rates) / len(rates)
        word = "on" if metrics else "off"
        print(f"\nmetrics {word}: counted {rate:.0f} tok/s over {WATCHED_S:.0f} s")
        print(f"  mean shown generation {mean:.0f} ({mean / rate - 1:+.1%}), "
              f"source {decode.generation_tokens_per_s.source}")  # fmt: skip
        # The live counter's windows are known to the moment; the log's end within a line of now.
        windows = pairs or looked_back
        worst = max(abs(s / c - 1) for s, c in windows)
        whole = sum(s for s, _ in windows) / sum(c for _, c in windows) - 1
        print(f"  {len(windows)} windows of 10 s: all {whole:+.2%}, worst one {worst:.2%}")
        share = f"{equal.exact} the very same, {equal.between} between, of {equal.total}"
        print(f"  counts and usage beside /v1/loads of the same second: {share}")
        print(f"  retractions: log {logged}, shown {shown} ({after.retracted_total.source})")
        document = server_document(kvctld.newest(), kvctld.shots[-1][1].at)
        for name, truth in document["figures"].items():
            if document[name] is None:
                print(f"  unknown: {name}: {truth['reason']}")
        for comparison in decode.sources:
            told = ", ".join(f"{t.source} {t.value:.6g}" for t in comparison.told)
            print(f"  {comparison.figure}: {told}  {comparison.problem or 'agree'}")
        assert bool(pairs) == metrics
        assert abs(whole) <= 0.03
        assert equal.between >= 0.9 * equal.total > 0
        assert logged > 0 and shown == logged


async def test_effective_tokens_equal_the_journals(
    engine_server: Callable[..., EngineServer], tmp_path: Path
) -> None:
    server = engine_server()
    path = write_run(tmp_path, "counted", tokens=600, concurrency=16)
    path.write_text(
        path.read_text().replace("scout = 2\n", f'scout = 2\nserver = "{server.url}"\n')
    )
    with kvctld_on(tmp_path / "state", server) as kvctld:
        await kvctld.until(lambda _, server: server is not None, "our server", 30)
        outcome = await asyncio.to_thread(kvctld.client.submit, StartRun(str(path)))
        assert outcome.is_done, outcome
        await kvctld.until(lambda s, _: s.run is not None and s.run.done >= 55, "55 answers", 240)
        rows = _answers(path.parent / "counted" / "raw_responses.jsonl")
        table = [line for _, s, server in kvctld.told() if (line := _effective(s, server, rows))]
        worst = max(abs(shown - counted) / counted for shown, counted in table)
        print(f"\neffective: {len(table)} pictures, worst difference to the journal {worst:.2%}")
        print(f"  last: shown {table[-1][0]:.1f} tok/s, journal {table[-1][1]:.1f}")
        assert worst < 0.03 and len(table) > 20


def _answers(path: Path) -> list[tuple[float, int]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["t_done"], row["completion_tokens"]) for row in rows]


def _effective(
    shot: Snapshot, server: Server, rows: list[tuple[float, int]]
) -> tuple[float, float] | None:
    run = shot.run
    figure = server.decode.effective_tokens_per_s
    if run is None or figure.value is None or not run.effective_window_s:
        return None
    # Done rows in the order of the journal: as many as the picture counts.
    tokens = sum(count for _, count in rows[: run.done])
    if run.effective_window_s < 5 or run.completed_in_window != run.done:
        return None
    return float(figure.value), tokens / run.effective_window_s


def is_live(shot: Snapshot, server: Server | None) -> bool:
    return server is not None and server.state in (ServerState.DECODING, ServerState.BUSY_PREFILL)


@pytest.mark.parametrize("fault", ["SIGSTOP the scheduler", "pause in place", "retract", "kill"])
async def test_no_old_figure_is_live_five_seconds_after_a_fault(
    engine_server: Callable[..., EngineServer], tmp_path: Path, fault: str
) -> None:
    server = engine_server(watchdog_timeout=3600)
    with kvctld_on(tmp_path / "state", server) as kvctld:
        async with load(server.url, 8):
            await kvctld.until(is_live, "decoding", 30)
            await asyncio.sleep(12)
            scheduler = next(p for p in server.members() if "scheduler" in " ".join(p.cmdline()))
            begin = time.monotonic()
            counted = _counted(kvctld.newest())
            await _break(fault, server, scheduler.pid)
            stalled = await _watch(kvctld, fault, begin)
            lies = [
                text
                for at, shot, told in kvctld.told(begin)
                if (text := _lie(at - begin, shot.at, told, fault))
                or (text := _false_zero(told, counted, fault))
            ]
            first = next(
                (at for at, shot in kvctld.shots if at > begin and _is_told(kvctld.of(shot))), None
            )
            word = _last_word(kvctld.of(kvctld.shots[-1][1]))
            print(f"\n{fault}: told after {(first or 0) - begin:.1f} s, {stalled:.1f} s: {word}")
            if fault.startswith("SIGSTOP"):
                os.kill(scheduler.pid, signal.SIGCONT)
            elif fault != "kill":
                await asyncio.to_thread(httpx.post, f"{server.url}/continue_generation", json={})
            assert not lies, lies[:5]
            assert first is not None and first - begin <= 5.0


async def _break(fault: str, server: EngineServer, scheduler: int) -> None:
    if fault == "kill":
        server.process.kill()
        server.process.wait()
    elif fault.startswith("SIGSTOP"):
        os.kill(scheduler, signal.SIGSTOP)
    else:
        mode = "in_place" if "place" in fault else "retract"
        async with httpx.AsyncClient(timeout=10) as http:
            await http.post(f"{server.url}/pause_generation", json={"mode": mode})


async def _watch(kvctld: Kvctld, fault: str, begin: float) -> float:
    """Wait for the last word on a fault; return after how long it came."""
    wanted: tuple[ServerState, ...] = (ServerState.STALLED,)
    if fault == "kill":
        wanted = (ServerState.FAILED, ServerState.STOPPED, ServerState.UNREACHABLE)
    at = await kvctld.until(
        lambda _, server: server is None or server.state in wanted, f"{wanted}", 45
    )
    if fault != "kill":
        # Thirty seconds from the last token that was seen: counters are read every METRICS_S.
        assert 28.0 <= at - begin <= 30.0 + METRICS_S + 2.0, at - begin
    return at - begin


def _is_told(server: Server | None) -> bool:
    """Whether a picture says that its figures are not of now."""
    return server is None or server.decode.is_frozen or not server.state.is_ready


def _last_word(server: Server | None) -> str:
    return "gone" if server is None else f"{server.state.value}: {server.state_reason}"


def _counted(server: Server) -> tuple[str, ...]:
    """Return the figures that are above 0 now; the load goes on, so a 0 later would be false."""
    return tuple(name for name in LIVE if getattr(server.decode, name).value)


def _false_zero(server: Server, counted: tuple[str, ...], fault: str) -> str | None:
    for name in counted:
        figure = getattr(server.decode, name)
        if figure.value == 0 and not _is_true(figure, fault):
            return f"{name} turned to 0 ({figure.source})"
    return None


def _is_true(figure: Figure, fault: str) -> bool:
    """Whether an engine that stopped says so itself.

    A retract pause empties the gauges and puts all into the queue: those counts are true.
    """
    return fault == "retract" and figure.source == "/metrics"


def _lie(since: float, now: float, server: Server, fault: str) -> str | None:
    """Return what a picture of five seconds after the fault still tells as of now."""
    if since < 5.0:
        return None
    for name in LIVE:
        figure = getattr(server.decode, name)
        age = figure.age_s(now)
        if (
            figure.value is not None
            and not _is_true(figure, fault)
            and (age is None or age < since - 4.0)
        ):
            return f"{since:.1f} s: {name} {figure.value} of {age} s ago ({figure.source})"
    return None
