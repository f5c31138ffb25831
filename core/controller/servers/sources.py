"""The sources of one server: its processes, HTTP and log, each read in a loop of its own.

They only read and keep what was read; what it comes to is `ServerWatch`'s.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvctl.core.controller.host import Host
from kvctl.core.controller.polling import Poll
from kvctl.core.controller.servers.causes import Causes
from kvctl.core.controller.servers.flags import defaults_of, with_resolved
from kvctl.core.controller.servers.keys import read_key
from kvctl.core.controller.state import ServerRecord
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.domain.logs.lines import LogKind, LogRecord
from kvctl.core.domain.presets.effective_flags import effective_flags
from kvctl.core.domain.presets.flags import FlagCatalogue
from kvctl.core.domain.servers import decode as decoding
from kvctl.core.domain.servers.server import EffectiveFlag, LaunchFlag
from kvctl.core.domain.servers.startup import StartupProgress, fold_startup
from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading, ServerInfo
from kvctl.core.ports import Engine, LogTail, ProbeFailed

LOADS_S = 1.0
METRICS_S = 6.0
LOG_S = 0.5
INFO_RETRY_S = 3.0


@dataclass(slots=True, eq=False)
class ServerSources:
    """Reads one server and keeps what was read."""

    host: Host
    record: ServerRecord
    flags: tuple[LaunchFlag, ...] = ()
    """As the preset said; the resolved values come from the server."""
    effective: tuple[EffectiveFlag, ...] = ()
    catalogue: FlagCatalogue | None = None
    """SGLang's defaults, of exactly the version that runs."""
    engine: Engine = field(init=False)
    tail: LogTail | None = field(init=False, default=None)
    decode: decoding.DecodeState = field(default_factory=decoding.DecodeState)
    startup: StartupProgress = field(default_factory=StartupProgress)
    info: ServerInfo | None = None
    model: str | None = None
    is_draining: bool = False
    """The log says that it ends once what runs has ended."""
    first_answer_at: float | None = None
    last_answer_at: float | None = None
    probe_cause: str | None = None
    last_line: str = ""
    last_line_at: float | None = None
    errors: int = 0
    is_ready: bool | None = None
    """What /ready said while the counts stand still, None while they move or it does not tell."""
    causes: Causes = field(default_factory=Causes)
    has_missed_ready: bool = False
    """Its log said that it is ready before this kvctld read it: when, nobody saw."""
    _are_metrics_off: bool = False
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the sources; nothing is read yet."""
        self.engine = self.host.open_engine(self.record.url, self.api_key)
        if self.record.log_path:
            self.tail = self.host.open_tail(self.record.log_path)

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

    @property
    def api_key(self) -> str | None:
        """The key its preset names; None without one."""
        return read_key(self.record, self.host.presets.environment)

    @property
    def is_frozen(self) -> bool:
        """Whether the counts shown are those of an earlier moment."""
        return self.decode.is_frozen or self.record.paused_mode is not None

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

    def sampled(self) -> None:
        """Called after each answer with counts."""

    def _take_loads(self, reading: LoadsReading) -> None:
        now = self.host.clock.monotonic()
        self.last_answer_at, self.probe_cause = now, None
        if self.first_answer_at is None:
            self.first_answer_at = now
        self.decode = decoding.fold_loads(self.decode, reading, now)
        self.sampled()

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
        telling = [record for record in records if record.is_telling]
        self.last_line_at = now
        if telling:
            self.last_line = telling[-1].text

    def _note(self, record: LogRecord) -> None:
        if record.kind is LogKind.FAILURE and not record.is_backlog:
            self.errors += 1
        self.causes.keep(record)
        if record.kind is LogKind.DRAINING and not record.is_backlog:
            self.is_draining = True
        if record.kind is LogKind.READY and record.is_backlog:
            self.has_missed_ready = True
