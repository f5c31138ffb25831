"""One server's request slots: what is in flight there, its target, and its circuit breaker."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from kvctl.core.clock import Clock
from kvctl.core.ports import Generator, TransportFailed
from kvctl.core.runs.inputs.partition import Prompt
from kvctl.core.runs.opening.schedule import Job

_FAILURE_WINDOW_S = 10.0
_MANY = 3
_FIRST_PROBE_S, _LAST_PROBE_S = 1.0, 15.0
_TRIAL = 2
"""Requests in flight at a server that failed with 5xx, until one has its answer."""


NOT_REACHED = "not reached yet"
"""Why a server that the run has not asked yet is not sent to."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server is, as far as a run depends on it; None is unknown."""

    model: str | None = None
    weight_version: str | None = None
    launch: str | None = None
    """Which start of it this is."""
    numerics: str | None = None
    """`kvctl.core.domain.runs.outcomes.numerics_of` its flags."""


@dataclass(slots=True)
class Flight:
    """One request on its way."""

    job: Job
    rid: str
    started_at: float
    """Monotonic seconds."""
    prompt: Prompt | None = None
    kept_tokens: int = 0
    """Tokens of a partial that this request continues."""
    is_sent: bool = False
    is_cut: bool = False
    """We asked the server to abort it …"""
    keeps_partial: bool = True
    """… and what it has made so far is kept."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def is_fixed(self) -> bool:
        """Whether its answer cannot end before max_new_tokens."""
        return self.prompt is not None and self.prompt.sampling.get("ignore_eos") is True


@dataclass(slots=True)
class ServerSlots:
    """The run's places at one server."""

    generator: Generator
    clock: Clock
    target: int = 0
    is_held: bool = False
    """Nothing new is sent there although the target would allow it; see `note`."""
    note: str = ""
    """Why the target is what it is or nothing is sent, in one line."""
    facts: ServerFacts = ServerFacts()
    is_known: bool = False
    """It was reached in this session, and has said what it is if it is asked."""
    flights: dict[str, Flight] = field(default_factory=dict)
    is_cutting: bool = False
    """A harvest is going on: nothing new is sent."""
    is_leaving: bool = False
    """The run will not use it any more: nothing new is sent."""
    down: str | None = None
    """Why nothing is sent there until a probe succeeds; None while it is well."""
    probe_at: float | None = None
    """Monotonic seconds of the next probe while `down`."""
    orphans: list[str] = field(default_factory=list)
    """Ids whose connection broke: aborted before anything else is sent."""
    _failures: deque[tuple[float, object]] = field(default_factory=deque)
    _delay_s: float = _FIRST_PROBE_S
    _good: int = 0
    _met: str | None = None
    _is_on_trial: bool = False
    _probing: "asyncio.Task[bool] | None" = None

    @property
    def url(self) -> str:
        """The server's URL."""
        return self.generator.url

    @property
    def is_open(self) -> bool:
        """Whether requests are sent there as places become free."""
        is_stopped = self.is_cutting or self.is_leaving or self.is_held
        return self.down is None and not is_stopped and self.target > 0

    @property
    def headroom(self) -> int:
        """How many more requests may be sent now."""
        if not self.is_open:
            return 0
        limit = min(self.target, _TRIAL) if self._is_on_trial else self.target
        return max(0, limit - len(self.flights))

    def meet(self, launch: str) -> bool:
        """Note which start of the server serves; True if it is a new one, to be asked first."""
        if launch in (self.facts.launch, self._met):
            return False
        self._met = launch
        self.down = self.down or "it was started anew"
        self.probe_at, self._delay_s, self._good = self.clock.monotonic(), _FIRST_PROBE_S, 0
        return True

    def trip(self, why: str, row: object) -> None:
        """Note that a row's connection failed: nothing is sent until a probe is answered."""
        self._note_failure(row)
        self._take_down(why, self.clock.monotonic())

    def note_server_error(self, why: str, row: object) -> None:
        """Note a row's 5xx; several rows within seconds stop sending, then a few are tried."""
        self._note_failure(row)
        if self.is_failing_broadly:
            self._is_on_trial = True
            self._take_down(why, self.clock.monotonic() + self._delay_s)
            self._delay_s = min(self._delay_s * 2, _LAST_PROBE_S)

    def note_success(self) -> None:
        """Note an answer: the server is well again."""
        self._is_on_trial = False
        self._delay_s = _FIRST_PROBE_S

    def _take_down(self, why: str, probe_at: float) -> None:
        if self.down is None:
            self.down, self.probe_at, self._good = why, probe_at, 0

    def _note_failure(self, row: object) -> None:
        now = self.clock.monotonic()
        self._failures.append((now, row))
        while self._failures[0][0] < now - _FAILURE_WINDOW_S:
            self._failures.popleft()

    @property
    def is_failing_broadly(self) -> bool:
        """Whether several rows failed within seconds: the server's fault, not a row's."""
        return self._is_on_trial or len({row for _, row in self._failures}) >= _MANY

    async def is_alive(self) -> bool:
        """Ask the server; callers at the same time share one question."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self.generator.is_alive())
        return await asyncio.shield(self._probing)

    async def probe(self) -> bool:
        """Probe a server that is down; return whether it may be sent to again.

        One good answer is enough after a single failure, two in a row after several.
        """
        alive = await self.is_alive()
        now = self.clock.monotonic()
        self._good = self._good + 1 if alive else 0
        needed = 2 if self.is_failing_broadly else 1
        if self._good >= needed:
            self.down, self.probe_at = None, None
            self._failures.clear()
            return True
        wait = _FIRST_PROBE_S if alive else self._delay_s
        if not alive:
            self.down = f"{self.url} does not answer; asked again every few seconds"
            self._delay_s = min(self._delay_s * 2, _LAST_PROBE_S)
        self.probe_at = now + wait
        return False

    async def abort_orphans(self) -> None:
        """Abort what broken connections may have left at the server, so that nothing runs twice."""
        rids, self.orphans = self.orphans, []
        for rid in rids:
            try:
                await self.generator.abort(rid)
            except TransportFailed:
                return
