"""A simulated SGLang server: `python -m kvctl.core.sim.server --port … --model-path …`.

It takes SGLang's flags, speaks its HTTP, writes its log, has its child processes and holds
simulated GPU memory. KVCTL_SIM_CLOCK gives the time that it lives in, KVCTL_SIM_DIR the
simulated host. Nothing outside kvctl.core.sim knows that it is not the real one.
"""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aiohttp import web

from kvctl.core.clock import Clock
from kvctl.core.sim.arguments import ArgumentsRefused, ServerArguments, parse_arguments
from kvctl.core.sim.endpoints import Endpoints, ServerState
from kvctl.core.sim.engine import Engine
from kvctl.core.sim.engines import Engines
from kvctl.core.sim.exposition import Latencies
from kvctl.core.sim.folder import Activity, HostFolder, start_ticks
from kvctl.core.sim.logfile import ServerLog
from kvctl.core.sim.memory import LEFTOVER_MIB, MIB, RankMemory
from kvctl.core.sim.model import Finished, PoolEvent, PoolLimits, PrefillBatch
from kvctl.core.sim.pool import Pool
from kvctl.core.sim.ranks import Rank, Ranks
from kvctl.core.sim.replies import Front
from kvctl.core.sim.scenarios import MISSION, SCENARIOS
from kvctl.core.sim.simclock import FOLDER_VARIABLE, clock_from_environment, speed_of
from kvctl.core.sim.startup import (
    StartFailed,
    Startup,
    context_tokens,
    max_running,
    startup_failure,
)

SCENARIO_VARIABLE = "KVCTL_SIM_SCENARIO"
LEFTOVER_VARIABLE = "KVCTL_SIM_LEAVE_LEFTOVER"
"""A GPU number: its scheduler is left behind when the server ends."""
LOOK_S = 0.5
"""Real seconds between two looks at the children and the host's folder."""
DRAIN_LOOK_S = 5.0
CRASH_WAIT_S = 65.0
"""From SIGQUIT to the end. Source: 5 s and SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS."""


