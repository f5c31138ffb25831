"""A simulated engine: the pool bound to a clock, with requests that wait for their end.

Owns pause modes, aborts and what `/v1/loads` last published. It knows nothing of HTTP.

Source: SGLang 0.5.23 managers/tokenizer_manager.py, scheduler.py; behaviour seen on real
servers where the code says otherwise.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvctl.core.clock import Clock, within
from kvctl.core.sim.answers import Answer, LengthLaw
from kvctl.core.sim.model import Finished, PoolEvent, PoolLimits, PoolRequest, QueueFullError
from kvctl.core.sim.pool import Pool

NON_STREAM_CHUNK = 50
"""Output of a retracted, queued, non-streamed request is known only in steps of this many tokens.

Source: SGLANG_FORCE_STREAM_INTERVAL."""
_LONGEST_NAP_S = 1.0
_SHORTEST_NAP_S = 0.005
_IDLE_NAP_S = 3600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended."""

    reason: str
    """`stop`, `length`, `aborted`, `aborted_in_queue`, `queue_full` or `out_of_memory`."""
    output_tokens: int
    ended_at: float
    """Monotonic seconds of the engine's clock."""


@dataclass(slots=True)
class EngineRequest:
    """A request in the engine, from its id being taken to its end."""

    rid: str
    answer: Answer
    request: PoolRequest
    is_stream: bool
    received_at: float
    done: "asyncio.Future[Outcome]"
    is_held: bool = True
    """Waits behind a pause: aborts do not reach it."""


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """What the scheduler last published of itself; it stands still during a pause."""

    taken_wall: float
    running: int
    queued: int
    used_tokens: int
    queued_tokens: int
    usage: float
    gen_tokens_per_s: float


@dataclass(slots=True)
class Engine:
    """One scheduler and the requests that wait on it."""

    pool: Pool
    clock: Clock
    laws: Mapping[str, LengthLaw]
    speed: float
    """Simulated seconds per real second; naps are never shorter than 5 real ms."""
    on_event: Callable[[PoolEvent], None]
    paused_mode: str | None = None
    """`in_place`, `retract` or `abort` while paused, else None."""
    requests: dict[str, EngineRequest] = field(default_factory=dict)
    loads: LoadSnapshot = field(init=False)
    _late_aborts: list[str] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _unpaused: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        """Publish the idle state."""
        self._unpaused.set()
        self.loads = self._read_loads()

    @property
    def limits(self) -> PoolLimits:
        """Return what the flags fixed."""
        return self.pool.limits

    async def run(self) -> None:
        """Move the pool on with the clock until cancelled."""
        while True:
            self.pump()
            self._wake.clear()
            wait = self._nap_s()
            try:
                await within(self.clock, wait, self._wake.wait())
            except TimeoutError:
                continue

    def pump(self) -> None:
        """Bring the pool to the present and end what has finished."""
        for event in self.pool.advance(self.clock.monotonic()):
            if isinstance(event, Finished):
                self._end(event.request.rid, event.reason, event.at)
            self.on_event(event)
        if self.paused_mode in (None, "abort"):  # only these let the scheduler publish
            self.loads = self._read_loads()

    def fresh_rid(self) -> str:
        """Return an id for a request that brought none."""
        return f"{next(self._numbers):032x}"

    def take(self, rid: str, answer: Answer, request: PoolRequest, stream: bool) -> EngineRequest:
        """Register a request id; the request enters the scheduler with `enter`."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        now = self.clock.monotonic()
        taken = EngineRequest(rid, answer, request, stream, now, done)
        self.requests[rid] = taken
        return taken

    async def enter(self, taken: EngineRequest) -> None:
        """Put a registered request into the queue, once no pause holds it."""
        await self._unpaused.wait()
        self.pump()
        taken.is_held = False
        taken.request.arrived_at = self.clock.monotonic()
        try:
            self.pool.submit(taken.request)
        except QueueFullError:
            self._end(taken.rid, "queue_full", self.clock.monotonic())
        self._wake.set()

    def forget(self, taken: EngineRequest) -> None:
        """Drop a request whose client is gone, wherever it is."""
        if self.requests.get(taken.rid) is not taken:
            return
        self.pump()
        self.pool.abort(taken.rid)
        self._end(taken.rid, "aborted", self.clock.monotonic())

    def output_tokens(self, taken: EngineRequest) -> int:
        """Return how many tokens a request has generated by now."""
        return self.pool.output_tokens(taken.request)

    def abort(self, prefix: str) -> None:
        """Abort every request whose id begins with `prefix`, but none held behind a pause."""
        self.pump()
        for rid in [rid for rid in self.requests if rid.startswith(prefix)]:
            self._abort_one(self.requests[rid])

    def _abort_one(self, taken: EngineRequest) -> None:
        if taken.is_held:
            return
        if self.paused_mode == "in_place":
            self._late_aborts.append(taken.rid)
            return
        was_running = taken.rid in self.pool.running
        if self.pool.abort(taken.rid) is None:
            return
        reason = "aborted" if was_running else "aborted_in_queue"
        self._end(taken.rid, reason, self.clock.monotonic())
        self._wake.set()

    async def pause(self, mode: str) -> None:
        """Stop in one of SGLang's three ways; `abort` first ends everything, which takes 1 s."""
        self.pump()
        self._unpaused.clear()
        if mode == "abort":
            self.abort("")
            await self.clock.sleep(1.0)
        self.paused_mode = mode
        self.pool.paused = True
        if mode == "retract":
            for request in self.pool.retract_all():
                self._end(request.rid, "queue_full", self.clock.monotonic())

    def unpause(self) -> None:
        """Go on, with the aborts that an in_place pause held back."""
        self.pool.advance(self.clock.monotonic())
        self.paused_mode = None
        self.pool.paused = False
        for rid in self._late_aborts:
            if rid in self.requests:
                self._abort_one(self.requests[rid])
        self._late_aborts.clear()
        self._unpaused.set()
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits in the scheduler."""
        return not self.pool.running and not self.pool.queue

    def _end(self, rid: str, reason: str, at: float) -> None:
        taken = self.requests.pop(rid, None)
        if taken is None or taken.done.done():
            return
        tokens = taken.request.settled_tokens
        if reason == "aborted_in_queue" and not taken.is_stream:
            tokens -= tokens % NON_STREAM_CHUNK
        taken.done.set_result(Outcome(reason, tokens, at))

    def _nap_s(self) -> float:
        change = self.pool.next_change_at()
        if change is None:
            return _IDLE_NAP_S
        shortest = _SHORTEST_NAP_S * self.speed
        return min(_LONGEST_NAP_S, max(shortest, change - self.clock.monotonic()))

    def _read_loads(self) -> LoadSnapshot:
        pool = self.pool
        busy = bool(pool.running)
        return LoadSnapshot(
            taken_wall=self.clock.wall(),
            running=len(pool.running),
            queued=len(pool.queue),
            used_tokens=pool.used_tokens,
            queued_tokens=pool.queued_tokens,
            usage=pool.usage,
            gen_tokens_per_s=pool.gen_tokens_per_s if busy else 0.0,
        )
