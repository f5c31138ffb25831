"""kvctl's readings against a real server: counts, rates, retractions, pauses, a hung scheduler."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest
from tests.engine.client import EngineClient, until
from tests.engine.server import EngineServer, PlainEngine

from kvctl.core.clock import RealClock
from kvctl.core.domain.figures import Figure
from kvctl.core.domain.logs.lines import LogKind
from kvctl.core.domain.servers.decode import (
    DecodeState,
    decode_of,
    fold_info,
    fold_loads,
    fold_log,
    fold_metrics,
    fold_no_metrics,
    frozen_since,
)
from kvctl.core.domain.servers.health import HealthInputs, assess
from kvctl.core.domain.servers.server import Decode, ServerState
from kvctl.core.domain.servers.startup import fold_startup, launched
from kvctl.core.ports import ProbeFailed
from kvctl.core.probes.log_tail import FileLogTail
from kvctl.core.probes.sglang_http import SglangEngine

pytestmark = pytest.mark.engine

STALL_AFTER_S = 6.0


@dataclass
class Watcher:
    """All sources of one server, folded as kvctld does it."""

    server: EngineServer
    engine: SglangEngine
    tail: FileLogTail
    state: DecodeState = field(default_factory=DecodeState)

    async def look(self, *, metrics: bool = True) -> Decode:
        self.state = fold_loads(self.state, await self.engine.loads(), time.monotonic())
        if metrics:
            try:
                reading = await self.engine.metrics()
                self.state = fold_metrics(self.state, reading, time.monotonic())
            except ProbeFailed as failure:
                assert failure.cause == "off"
                self.state = fold_no_metrics(self.state, "metrics are off")
        self.state = fold_log(self.state, self.tail.read_new(), time.monotonic())
        return decode_of(self.state, time.monotonic())

    def health(self, decode: Decode) -> ServerState:
        progress = self.state.progress
        running, queued = decode.running.value, decode.queued.value
        inputs = HealthInputs(
            is_process_alive=True,
            is_ready_seen=True,
            last_answer_at=time.monotonic(),
            running=None if running is None else int(running),
            queued=None if queued is None else int(queued),
            is_frozen=self.state.is_frozen,
            frozen_since=frozen_since(self.state),
            decode_at=progress.decode_at,
            prefill_at=progress.prefill_at,
            progress_at=progress.progress_at,
            busy_since=progress.busy_since,
            stall_after_s=STALL_AFTER_S,
        )
        return assess(inputs, ServerState.DECODING, time.monotonic())[0]

    async def moves(self) -> bool:
        return not (await self.look()).is_frozen

    async def decodes(self) -> bool:
        return self.health(await self.look()) is ServerState.DECODING


@contextlib.asynccontextmanager
async def watching(server: EngineServer) -> AsyncIterator[Watcher]:
    engine = SglangEngine(server.url, RealClock())
    watcher = Watcher(server, engine, FileLogTail(str(server.log_path)))
    watcher.state = fold_info(watcher.state, await engine.server_info())
    await watcher.look()
    try:
        yield watcher
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def load(url: str, clients: int) -> AsyncIterator[list[int]]:
    """Keep closed-loop streaming clients going; yields the list of every token's arrival count."""
    tokens: list[int] = [0]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        tasks = [asyncio.create_task(_client(http, n, tokens)) for n in range(clients)]
        try:
            yield tokens
        finally:
            await http.post("/abort_request", json={"rid": "", "abort_all": True})
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _client(http: httpx.AsyncClient, number: int, tokens: list[int]) -> None:
    draw = random.Random(number)
    for turn in range(10_000):
        body = {
            "rid": f"tele-{number:02}-{turn}.",
            "input_ids": [draw.randrange(1, 250) for _ in range(60)],
            "sampling_params": {"max_new_tokens": draw.randrange(300, 600), "temperature": 0},
            "stream": True,
        }
        seen = 0
        async with http.stream("POST", "/generate", json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    count = int(line.rpartition('"completion_tokens":')[2].split(",")[0])
                    tokens[0] += count - seen
                    seen = count


def _known(figure: Figure) -> float:
    assert figure.value is not None, figure.reason
    return figure.value


async def test_figures_of_a_server_at_its_ceiling_are_its_own(
    engine: EngineServer, client: EngineClient
) -> None:
    async with watching(engine) as watcher, load(engine.url, 14) as tokens:
        offset = engine.log_size()
        await asyncio.sleep(5)  # until the pool is full
        before, begin = tokens[0], time.monotonic()
        for _ in range(13):
            decode = await watcher.look()
            await asyncio.sleep(1)
        assert watcher.health(decode) is ServerState.DECODING
        first, last = watcher.state.window.readings[1], watcher.state.window.readings[-1]
        counted = (tokens[0] - before) / (time.monotonic() - begin)
        name = "realtime_tokens_total.decode"
        shown = (last.counters[name] - first.counters[name]) / (last.at - first.at)
        assert shown == pytest.approx(counted, rel=0.10)
        assert _known(decode.running) + _known(decode.queued) == pytest.approx(14, abs=2)
        assert 0.4 < _known(decode.token_usage) <= 1.0
        assert decode.retracted_per_min.known and decode.ttft_p50_s.known
        decode = await watcher.look()
        told = engine.log_text(offset).count("Retract requests.")
        assert watcher.state.log.retracted_total >= told > 0


async def test_the_log_tells_the_start_of_a_real_server(engine: EngineServer) -> None:
    records = FileLogTail(str(engine.log_path)).startup_records()
    progress = fold_startup(launched(0.0), records, 1.0)
    assert progress.is_ready
    assert (progress.pool_tokens, progress.max_running) == (4096, 2048)
    assert not [r for r in records if r.kind is LogKind.FAILURE]


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_paused_engine_is_frozen_within_five_seconds_and_moves_again(
    engine: EngineServer, client: EngineClient, mode: str
) -> None:
    async with watching(engine) as watcher, load(engine.url, 6):
        await client.until_load(lambda load: load.running == 6, "six running requests")
        assert not (await watcher.look()).is_frozen
        await watcher.engine.pause(mode)
        paused_at = time.monotonic()
        while not (decode := await watcher.look(metrics=mode == "retract")).is_frozen:
            assert time.monotonic() - paused_at < 5
            await asyncio.sleep(0.5)
        assert (decode.running.value == 0) == (mode == "retract")
        assert (decode.running.age_s(time.monotonic()) or 0) > 2
        await watcher.engine.unpause()
        await until(watcher.moves, "figures that move again", 5)


async def test_a_stopped_scheduler_is_stalled_and_recovers(
    engine: EngineServer, client: EngineClient
) -> None:
    async with watching(engine) as watcher, load(engine.url, 6):
        await client.until_load(lambda load: load.running == 6, "six running requests")
        await watcher.look()
        scheduler = next(p for p in engine.members() if "scheduler" in " ".join(p.cmdline()))
        os.kill(scheduler.pid, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            while watcher.health(await watcher.look()) is not ServerState.STALLED:
                assert time.monotonic() - begin < 20
                await asyncio.sleep(0.5)
            assert time.monotonic() - begin > STALL_AFTER_S - 2
        finally:
            os.kill(scheduler.pid, signal.SIGCONT)
        await until(watcher.decodes, "decoding again", 5)


async def test_the_live_cap_is_set_read_back_and_restored(
    engine: EngineServer, client: EngineClient
) -> None:
    async with watching(engine) as watcher:
        before = (await watcher.engine.server_info()).live_cap
        assert before is not None
        try:
            assert await watcher.engine.set_live_cap(4) == 4
            with pytest.raises(ProbeFailed) as caught:
                await watcher.engine.set_live_cap(before + 1)
            assert caught.value.cause == "rejected"
        finally:
            assert await watcher.engine.set_live_cap(before) == before


async def test_without_metrics_exactly_the_counted_figures_are_unknown(
    plain_engine: PlainEngine,
) -> None:
    server = plain_engine.server
    async with watching(server) as watcher, load(server.url, 14) as tokens:
        await asyncio.sleep(4)
        before, begin = tokens[0], time.monotonic()
        for _ in range(12):
            decode = await watcher.look()
            await asyncio.sleep(1)
        counted = (tokens[0] - before) / (time.monotonic() - begin)
        assert decode.generation_tokens_per_s.source == "log"
        assert decode.generation_tokens_per_s.value == pytest.approx(counted, rel=0.25)
        assert decode.retracted_total.source.startswith("log")
        assert decode.running.known and decode.token_usage.known
        for figure in (decode.cache_hit_ratio, decode.ttft_p50_s, decode.queue_wait_s):
            assert not figure.known and figure.reason == "metrics are off"
