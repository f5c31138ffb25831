"""Launches servers that exist only in a test: processes, memory, log lines and answers in time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvctl.core.clock import Clock
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.domain.gpus.membership import LAUNCH_MARK
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.servers.processes.launch import Launched, Launcher, LaunchFailed
from tests.fakes.gpus import GIB, FakeGpus
from tests.fakes.processes import FakeProcess, FakeProcesses
from tests.fakes.sglang import FakeServer, World

PROCESS = "[2026-11-29 11:35:22] server_args={'model_path': '/models/tiny'}"
WEIGHTS = "[2026-11-29 11:36:08] Load weight begin. avail mem=78.20 GB"
LOADED = (
    "[2026-11-29 11:36:09] Load weight end. elapsed=1.00 s, type=Llama, avail mem=60.0 GB,"
    " mem usage=18.20 GB."
)
POOL = "[2026-11-29 11:36:09] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 100000"
SUMMARY = (
    "[2026-11-29 11:36:10] max_total_num_tokens=100000, chunked_prefill_size=4096,"
    " max_prefill_tokens=16384, max_running_requests=100, context_len=8192,"
    " available_gpu_mem=7.50 GB"
)
READY = "[2026-11-29 11:36:12] The server is fired up and ready to roll!"
OOM = (
    "[2026-11-29 11:36:09 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
)


@dataclass
class Boot:
    """How one launch goes."""

    steps: tuple[tuple[float, str], ...] = (
        (0.2, PROCESS),
        (1.0, WEIGHTS),
        (1.0, LOADED),
        (0.2, POOL),
        (0.2, SUMMARY),
        (1.0, READY),
    )
    """Seconds to wait, then a line of the log."""
    dies_after: int | None = None
    """It ends after this many steps; None: it goes on to serve."""
    last_words: tuple[str, ...] = ()
    exit_status: int = 1
    leaves_behind: bool = False
    """Its scheduler outlives it and ignores TERM."""
    term_s: float | None = 0.4
    """Seconds from TERM to the end of the main process; None: ignored."""
    ready: Callable[[FakeServer], None] = lambda server: None
    """Called when it begins to answer."""


@dataclass
class Started:
    """One launch as it was carried out."""

    plan: LaunchPlan
    launched: Launched
    main: FakeProcess
    scheduler: FakeProcess
    server: FakeServer


@dataclass
class FakeLauncher(Launcher):
    """A `Launcher` that starts nothing real."""

    clock: Clock
    world: World
    processes: FakeProcesses
    gpus: FakeGpus
    boots: list[Boot] = field(default_factory=list)
    """How the next launches go, one each; after them the plain one."""
    refuses: str | None = None
    """Why nothing can be started."""
    started: list[Started] = field(default_factory=list)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    def follow(self, plan: LaunchPlan, log_path: Path) -> ProcessIdentity:
        command = plan.log_command or ()
        if command[0] == "missing":
            raise LaunchFailed("missing does not exist; correct [launch] log")
        return self.processes.begin(" ".join(command)).facts.identity

    def spawn(self, plan: LaunchPlan, log_path: Path) -> Launched:
        if self.refuses is not None:
            raise LaunchFailed(self.refuses)
        boot = self.boots.pop(0) if self.boots else Boot()
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.touch()  # the next launch in the same second takes another name
        mark = dict(plan.env).get(LAUNCH_MARK)
        main = self.processes.begin("python -m sglang.launch_server", mark=mark)
        main.term_s = boot.term_s
        pid = main.facts.identity.pid
        scheduler = self.processes.begin(
            "sglang::scheduler_TP0", parent=pid, session=pid, mark=mark
        )
        self._bind(main, scheduler, boot)
        server = FakeServer(self.clock, plan.url, main.facts.identity)
        launched = Launched(
            pid,
            main.facts.identity.start_ticks,
            pid,
            str(log_path),
            plan.shown_argv,
            self.clock.wall(),
        )
        one = Started(plan, launched, main, scheduler, server)
        self.started.append(one)
        self.world.servers[plan.url] = server
        self.world.logs[str(log_path)] = []
        task = asyncio.get_running_loop().create_task(self._boot(one, boot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return launched

    def exit_of(self, identity: ProcessIdentity) -> int | None:
        return self.processes.ended.get(identity) if self.is_child(identity) else None

    def is_child(self, identity: ProcessIdentity) -> bool:
        return any(one.launched.identity == identity for one in self.started)

    def reap(self) -> tuple[tuple[ProcessIdentity, int], ...]:
        mine = [one.launched.identity for one in self.started]
        return tuple((i, self.processes.ended[i]) for i in mine if i in self.processes.ended)

    def close(self) -> None:
        return

    async def stop(self) -> None:
        """End what a test left going on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _bind(self, main: FakeProcess, scheduler: FakeProcess, boot: Boot) -> None:
        """Let the scheduler end with its main, or outlive it."""
        identity = scheduler.facts.identity

        def ended() -> None:
            if boot.leaves_behind:
                scheduler.term_s = None
            else:
                self.processes.end(identity)

        main.at_end.append(ended)

    async def _boot(self, one: Started, boot: Boot) -> None:
        log, server = one.launched.log_path, one.server
        main = one.main.facts.identity
        one.main.at_end.append(server.die)
        for number, (wait_s, line) in enumerate(boot.steps):
            if number == boot.dies_after:
                self.world.write(log, *boot.last_words)
                self.processes.end(main, status=boot.exit_status)
                return
            await self.clock.sleep(wait_s)
            if not one.main.lives:
                return
            self.world.write(log, line)
            if line is POOL:
                self.gpus.hold(0, one.scheduler.facts.identity, 70 * GIB)
        server.is_up = True
        boot.ready(server)
