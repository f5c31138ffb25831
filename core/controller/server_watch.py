"""One server under observation: its sources, its figures, its state.

Each source has its own loop; `tick` turns what they brought into a state once a second. A
watch only reads: stopping, pausing and launching are the server desk's. Longer than a room should
be because every source of one server meets here in the one state that `tick` judges.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvctl.core.controller.causes import Causes
from kvctl.core.controller.host import Host
from kvctl.core.controller.keys import read_key
from kvctl.core.controller.polling import Poll
from kvctl.core.controller.server_flags import defaults_of, with_resolved
from kvctl.core.controller.stages import StageList
from kvctl.core.controller.state import ServerRecord
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain import decode as decoding
from kvctl.core.domain.effectiveflags import effective_flags
from kvctl.core.domain.figures import Figure
from kvctl.core.domain.flags import FlagCatalogue
from kvctl.core.domain.gpus import ProcessIdentity
from kvctl.core.domain.health import HealthInputs, assess
from kvctl.core.domain.loglines import LogKind, LogRecord
from kvctl.core.domain.server import (
    Decode,
    EffectiveFlag,
    Failure,
    LaunchFlag,
    Server,
    ServerState,
    Stage,
)
from kvctl.core.domain.startfailure import failure_of
from kvctl.core.domain.startup import StartupProgress, fold_startup, stages_of
from kvctl.core.domain.telemetry import LoadsReading, MetricsReading, ServerInfo
from kvctl.core.ports import Engine, LogTail, ProbeFailed

LOADS_S = 1.0
METRICS_S = 4.0
LOG_S = 0.5
INFO_RETRY_S = 3.0
_TOLD = {
    ServerState.STALLED: "stalled",
    ServerState.UNREACHABLE: "unreachable",
    ServerState.FAILED: "failed",
    ServerState.STOPPED: "stopped",
    ServerState.DRAINING: "draining",
}


@dataclass(slots=True, eq=False)
class ServerWatch:
    """Reads one server and keeps what was read."""

    host: Host
    feed: EventFeed
    record: ServerRecord
    on_sample: Callable[["ServerWatch"], None] = lambda _: None
    """Called after each answer with counts."""
    flags: tuple[LaunchFlag, ...] = ()
    """As the preset said; the resolved values come from the server."""
    effective: tuple[EffectiveFlag, ...] = ()
    catalogue: FlagCatalogue | None = None
    """SGLang's defaults, of exactly the version that runs."""
    stages: StageList = field(init=False)
    engine: Engine = field(init=False)
    tail: LogTail | None = field(init=False, default=None)
    decode: decoding.DecodeState = field(default_factory=decoding.DecodeState)
    startup: StartupProgress = field(default_factory=StartupProgress)
    info: ServerInfo | None = None
    model: str | None = None
    state: ServerState = ServerState.STARTING
    state_reason: str = ""
    state_since: float = 0.0
    failure: Failure | None = None
    is_stop_asked: bool = False
    is_draining: bool = False
    ready_wall: float | None = None
    last_answer_at: float | None = None
    probe_cause: str | None = None
    last_line: str = ""
    last_line_at: float | None = None
    errors: int = 0
    is_ready: bool | None = None
    """What /ready said while the counts stand still, None while they move or it does not tell."""
    _are_metrics_off: bool = False
    _causes: Causes = field(default_factory=Causes)
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the sources; nothing is read yet."""
        self.stages = StageList(self.host.clock)
        self.engine = self.host.open_engine(self.record.url, self.api_key)
        if self.record.log_path:
            self.tail = self.host.open_tail(self.record.log_path)
        self.state_since = self.host.clock.monotonic()

    @property
    def identity(self) -> ProcessIdentity | None:
        """The server's main process, None where it is not on this host."""
        if self.record.pid is None or self.record.start_ticks is None:
            return None
        return ProcessIdentity(self.record.pid, self.record.start_ticks)

    @property
    def launch(self) -> str | None:
        """What identifies this start of the server; None where its process is not seen."""
        if self.record.pid is None:
            return self.record.launch_id
        return f"{self.record.pid}-{self.record.start_ticks}"

    def is_alive(self) -> bool | None:
        """Return whether its main process runs; None where that cannot be seen."""
        return None if self.identity is None else self.host.processes.is_alive(self.identity)

    def start(self) -> None:
        """Begin to read every source."""
        clock = self.host.clock
        loads = Poll(
            "loads", LOADS_S, self.engine.loads, self._take_loads, self._miss_loads, self._is_back
        )
        metrics = Poll(
            "metrics",
            METRICS_S,
            self.engine.metrics,
            self._take_metrics,
            self._no_metrics,
            lambda: self._is_back() and not self._are_metrics_off,
        )
        self._tasks = [
            asyncio.create_task(loads.run(clock)),
            asyncio.create_task(metrics.run(clock)),
            asyncio.create_task(self._keep_asking()),
            asyncio.create_task(self._ask_why_frozen()),
            asyncio.create_task(self._follow()),
        ]

    async def close(self) -> None:
        """Stop reading; the server goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.engine.close()

    async def refresh(self) -> None:
        """Read the counts now, beside the loop."""
        try:
            self._take_loads(await self.engine.loads())
        except ProbeFailed as failure:
            self._miss_loads(failure)

    def tick(self) -> None:
        """Judge the state from what is known now; tell a change as an event."""
        now = self.host.clock.monotonic()
        alive = self.is_alive()
        if alive is False and self.failure is None:
            self.read_log()
            self.failure = failure_of(self._causes.records)
        state, reason = assess(self._inputs(alive, now), self.state, now)
        if state is ServerState.STOPPED and (step := self.stages.doing) is not None:
            state, reason = ServerState.STOPPING, f"{step}: its processes and GPUs are looked after"
        self.state_reason = reason
        if state is not self.state:
            self._change(state, now)

    def read_log(self) -> None:
        """Take what is new in the log."""
        if self.tail is None:
            return
        records = self.tail.read_new()
        if records:
            self._take_log(records)

    def forget_rates(self) -> None:
        """Say that figures before this moment are not steady (a pause, a break)."""
        self.decode = decoding.fold_break(self.decode)

    def view(self) -> Server:
        """Return the server as the panel shows it."""
        now, record = self.host.clock.monotonic(), self.record
        return Server(
            name=record.name,
            url=record.url,
            state=self.state,
            state_since=self.state_since,
            state_reason=self.state_reason,
            is_managed=record.is_managed,
            owner=record.owner,
            preset=record.preset,
            model=self.model,
            tp_size=self._flag_number("tp_size"),
            dp_size=self._flag_number("dp_size"),
            version=self.info.version if self.info else None,
            pid=record.pid,
            start_ticks=record.start_ticks,
            launched_wall=record.launched_wall,
            ready_wall=self.ready_wall,
            ready_after_s=self._ready_after(),
            log_path=record.log_path,
            last_log_at=self.last_line_at,
            last_log_line=self.last_line,
            errors_in_log=self.errors,
            available_gpu_memory_gb=self.startup.available_gpu_memory_gb,
            flags=self.flags,
            effective=self.effective,
            are_defaults_known=self.catalogue is not None,
            stages=self._stages(),
            failure=self.failure,
            decode=replace(self._figures(now), is_frozen=self.is_frozen),
            live_cap=self.info.live_cap if self.info and record.cap_before is not None else None,
        )

    def _stages(self) -> tuple[Stage, ...]:
        """Return the sequence's stages, or what the log tells of an earlier kvctld's start."""
        if self.stages.items or self.state is not ServerState.STARTING:
            return tuple(self.stages.items)
        return stages_of(self.startup)

    @property
    def is_frozen(self) -> bool:
        """Whether the counts shown are those of an earlier moment."""
        return self.decode.is_frozen or self.record.paused_mode is not None

    def _figures(self, now: float) -> Decode:
        if self.state in (ServerState.STOPPED, ServerState.FAILED):
            return Decode()
        return decoding.decode_of(self.decode, now)

    @property
    def api_key(self) -> str | None:
        """The key its preset names; None without one."""
        return read_key(self.record, self.host.presets.environment)

    def _change(self, state: ServerState, now: float) -> None:
        before, self.state, self.state_since = self.state, state, now
        if state.is_ready and not before.is_ready:
            self._became_ready(before)
        elif state in _TOLD and (self.record.is_managed or state is not ServerState.FAILED):
            self.feed.emit(_TOLD[state], f"{self.record.name}: {self.state_reason}")

    def _became_ready(self, before: ServerState) -> None:
        if self.ready_wall is None:
            self.ready_wall = self.host.clock.wall()
        if before is not ServerState.STARTING:
            self.feed.emit("back", f"{self.record.name}: {self.state_reason} (was {before.value})")

    def _ready_after(self) -> float | None:
        if self.ready_wall is None or self.record.launched_wall is None:
            return None
        return max(0.0, self.ready_wall - self.record.launched_wall)

    def _inputs(self, alive: bool | None, now: float) -> HealthInputs:
        figures, progress = decoding.decode_of(self.decode, now), self.decode.progress
        return HealthInputs(
            is_process_alive=alive,
            is_ready_seen=self.startup.is_ready and self.failure is None,
            startup=self.startup.text,
            last_answer_at=self.last_answer_at,
            probe_cause=self.probe_cause,
            running=_whole(figures.running),
            queued=_whole(figures.queued),
            is_frozen=self.decode.is_frozen,
            frozen_since=decoding.frozen_since(self.decode),
            is_ready=self.is_ready,
            is_paused_by_us=self.record.paused_mode is not None,
            is_stop_asked=self.is_stop_asked,
            is_draining=self.is_draining,
            failure=self.failure,
            decode_at=progress.decode_at,
            prefill_at=progress.prefill_at,
            progress_at=progress.progress_at,
            busy_since=progress.busy_since,
            stall_after_s=self.host.config.stall_after_s,
        )

    def _take_loads(self, reading: LoadsReading) -> None:
        now = self.host.clock.monotonic()
        self.last_answer_at, self.probe_cause = now, None
        self.decode = decoding.fold_loads(self.decode, reading, now)
        self.on_sample(self)

    def _is_back(self) -> bool:
        """Return whether the server answered since the loop failed, as after a start."""
        return self.last_answer_at is not None and self.probe_cause is None

    def _miss_loads(self, failure: ProbeFailed) -> None:
        self.probe_cause = str(failure)

    def _take_metrics(self, reading: MetricsReading) -> None:
        self.decode = decoding.fold_metrics(self.decode, reading, self.host.clock.monotonic())

    def _no_metrics(self, failure: ProbeFailed) -> None:
        self._are_metrics_off = failure.cause == "off"
        if self._are_metrics_off:
            why = "the server runs without --enable-metrics"
            self.decode = decoding.fold_no_metrics(self.decode, why)

    async def learn(self) -> bool:
        """Ask the server for its model and resolved flags; False if it does not answer."""
        try:
            self.model = await self.engine.model_name()
            self.info = await self.engine.server_info()
        except ProbeFailed:
            return False  # why is told by the counts' own loop
        self.decode = decoding.fold_info(self.decode, self.info)
        self.flags = with_resolved(self.flags, self.info)
        self.effective = effective_flags(self.info, self.flags, self.catalogue)
        return True

    async def _keep_asking(self) -> None:
        """Ask until the server has told what it is, once it answers at all."""
        while self.info is None:
            await self.host.clock.sleep(INFO_RETRY_S)
            if self.last_answer_at is not None and self.info is None:
                await self.learn()
        version = self.info.version
        self.catalogue = await asyncio.to_thread(defaults_of, self.host, self.record, version)
        self.effective = effective_flags(self.info, self.flags, self.catalogue)

    async def _ask_why_frozen(self) -> None:
        """While counts stand still and kvctl did not pause it, ask /ready whether another did."""
        while True:
            await self.host.clock.sleep(LOADS_S)
            told: bool | None = None
            if self.decode.is_frozen and self.record.paused_mode is None:
                with contextlib.suppress(ProbeFailed):  # why it is silent is the counts' loop's
                    told = await self.engine.is_ready()
            self.is_ready = told

    async def _follow(self) -> None:
        """Follow the log, first the start-up facts of a server that was already running."""
        if self.tail is not None and self.record.ready_seen:
            records = await asyncio.to_thread(self.tail.startup_records)
            self.startup = fold_startup(self.startup, records, self.host.clock.monotonic())
        while True:
            self.read_log()
            await self.host.clock.sleep(LOG_S)

    def _take_log(self, records: Sequence[LogRecord]) -> None:
        now = self.host.clock.monotonic()
        self.startup = fold_startup(self.startup, records, now)
        self.decode = decoding.fold_log(self.decode, records, now)
        for record in records:
            self._note(record)
        telling = [record for record in records if record.kind is not LogKind.ACCESS]
        self.last_line_at = now
        if telling:
            self.last_line = telling[-1].text

    def _note(self, record: LogRecord) -> None:
        if record.kind is LogKind.FAILURE and not record.is_backlog:
            self.errors += 1
        self._causes.keep(record)
        if record.kind is LogKind.DRAINING and not record.is_backlog:
            self.is_draining = True

    def _flag_number(self, name: str) -> int | None:
        value = self.info.flags.get(name) if self.info else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _whole(figure: Figure) -> int | None:
    return None if figure.value is None else int(figure.value)