@dataclass(slots=True)
class SimulatedServer:
    """One server from its first line to its exit status."""

    arguments: ServerArguments
    environment: Mapping[str, str]
    clock: Clock
    log: ServerLog
    ranks: Ranks
    folder: HostFolder | None
    state: ServerState = field(default_factory=ServerState)
    latencies: dict[str, Latencies] = field(default_factory=dict)
    _ended: "asyncio.Future[int] | None" = None
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def run(self) -> int:
        """Start, serve and stop; return the exit status."""
        startup = Startup(self.arguments, self.clock, self.log, self.ranks)
        began = self.clock.monotonic()
        try:
            memory = await startup.run()
        except StartFailed as failure:
            return self._fail_start(str(failure))
        engine = self._engines(memory)
        front = self._front(engine, memory, self.clock.monotonic() - began)
        self._ended = asyncio.get_running_loop().create_future()
        runner = await self._open(front)
        if runner is None:
            return self._finish(3)
        self._spawn(engine.run())
        await self.clock.sleep(1.5)
        self.log.event(PrefillBatch(0.0, 1, 17, 0.0, 0, 0, 0, 1.5))
        self._handle_signals(engine)
        self._spawn(self._look_around(engine))
        self.state.is_up = True
        self.log.main("The server is fired up and ready to roll!")
        status = await self._ended
        await runner.cleanup()
        return self._finish(status)

    # -- parts -----------------------------------------------------------------------------

    def _engines(self, memory: RankMemory) -> Engines:
        ranks = range(dp_size(self.arguments))
        return Engines(tuple(self._engine(memory, dp_rank) for dp_rank in ranks))

    def _engine(self, memory: RankMemory, dp_rank: int) -> Engine:
        limits = PoolLimits(
            capacity_tokens=memory.pool_tokens,
            max_running=max_running(self.arguments, memory.pool_tokens),
            max_queued=self.arguments.maybe_number("max_queued_requests"),
            conservativeness=float(self.arguments.values["schedule_conservativeness"]),
            prefill_tokens=max(1, self.arguments.number("chunked_prefill_size")),
            log_interval=self.arguments.number("decode_log_interval"),
        )
        pool = Pool(limits, now=self.clock.monotonic())
        laws = SCENARIOS.get(self._scenario_name(), MISSION).laws
        on_event = partial(self._on_event, dp_rank)
        return Engine(pool, self.clock, laws, speed_of(self.clock), on_event)

    def _scenario_name(self) -> str:
        stored = self.folder.scenario_name() if self.folder else None
        return self.environment.get(SCENARIO_VARIABLE) or stored or MISSION.name

    def _front(self, engine: Engines, memory: RankMemory, load_s: float) -> Front:
        return Front(
            arguments=self.arguments,
            engine=engine,
            memory=memory,
            ranks=len(self.ranks.gpus),
            context_tokens=context_tokens(self.arguments),
            load_s=load_s,
            started_wall=self.clock.wall(),
        )

    def _on_event(self, dp_rank: int, event: PoolEvent) -> None:
        self.log.event(event, dp_rank)
        if isinstance(event, Finished):
            request = event.request
            self._observe("e2e_request_latency_seconds", event.at - request.arrived_at)
            if request.admitted_at is not None:
                waited = request.admitted_at - request.arrived_at
                self._observe("time_to_first_token_seconds", waited)
                self._observe("queue_time_seconds", waited)

    def _observe(self, metric: str, seconds: float) -> None:
        self.latencies.setdefault(metric, Latencies.empty()).add(max(0.0, seconds))

    async def _open(self, front: Front) -> web.AppRunner | None:
        host, port = self.arguments.text("host"), self.arguments.number("port")
        app = Endpoints(front, self.log, self.state, self.latencies, speed_of(self.clock))
        runner = web.AppRunner(app.application(), access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        self.log.main(f"INFO:     Started server process [{os.getpid()}]")
        self.log.main("INFO:     Waiting for application startup.")
        self.log.main("INFO:     Application startup complete.")
        try:
            await web.TCPSite(runner, host, port, backlog=2048).start()
        except OSError:
            self.log.main(
                f"ERROR:    [Errno 98] error while attempting to bind on address ('{host}', "
                f"{port}): address already in use"
            )
            # The warm-up reaches whoever has the port, so a real server says this as well.
            self.log.main("The server is fired up and ready to roll!")
            await runner.cleanup()
            return None
        self.log.main(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        return runner

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        """Let a fault of the simulation itself end the server as a fault of the engine would."""
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            trace = "".join(traceback.format_exception(fault))
            self.log.rank(f"Scheduler hit an exception: {trace}")
            self._set_status(-signal.SIGKILL)

    # -- while it serves -------------------------------------------------------------------

    async def _look_around(self, engine: Engines) -> None:
        """Watch the children, say how busy the GPUs are, and obey `leave-leftover`."""
        while True:
            dead = self.ranks.first_dead()
            if dead is not None:
                self._on_dead_rank(dead)
                return
            if self.folder is not None:
                self._leave_leftover(self.folder)
                self._say_activity(self.folder, engine)
            await asyncio.sleep(LOOK_S)

    def _on_dead_rank(self, dead: Rank) -> None:
        self.log.main(
            f"Subprocess scheduler_{dead.number} (pid={dead.process.pid}) crashed with exit code "
            f"{dead.process.returncode}. Triggering SIGQUIT for cleanup..."
        )
        self._crash()

    def _leave_leftover(self, folder: HostFolder) -> None:
        asked = folder.take_leftover_request()
        if asked is None and self.environment.get(LEFTOVER_VARIABLE, "").isdigit():
            asked = int(self.environment[LEFTOVER_VARIABLE])
        if asked is not None:
            self.ranks.leave_behind(asked, LEFTOVER_MIB * MIB)

    def _say_activity(self, folder: HostFolder, engine: Engines) -> None:
        ticks = start_ticks(os.getpid())
        is_frozen = engine.paused_mode is not None
        load = 0.0 if is_frozen else min(1.0, engine.running / 40.0)
        if ticks is not None:
            gpus = tuple(self.ranks.gpus)
            folder.write_activity(Activity(os.getpid(), ticks, gpus, load))

    # -- the end ---------------------------------------------------------------------------

    def _handle_signals(self, engine: Engines) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: self._spawn(self._drain(engine)))
        loop.add_signal_handler(signal.SIGINT, lambda: self._spawn(self._drain(engine)))
        loop.add_signal_handler(signal.SIGQUIT, self._crash)

    async def _drain(self, engine: Engines) -> None:
        if self.state.is_draining:
            return
        self.state.is_draining = True
        self.log.main(
            "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
        )
        await self.clock.sleep(2.0)
        while not self.state.is_unhealthy:
            rids = list(engine.requests)
            self.log.main(
                f"Gracefully exiting... Remaining number of requests {len(rids)}. "
                f"Remaining requests remaining_rids={rids}."
            )
            if not rids:
                break
            await self.clock.sleep(DRAIN_LOOK_S)
        await self.clock.sleep(2.0)
        self._set_status(0)

    def _crash(self) -> None:
        self.log.main("SIGQUIT received. signum=3, frame=None. It usually means one child failed.")
        self.state.is_hung = True
        self._spawn(self._die_later())

    async def _die_later(self) -> None:
        quick = self.environment.get("SGLANG_CUDA_COREDUMP_BEFORE_CRASH") == "0"
        await self.clock.sleep(0.07 if quick else CRASH_WAIT_S)
        self._set_status(-signal.SIGKILL)

    def _fail_start(self, reason: str) -> int:
        for rank in self.ranks.ranks:
            self.log.rank(startup_failure(reason), rank.number)
        self.log.main("Received sigquit from a child process. It usually means the child failed.")
        return self._finish(-signal.SIGKILL)

    def _set_status(self, status: int) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(status)

    def _finish(self, status: int) -> int:
        pid = os.getpid()
        self.log.main(
            f"kill_process_tree called: parent_pid={pid}, include_parent=False, pid={pid}"
        )
        self.ranks.end()
        if status == 0:
            for text in ("Shutting down", "Application shutdown complete."):
                self.log.main(f"INFO:     {text}")
            self.log.main(f"INFO:     Finished server process [{pid}]")
        return status


def dp_size(arguments: ServerArguments) -> int:
    """Return the number of DP ranks; they share the GPUs as with DP attention."""
    return max(1, min(arguments.number("dp_size"), arguments.number("tp_size")))


def visible_gpus(arguments: ServerArguments, environment: Mapping[str, str]) -> list[int]:
    """Return the simulated GPUs that the ranks use, rank 0 first."""
    count = arguments.number("tp_size") * arguments.number("pp_size")
    named = environment.get("CUDA_VISIBLE_DEVICES", "")
    visible = [int(name.rpartition("-")[2]) for name in named.split(",") if name.strip()]
    first, step = arguments.number("base_gpu_id"), arguments.number("gpu_id_step")
    wanted = [first + step * number for number in range(count)]
    return [visible[at] for at in wanted if at < len(visible)] if visible else wanted


def main(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one server with these arguments and return its exit status."""
    try:
        arguments = parse_arguments(argv)
    except ArgumentsRefused as refusal:
        sys.stderr.write("usage: sglang serve [-h] --model-path MODEL_PATH ...\n")
        sys.stderr.write(f"sglang serve: error: {refusal}\n")
        return 2
    clock = clock_from_environment(environment)
    path = environment.get(FOLDER_VARIABLE)
    folder = HostFolder(Path(path)) if path else None
    gpus = visible_gpus(arguments, environment)
    quiet = arguments.values["uvicorn_access_log_exclude_prefixes"]
    log = ServerLog(clock, len(gpus), quiet, dp_size=dp_size(arguments))
    server = SimulatedServer(arguments, environment, clock, log, Ranks(gpus, folder), folder)
    status = asyncio.run(server.run())
    if status < 0:  # a crash ends by a signal, as the real one does
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
