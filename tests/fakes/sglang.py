"""One SGLang server as every port sees it: process, HTTP, log and the requests of the run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvctl.core.clock import Clock
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.domain.logs.lines import LogRecord
from kvctl.core.domain.logs.scan import parse_line
from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading, RankLoad, ServerInfo
from kvctl.core.ports import GenerateReply, GenerateRequest, ProbeFailed, TransportFailed
from tests.fakes.generator import FakeGenerator
from tests.fakes.stepping import PausableClock

TOKENS_A_REQUEST = 1000


@dataclass
class FakeServer:
    """A server's state; `FakeEngine` and `WorldGenerator` are its two doors."""

    clock: Clock
    url: str
    identity: ProcessIdentity | None = None
    model: str = "/models/tiny"
    version: str = "0.5.23"
    flags: dict[str, object] = field(default_factory=dict)
    pool_tokens: int = 100_000
    capacity: int = 100
    """Requests that decode at once; the others wait in its queue."""
    usage: float | None = None
    """None: from the running requests."""
    ranks: tuple[RankLoad, ...] = ()
    """Given out as they are, where a test sets them."""
    others: int = 0
    """Requests that are not the run's."""
    lag_s: float = 0.0
    retracted_total: int | None = None
    """None: it runs without --enable-metrics."""
    is_up: bool = False
    failing: dict[str, Exception] = field(default_factory=dict)
    """Name of a call to the engine -> how it fails."""
    calls: list[str] = field(default_factory=list)
    """What changed the engine, in order: "pause retract", "unpause", "abort RID"."""
    api_key: str | None = None
    live_cap: int | None = None
    """pp_max_micro_batch_size; None: this version has no such lever."""
    time: PausableClock = field(init=False)
    generator: FakeGenerator = field(init=False)
    _taken_wall: float = 0.0

    def __post_init__(self) -> None:
        self.time = PausableClock(self.clock)
        self.generator = FakeGenerator(self.time, url=self.url)

    def hang(self) -> None:
        """The scheduler stands still; the front end goes on answering."""
        self._taken_wall = self.clock.wall()
        self.time.stop()

    def go(self) -> None:
        self.time.go()

    def die(self) -> None:
        """The process has ended: nothing answers, every connection breaks."""
        self.is_up = False
        self.time.go()
        self.generator.kill()

    def counts(self) -> tuple[RankLoad, ...]:
        taken = self._taken_wall if self.time.is_stopped else self.clock.wall() - self.lag_s
        if self.ranks:
            return tuple(replace(rank, taken_wall=taken) for rank in self.ranks)
        whole = len(self.generator.running) + self.others
        running = min(whole, self.capacity)
        usage = min(1.0, running * TOKENS_A_REQUEST / self.pool_tokens)
        usage = usage if self.usage is None else self.usage
        return (
            RankLoad(
                dp_rank=0,
                taken_wall=taken,
                running=running,
                queued=whole - running,
                # Tokens come and go: only a pool that stands still makes none.
                used_tokens=int(usage * self.pool_tokens) + int(self.time.monotonic()) % 7,
                pool_tokens=self.pool_tokens,
                token_usage=usage,
                gen_throughput=running * 10.0 if running else None,
                cache_hit_ratio=None,
                max_running=self.capacity,
            ),
        )


ANSWER_S = 0.05


@dataclass
class World:
    """The servers of a test by URL, and their logs by path; they outlive a controller."""

    clock: Clock
    servers: dict[str, FakeServer] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    seen_keys: list[str | None] = field(default_factory=list)
    """The API key of every engine that was opened."""

    def at(self, url: str) -> FakeServer | None:
        server = self.servers.get(url.rstrip("/").replace("localhost", "127.0.0.1"))
        return server if server is not None and server.is_up else None

    def write(self, path: str, *lines: str) -> None:
        self.logs.setdefault(path, []).extend(lines)


