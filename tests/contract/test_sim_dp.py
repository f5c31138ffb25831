"""Two DP ranks, fed unevenly: sums, the worst rank, the imbalance, and no old figure as live."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest
from tests.fakes.sim_server import SimServer, sim_server, until

from kvctl.core.clock import RealClock
from kvctl.core.domain.servers.decode import (
    DecodeState,
    decode_of,
    fold_info,
    fold_loads,
    fold_log,
    fold_metrics,
)
from kvctl.core.domain.servers.server import Decode
from kvctl.core.probes.log_tail import FileLogTail
from kvctl.core.probes.sglang_http import SglangEngine

LONG = {"max_new_tokens": 12_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimServer]:
    flags = ("--enable-metrics", "--tp-size", "8", "--dp-size", "2", "--enable-dp-attention")
    more = ("--max-total-tokens", "40000", "--decode-log-interval", "40")
    folder = tmp_path_factory.mktemp("dp")
    with sim_server(folder, *flags, *more, speed=20.0) as running:
        yield running


@pytest.fixture
def uneven(server: SimServer) -> Iterator[SimServer]:
    """Forty requests on rank 0, two on rank 1."""
    pool = ThreadPoolExecutor(48)
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(base_url=server.url, timeout=60, limits=limits, trust_env=False) as http:

        def send(number: int) -> httpx.Response:
            body = {
                "rid": f"dp-{number}.",
                "input_ids": server.ids(number=number) * 12,
                "sampling_params": LONG,
                "routed_dp_rank": 0 if number < 40 else 1,
            }
            return http.post("/generate", json=body)

        sent = [pool.submit(send, number) for number in range(42)]
        until("42 taken", lambda: sum(_counts(server, 0) + _counts(server, 1)) == 42)
        yield server
        server.http.post("/continue_generation", json={})
        server.http.post("/abort_request", json={"abort_all": True})
        for future in sent:
            future.result()


def _counts(server: SimServer, rank: int) -> tuple[int, int]:
    entry = server.http.get("/v1/loads").json()["loads"][rank]
    assert entry["dp_rank"] == rank
    return entry["num_running_reqs"], entry["num_waiting_reqs"]


class Looking:
    """All sources of the server, folded as kvctld does it."""

    def __init__(self, server: SimServer) -> None:
        self.engine = SglangEngine(server.url, RealClock())
        self.tail = FileLogTail(str(server.log_path))
        self.state = DecodeState()

    async def look(self) -> Decode:
        now = time.monotonic
        if self.state.info is None:
            self.state = fold_info(self.state, await self.engine.server_info())
        self.state = fold_loads(self.state, await self.engine.loads(), now())
        self.state = fold_metrics(self.state, await self.engine.metrics(), now())
        self.state = fold_log(self.state, self.tail.read_new(), now())
        return decode_of(self.state, now())


@contextlib.asynccontextmanager
async def looking_at(server: SimServer) -> AsyncIterator[Looking]:
    looking = Looking(server)
    try:
        yield looking
    finally:
        await looking.engine.close()
        looking.tail.close()


async def test_counts_add_up_the_worst_rank_is_named_and_the_imbalance_is_told(
    uneven: SimServer,
) -> None:
    async with looking_at(uneven) as looking:
        decode = await looking.look()
        running = _counts(uneven, 0)[0] + _counts(uneven, 1)[0]
        assert decode.running.value == pytest.approx(running, abs=2)
        assert decode.queued.value == 42 - (decode.running.value or 0)
        assert decode.pool_tokens.value == 80_000
        assert decode.worst_rank == "DP0"
        usages = [r.token_usage for r in looking.state.loads.ranks] if looking.state.loads else []
        assert decode.token_usage.value == usages[0] == max(u for u in usages if u is not None)
        assert decode.imbalance is not None and decode.imbalance.startswith("DP0 has ")
        assert decode.imbalance.endswith("while DP1 runs 2")


async def test_each_rank_writes_its_own_lines_and_exports_its_own_series(
    uneven: SimServer,
) -> None:
    until("a line of each rank", lambda: all(
        uneven.lines(f"DP{dp} TP{tp}] Decode batch") for dp, tp in ((0, 0), (1, 4))
    ))  # fmt: skip
    text = uneven.http.get("/metrics").text
    series = [line for line in text.splitlines() if line.startswith("sglang:num_running_reqs{")]
    assert [f'dp_rank="{dp}"' in line for dp, line in enumerate(series)] == [True, True]


async def test_metrics_alone_and_the_log_alone_tell_the_same_worst_rank(
    uneven: SimServer,
) -> None:
    async with looking_at(uneven) as looking:
        await looking.look()
        until("lines", lambda: bool(uneven.lines("DP1 TP4] Decode batch")))
        deadline = time.monotonic() + 10
        while len(looking.state.log.decodes) < 2 and time.monotonic() < deadline:
            await looking.look()
        now = time.monotonic()
        by_metrics = decode_of(replace(looking.state, loads=None), now)
        by_log = decode_of(replace(looking.state, loads=None, metrics=None), now)
        assert by_metrics.worst_rank == by_log.worst_rank == "DP0"
        assert by_metrics.imbalance is not None and by_metrics.imbalance.startswith("DP0 has ")


async def test_no_old_figure_of_two_paused_ranks_is_live_within_five_seconds(
    uneven: SimServer,
) -> None:
    async with looking_at(uneven) as looking:
        before = await looking.look()
        assert before.running.value and not before.is_frozen
        uneven.http.post("/pause_generation", json={"mode": "in_place"})
        begin = time.monotonic()
        while not (decode := await looking.look()).is_frozen:
            assert time.monotonic() - begin < 5
            await asyncio.sleep(0.2)
        assert decode.running.value == pytest.approx(before.running.value, abs=3)
        # The simulated server lives 20 times as fast: its counts are older than they look to us.
        assert (decode.running.age_s(time.monotonic()) or 0) > 2
        assert decode.generation_tokens_per_s.value is None
        assert decode.generation_tokens_per_s.reason
