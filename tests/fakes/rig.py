"""A whole controller over a host that exists only in memory, on a clock that a test moves."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from kvctl.core.controller.commands import Command, Outcome, StartRun, StartServer
from kvctl.core.controller.controller import Controller
from kvctl.core.controller.host import Host
from kvctl.core.domain.events import Event
from kvctl.core.domain.gpus.membership import Me
from kvctl.core.domain.presets.rules import Rule
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.servers.server import Server, Stage
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.servers.config import Config
from kvctl.core.servers.presets.store import PresetStore
from tests.fakes.gpus import GIB, FakeGpus
from tests.fakes.launcher import Boot, FakeLauncher, Started
from tests.fakes.processes import ME, UID, USER, FakeProcess, FakeProcesses
from tests.fakes.runs import ids_rows, write_run
from tests.fakes.sglang import FakeEngine, FakeServer, FakeTail, World, WorldGenerator
from tests.fakes.stepping import InlineExecutor, SteppingClock

T = TypeVar("T")
PORT = 9
"""Nothing listens on the discard port: the preflight looks at the real one."""
URL = f"http://127.0.0.1:{PORT}"
RULE = Rule("kv-cache-dtype", ("fp8*",), "fp8 KV degrades this model noticeably")
PRESETS = {
    "small": "gpus = [0]\n[flags]\nmem-fraction-static = 0.8\nenable-metrics = true\n",
    "large": "gpus = [0]\n[flags]\nmem-fraction-static = 0.9\nenable-metrics = true\n",
    "fp8": 'gpus = [0]\n[flags]\nkv-cache-dtype = "fp8_e4m3"\n',
    "elsewhere": "gpus = [7]\n[flags]\nenable-metrics = true\n",
}


def preset_text(rest: str, *, port: int = PORT) -> str:
    command = 'command = ["sleep", "{sglang_args}"]\nmodel-path = "/models/tiny"\n'
    return f'description = "for tests"\n[launch]\n{command}port = {port}\n{rest}'


@dataclass
class Rig:
    """One host and the controllers that come and go on it."""

    folder: Path
    clock: SteppingClock = field(default_factory=SteppingClock)
    environment: dict[str, str] = field(default_factory=dict)
    finds_servers: bool = False
    config: Config = field(default_factory=lambda: Config(rules=(RULE,)))
    processes: FakeProcesses = field(init=False)
    gpus: FakeGpus = field(init=False)
    world: World = field(init=False)
    launcher: FakeLauncher = field(init=False)
    now: Controller = field(init=False)
    """The controller that is at work."""
    _running: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self.processes = FakeProcesses(self.clock)
        self.gpus = FakeGpus(self.processes)
        self.world = World(self.clock)
        self.launcher = FakeLauncher(self.clock, self.world, self.processes, self.gpus)
        (self.folder / "presets").mkdir(exist_ok=True)
        for name, rest in PRESETS.items():
            self.write_preset(name, preset_text(rest))

    def write_preset(self, name: str, text: str) -> None:
        (self.folder / "presets" / f"{name}.toml").write_text(text)

    @property
    def state_folder(self) -> Path:
        return self.folder / "state"

    def host(self) -> Host:
        self.state_folder.mkdir(exist_ok=True)
        return Host(
            name="gpu-07",
            version="0.test",
            clock=self.clock,
            me=Me(UID, USER, ME),
            gpus=self.gpus,
            processes=self.processes,
            launcher=self.launcher,
            presets=PresetStore([self.folder / "presets"], self.environment),
            config=self.config,
            state_folder=self.state_folder,
            open_engine=self._open_engine,
            open_generator=lambda url, key: WorldGenerator(self.world, url),
            open_tail=lambda path: FakeTail(self.world, path),
            finds_servers=self.finds_servers,
            publish_every_s=2.0,
        )

    def _open_engine(self, url: str, key: str | None) -> FakeEngine:
        self.world.seen_keys.append(key)
        return FakeEngine(self.world, url)

    # -- life ---------------------------------------------------------------------------------

    async def begin(self) -> Controller:
        """A kvctld starts on this host."""
        self.now = Controller(self.host())
        self._running = asyncio.create_task(self.now.run())
        await self.clock.quiet()
        return self.now

    async def end(self) -> None:
        """The kvctld leaves in good order."""
        await self._stop_running()
        await self.during(self.now.close())

    async def kill(self) -> None:
        """The kvctld is gone at once, as after kill -9; its host goes on."""
        await self._stop_running()
        tasks: list[asyncio.Task[Any]] = []
        for watch in self.now.servers.watches.values():
            tasks += watch._tasks
        driver = self.now.run_desk.driver
        if driver is not None and driver._pump is not None:
            pump = driver._pump
            tasks += [*pump._tasks, *filter(None, [pump.journal._writer, pump._timer])]
            pump.opened.lock.release()
        self.now.sequences.steps.is_leaving = True
        if self.now.sequences._work is not None:
            tasks.append(self.now.sequences._work)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def again(self) -> Controller:
        """kill -9, then the next kvctld on the same state folder."""
        await self.kill()
        return await self.begin()

    async def _stop_running(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    # -- what a frontend does -----------------------------------------------------------------

    async def submit(self, command: Command, limit_s: float = 900.0) -> Outcome:
        return await self.during(self.now.submit(command), limit_s)

    def begin_command(self, command: Command) -> "asyncio.Task[Outcome]":
        return asyncio.create_task(self.now.submit(command))

    async def during(self, work: Coroutine[Any, Any, T], limit_s: float = 900.0) -> T:
        return await self.clock.during(work, limit_s)

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    def shot(self) -> Snapshot:
        return self.now.snapshot()

    def server(self, name: str = "main") -> Server:
        return next(s for s in self.shot().servers if s.name == name)

    def run(self) -> Run:
        run = self.shot().run
        assert run is not None
        return run

    def stage(self, name: str, server: str = "main") -> Stage:
        return next(s for s in self.server(server).stages if s.name == name)

    def events(self, *kinds: str) -> list[str]:
        return [e.text for e in self.now.feed.recent if not kinds or e.kind in kinds]

    def event(self, kind: str) -> Event:
        return [e for e in self.now.feed.recent if e.kind == kind][-1]

    def run_file(
        self,
        rows: int = 20,
        *,
        concurrency: int | None = 4,
        tokens: int = 50,
        run: str = "",
        folder: str = "",
        names: tuple[str, ...] = ("B1",),
    ) -> str:
        """Write a run of so many prompts a partition; concurrency None is AUTO."""
        place = self.folder / "runs" / folder
        place.mkdir(parents=True, exist_ok=True)
        parts = {name: ids_rows(rows, 1000 * n + 1) for n, name in enumerate(names)}
        file = write_run(place, parts, concurrency=concurrency or 0, tokens=tokens, run=run)
        if concurrency is None:
            file.write_text(file.read_text().replace("concurrency = 0", 'concurrency = "auto"'))
        return str(file)

    @staticmethod
    def rewrite(path: str, text: str) -> str:
        """Replace a file; return what was in it."""
        before = Path(path).read_text()
        Path(path).write_text(text)
        return before

    @property
    def output(self) -> Path:
        """The folder that `answers` and `answered` read."""
        return self.folder / "runs"

    # -- a host in some state -----------------------------------------------------------------

    async def serving(self, preset: str = "small", boot: Boot | None = None) -> Started:
        """A server of a preset that serves."""
        if boot is not None:
            self.launcher.boots.append(boot)
        outcome = await self.submit(StartServer(preset))
        assert outcome.is_done, outcome
        return self.launcher.started[-1]

    async def submit_run(self, path: str) -> None:
        outcome = await self.submit(StartRun(path))
        assert outcome.is_done, outcome

    async def generating(self, path: str, boot: Boot | None = None) -> FakeServer:
        """A server and a run on it that sends."""
        started = await self.serving(boot=boot)
        await self.submit_run(path)
        await self.clock.until(lambda: bool(started.server.generator.running), 30)
        return started.server

    def leftover(self, title: str = "sglang::scheduler_TP4", gpu: int = 0) -> FakeProcess:
        """An SGLang process of ours without a server above it, with memory of a GPU."""
        left = self.processes.begin(title)
        self.gpus.hold(gpu, left.facts.identity, 60 * GIB)
        return left

    def remote(self, url: str, **what: Any) -> FakeServer:
        """A server on another host: it answers, its process is not seen."""
        server = self.world.servers[url] = FakeServer(self.clock, url, **what)
        server.is_up = True
        return server

    def local(self, port: int, *, cgroup: str = "", holds: bool = True) -> FakeServer:
        """A server that somebody started on this host, as discovery sees it."""
        title = f"python -m sglang.launch_server --model-path /models/theirs --port {port}"
        main = self.processes.begin(title, cgroup=cgroup)
        server = self.remote(f"http://127.0.0.1:{port}", identity=main.facts.identity)
        main.at_end.append(server.die)
        if holds:
            pid = main.facts.identity.pid
            rank = self.processes.begin("sglang::scheduler_TP0", parent=pid, session=pid)
            self.gpus.hold(1, rank.facts.identity, 30 * GIB)
            main.at_end.append(lambda: self.processes.end(rank.facts.identity))
        return server


@asynccontextmanager
async def rig_on(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A rig with a controller at work; everything it started is ended."""
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    rig = replace(Rig(folder), **settings) if settings else Rig(folder)
    await rig.begin()
    try:
        yield rig
    finally:
        if rig.gpus.hangs is not None:
            rig.gpus.hangs.set()
        rig.clock.waits_for_gpus = True
        for server in rig.world.servers.values():
            server.go()
        await rig.end()
        await rig.launcher.stop()
        await rig.processes.close()
