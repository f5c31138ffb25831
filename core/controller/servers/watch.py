"""One server under observation: what its sources come to, as state and picture.

`tick` turns what they brought into a state once a second. A watch only reads: stopping, pausing
and launching are the server desk's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kvctl.core.controller.servers.sources import ServerSources
from kvctl.core.controller.servers.stages import StageList
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.diagnosis.foreign_load import ForeignLoad
from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.gpus.devices import ProcessIdentity
from kvctl.core.domain.servers import decode as decoding
from kvctl.core.domain.servers.health import HealthInputs, assess
from kvctl.core.domain.servers.server import Decode, Failure, Server, ServerState, Stage
from kvctl.core.domain.servers.start_failure import failure_of, silent_end
from kvctl.core.domain.servers.startup import stages_of
from kvctl.core.servers.processes.launch import log_trouble

_TOLD = {
    ServerState.STALLED: "stalled",
    ServerState.UNREACHABLE: "unreachable",
    ServerState.FAILED: "failed",
    ServerState.STOPPED: "stopped",
    ServerState.DRAINING: "draining",
}


@dataclass(slots=True, eq=False)
class ServerWatch(ServerSources):
    """Judges one server by what its sources brought."""

    feed: EventFeed = field(kw_only=True)
    on_sample: Callable[["ServerWatch"], None] = field(kw_only=True, default=lambda _: None)
    """Called after each answer with counts."""
    stages: StageList = field(init=False)
    foreign: ForeignLoad = field(default_factory=ForeignLoad)
    state: ServerState = ServerState.STARTING
    state_reason: str = ""
    state_since: float = 0.0
    failure: Failure | None = None
    broken: str | None = None
    """Why it will not serve again although its main process lives; None: nothing says so."""
    next_step: str = ""
    """What kvctl does by itself about a failure; "": nothing."""
    is_stop_asked: bool = False

    def __post_init__(self) -> None:
        """Open the sources; nothing is read yet."""
        ServerSources.__post_init__(self)
        self.stages = StageList(self.host.clock)
        self.state_since = self.host.clock.monotonic()

    def sampled(self) -> None:
        """Tell that counts have come."""
        self.on_sample(self)

    @property
    def is_lost(self) -> bool:
        """Whether it serves nothing and will not by itself."""
        return self.state in (ServerState.FAILED, ServerState.STOPPED)

    def tick(self) -> None:
        """Judge the state from what is known now; tell a change as an event."""
        now = self.host.clock.monotonic()
        alive = self.is_alive()
        self.broken = self._why_broken() if alive else None
        if self.broken or (alive is False and self.failure is None):
            self.read_log()
            self.failure = failure_of(self.causes.records) or self.failure
        state, reason = assess(self._inputs(alive, now), self.state, now)
        if state is ServerState.STOPPED and (step := self.stages.doing) is not None:
            state, reason = ServerState.STOPPING, f"{step}: its processes and GPUs are looked after"
        self.state_reason = reason
        if state is not self.state:
            self._change(state, now)

    def _why_broken(self) -> str | None:
        """Return what shows that a server that served is dying, None while nothing does.

        Source: 0.5.23 ends within 65 s of a scheduler's death; its port answers nobody meanwhile.
        """
        if not self.record.ready_seen or self.is_stop_asked or self.is_draining:
            return None
        processes = self.host.processes
        for pid, ticks in self.record.ranks:
            if not processes.is_alive(ProcessIdentity(pid, ticks)):
                return f"its process {pid} has ended, which it cannot serve without"
        return "its log says that a process of it failed" if self.causes.is_fatal else None

    def observe_foreign(self, own: int) -> None:
        """Hold the counts that have come against our own requests in flight here."""
        now = self.host.clock.monotonic()
        figures = decoding.decode_of(self.decode, now)
        running, queued = _whole(figures.running), _whole(figures.queued)
        if running is None or queued is None or self.is_frozen:
            self.foreign.forget()
        else:
            self.foreign.observe(now, running + queued, own)

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
            ready_wall=record.ready_wall,
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
            failure=self._card(),
            decode=replace(self._figures(now), is_frozen=self.is_frozen),
            foreign_requests=self._foreign_requests(now),
            live_cap=self.info.live_cap if self.info and record.cap_before is not None else None,
            launch_id=record.launch_id,
        )

    def _stages(self) -> tuple[Stage, ...]:
        """Return the sequence's stages, or what the log tells of an earlier kvctld's start."""
        if self.stages.items or self.state is not ServerState.STARTING:
            return tuple(self.stages.items)
        return stages_of(self.startup)

    def _card(self) -> Failure | None:
        """Return the failure with what happens next; None where nothing failed."""
        is_unasked = not (self.is_stop_asked or self.is_draining)
        failure = self.failure
        is_over = self.exit_code() is not None or self.is_alive() is False
        if failure is None and is_unasked and is_over:
            failure = self.silent_end()
        if self.state is not ServerState.FAILED or not self.next_step:
            return failure
        card = failure or Failure(self.state_reason)
        return replace(card, advice=(self.next_step, *card.advice))

    def silent_end(self) -> Failure:
        """Return the card of a process that is over as long as its log tells no cause."""
        trouble = log_trouble(self.record.log_path or "")
        return silent_end(self.exit_code(), self.last_line, trouble)

    def exit_code(self) -> int | None:
        """Return the exit status (negative: signal); None while it runs or is no child of ours."""
        return None if self.identity is None else self.host.launcher.exit_of(self.identity)

    def _figures(self, now: float) -> Decode:
        if self.state in (ServerState.STOPPED, ServerState.FAILED):
            return Decode()
        return decoding.decode_of(self.decode, now)

    def _foreign_requests(self, now: float) -> Figure:
        running, count = self._figures(now).running, self.foreign.count
        if running.value is None or count is None or self.is_frozen:
            return unknown("counts are not of now")
        return Figure(count, running.source, running.at)

    def _change(self, state: ServerState, now: float) -> None:
        before, self.state = self.state, state
        self.state_since = now - (self._gone_for_s() if self.is_lost else 0.0)
        if state.is_ready and not before.is_ready:
            self._became_ready(before)
        elif state in _TOLD and (self.record.is_managed or state is not ServerState.FAILED):
            self.feed.emit(_TOLD[state], f"{self.record.name}: {self.state_reason}")

    def _gone_for_s(self) -> float:
        """Return how long ago its process was first seen to be gone, by this kvctld or another."""
        ended = self.record.ended_wall
        return 0.0 if ended is None else max(0.0, self.host.clock.wall() - ended)

    def _became_ready(self, before: ServerState) -> None:
        record = self.record
        if record.is_managed and not record.ready_seen and not self.has_missed_ready:
            record.ready_wall = self.host.clock.wall()
        if before is not ServerState.STARTING:
            self.feed.emit("back", f"{self.record.name}: {self.state_reason} (was {before.value})")

    def _ready_after(self) -> float | None:
        record = self.record
        if record.ready_wall is None or record.launched_wall is None:
            return None
        return max(0.0, record.ready_wall - record.launched_wall)

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
            broken=self.broken,
            failure=self._card(),
            decode_at=progress.decode_at,
            prefill_at=progress.prefill_at,
            progress_at=progress.progress_at,
            busy_since=progress.busy_since,
            stall_after_s=self.host.config.stall_after_s,
        )

    def _flag_number(self, name: str) -> int | None:
        value = self.info.flags.get(name) if self.info else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _whole(figure: Figure) -> int | None:
    return None if figure.value is None else int(figure.value)