@dataclass
class FakeEngine:
    """Implements `kvctl.core.ports.Engine` over whatever serves at its URL now."""

    world: World
    url: str
    is_closed: bool = False

    def _server(self, call: str) -> FakeServer:
        server = self.world.at(self.url)
        if server is None:
            raise ProbeFailed("refused", f"{self.url}: connection refused")
        if call in server.failing:
            raise server.failing[call]
        return server

    async def loads(self) -> LoadsReading:
        server, clock = self._server("loads"), self.world.clock
        version = server.version
        return LoadsReading(clock.monotonic(), clock.wall(), "/v1/loads", version, server.counts())

    async def metrics(self) -> MetricsReading:
        server = self._server("metrics")
        if server.retracted_total is None:
            raise ProbeFailed("off", "the server runs without --enable-metrics")
        counters = {"num_retracted_requests_total": float(server.retracted_total)}
        return MetricsReading(self.world.clock.monotonic(), counters, {}, {})

    async def server_info(self) -> ServerInfo:
        server = self._server("server_info")
        return ServerInfo(
            at=self.world.clock.monotonic(),
            version=server.version,
            flags={"model_path": server.model, **server.flags},
            pool_tokens=server.pool_tokens,
            max_running=server.capacity,
            live_cap=server.live_cap,
            last_gen_throughput=None,
            launch_command=None,
        )

    async def model_name(self) -> str:
        model = self._server("model_name").model
        await self.world.clock.sleep(ANSWER_S)
        return model

    async def is_ready(self) -> bool | None:
        return not self._server("is_ready").time.is_stopped

    async def pause(self, mode: str) -> None:
        server = self._server("pause")
        server.calls.append(f"pause {mode}")
        server.hang()

    async def unpause(self) -> None:
        server = self._server("unpause")
        server.calls.append("unpause")
        server.go()

    async def abort(self, rid: str) -> None:
        await self._server("abort").generator.abort(rid)

    async def abort_all(self) -> None:
        self._server("abort_all").generator.abort_everything()

    async def set_live_cap(self, running: int) -> int:
        server = self._server("set_live_cap")
        if server.live_cap is None:
            raise ProbeFailed("unsupported", f"version {server.version}: no live cap")
        server.calls.append(f"cap {running}")
        server.live_cap = running
        return running

    async def close(self) -> None:
        self.is_closed = True


@dataclass
class WorldGenerator:
    """Implements `kvctl.core.ports.Generator` over whatever serves at its URL now."""

    world: World
    url: str

    async def generate(self, request: GenerateRequest) -> GenerateReply:
        server = self.world.at(self.url)
        if server is None:
            raise TransportFailed("connection refused", sent=False)
        return await server.generator.generate(request)

    async def abort(self, rid: str) -> None:
        server = self.world.at(self.url)
        if server is None:
            raise TransportFailed("connection refused", sent=False)
        server.calls.append(f"abort {rid}")
        if server.time.is_stopped:
            return  # nothing is aborted behind a pause
        await server.generator.abort(rid)

    async def is_alive(self) -> bool:
        return self.world.at(self.url) is not None

    async def close(self) -> None:
        return


@dataclass
class FakeTail:
    """Implements `kvctl.core.ports.LogTail` over the lines that a test writes."""

    world: World
    path: str
    _read: int | None = None

    def read_new(self) -> Sequence[LogRecord]:
        lines = self.world.logs.get(self.path, [])
        is_first, self._read = self._read is None, self._read or 0
        records = [
            replace(parse_line(line, number), is_backlog=is_first)
            for number, line in enumerate(lines[self._read :], start=self._read + 1)
        ]
        self._read = len(lines)
        return records

    def startup_records(self) -> Sequence[LogRecord]:
        lines = self.world.logs.get(self.path, [])
        return [replace(parse_line(line, n), is_backlog=True) for n, line in enumerate(lines, 1)]
