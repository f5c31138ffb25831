"""The throttle law and the ceiling policy of one open run, fed with each fresh sample.

Pure code decides (`QueueHold`, `ceiling_policy`); this applies what it says to the driver and tells
what changed. Lowering a target never aborts a request.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvctl.core.clock import Clock
from kvctl.core.controller.servers.desk import ServerDesk
from kvctl.core.controller.servers.records import same_url
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.domain.figures import Figure
from kvctl.core.domain.runs.run import PartitionState, Run
from kvctl.core.domain.servers import decode as decoding
from kvctl.core.domain.servers.server import Decode, ServerState
from kvctl.core.domain.throttle.ceiling_policy import (
    CeilingAction,
    CeilingMarks,
    CeilingReading,
    step,
)
from kvctl.core.domain.throttle.parameters import ServerSample, ThrottleParameters
from kvctl.core.domain.throttle.queue_hold import QueueHold
from kvctl.core.runs.driving.driver import RunDriver
from kvctl.core.runs.driving.gate import POLICY

FIT_USAGE = 0.93
"""The usage at which a full pool decodes: C u / k is counted at it."""
SETTLED_S = 60.0
"""A change of the target is told once it has moved this long ago."""
_NUMBERS = re.compile(r"\d+")


@dataclass(slots=True, eq=False)
class Steering:
    """Sets the targets of one run's servers."""

    clock: Clock
    driver: RunDriver
    servers: ServerDesk
    tell: Callable[[str, str], None]
    parameters: ThrottleParameters = field(default_factory=ThrottleParameters)
    """The law's, from config.toml."""
    stops: Mapping[str, str] = field(default_factory=dict)
    """URL of a server that is being stopped or started -> why nothing is sent to it."""
    laws: dict[str, QueueHold] = field(default_factory=dict)
    _retracted: dict[str, float] = field(default_factory=dict)
    _usages: dict[str, float] = field(default_factory=dict)
    _rates: dict[str, float | None] = field(default_factory=dict)
    _held: dict[str, tuple[float, float]] = field(default_factory=dict)
    """URL -> tokens in its pool and the requests that hold them."""
    _pools: dict[str, int] = field(default_factory=dict)
    _sent: frozenset[str] = frozenset()
    """Partitions that are being sent."""
    _is_overridden: bool = False
    """The operator sent on above the mark: the policy waits until usage has come down."""
    _warned: bool = False
    _told_target: int | None = None
    _told_at: float = 0.0

    def __post_init__(self) -> None:
        """Begin with one law a server."""
        self.laws = {url: QueueHold(self.parameters) for url in self.driver.spec.servers}
        self.set_manual(self.driver.manual)

    def set_manual(self, target: int | None) -> None:
        """Let the operator's number rule (shared among the servers), or AUTO with None."""
        count = max(1, len(self.laws))
        share, rest = divmod(target or 0, count)
        for number, law in enumerate(self.laws.values()):
            law.set_manual(None if target is None else share + (number < rest))
        self._told_target = None
        self._apply()

    def follow_servers(self) -> None:
        """Take on a law for a server that the run has got, and drop that of one it has lost."""
        urls = self.driver.spec.servers
        self.laws = {url: self.laws.get(url) or QueueHold(self.parameters) for url in urls}
        for known in (self._usages, self._rates, self._held, self._pools):
            for gone in known.keys() - set(urls):
                known.pop(gone)
        self.set_manual(self.driver.manual)
        self.tick()

    @property
    def target(self) -> int:
        """Slots as the operator or the law has set them, also while nothing is sent."""
        now = self.clock.monotonic()
        return sum(law.decide(now).target for law in self.laws.values())

    def override_policy(self) -> None:
        """Let the operator's word to send again stand above a pause of the policy."""
        self._is_overridden = POLICY in self.driver.gate.pauses

    def observe(self, watch: ServerWatch) -> None:
        """Take a new sample of one server."""
        url = next((u for u in self.laws if same_url(u, watch.record.url)), None)
        if url is None:
            return
        now = self.clock.monotonic()
        decode = decoding.decode_of(watch.decode, now)
        sample = _sample(watch, decode)
        if sample is not None and not watch.is_frozen:
            self.laws[url].observe(sample, self.driver.in_flight(url), now)
            self._usages[url] = sample.usage
            self._observe_ceiling(url, decode)
        self._sum_up(url, decode)
        target = None if self.driver.manual is None else float(self.driver.manual)
        watch.decode = decoding.fold_target_change(watch.decode, target)
        self._apply()

    def tick(self) -> None:
        """Apply staleness, and servers that came, went or were paused."""
        view = self.driver.view(self.clock.monotonic())
        fit = view.fit_at_mean
        whole = sum(self._pools.values())
        for url, law in self.laws.items():
            why_not = self._why_not(url)
            law.suspend(why_not)
            if why_not is None:
                self._meet(url)
            else:
                self._usages.pop(url, None)
            if fit is not None and url in self._pools:
                law.set_fit(fit * FIT_USAGE * self._pools[url] / whole)
            for note in law.notes():
                self.tell("AUTO", note)
        self._meet_partitions(view)
        self._apply()
        self._tell_target()

    def _meet_partitions(self, view: Run) -> None:
        """Tell the laws when other partitions are sent: their lengths are others."""
        sent = frozenset(p.name for p in view.partitions if p.state is PartitionState.OPEN)
        if sent and sent != self._sent:
            self._sent = sent
            for law in self.laws.values():
                law.meet_other_load()

    def _meet(self, url: str) -> None:
        """Tell the driver which start of a server serves, before anything is sent to it."""
        watch = self.servers.at_url(url)
        if watch is not None and watch.launch is not None:
            self.driver.meet(url, watch.launch)

    def _why_not(self, url: str) -> str | None:
        """Return why nothing is sent to a server, None while it serves."""
        stop = next((why for at, why in self.stops.items() if same_url(at, url)), None)
        watch = self.servers.at_url(url)
        if stop is not None or watch is None:
            return stop  # not watched here: the driver's own breaker decides
        if watch.record.paused_mode is not None:
            return f"{watch.record.name} is frozen"
        if watch.state in (ServerState.STALLED, ServerState.UNREACHABLE) or watch.state.is_ready:
            return None  # it may be busy: late is not dead, and the breaker sees broken sends
        why = f": {watch.state_reason}" if watch.state is ServerState.FAILED else ""
        return f"{watch.record.name} is {watch.state.value}{why}"

    def _sum_up(self, url: str, decode: Decode) -> None:
        """Tell the driver what its servers make and hold together."""
        self._rates[url] = _value(decode.generation_tokens_per_s)
        if (pool := decode.pool_tokens.value) is not None and pool > 0:
            self._pools[url] = int(pool)
        rates = [self._rates.get(u) for u in self.laws if self._why_not(u) is None]
        known = [rate for rate in rates if rate is not None]
        is_whole = known and len(known) == len(rates)
        self.driver.generation_tokens_per_s = sum(known) if is_whole else None
        self.driver.pool_tokens = sum(self._pools.values()) or None
        used, running = decode.used_tokens.value, decode.running.value
        if used is not None and running is not None and not decode.is_frozen:
            self._held[url] = (float(used), float(running))
        self.driver.held = (
            sum(used for used, _ in self._held.values()),
            sum(running for _, running in self._held.values()),
        )

    def _apply(self) -> None:
        now = self.clock.monotonic()
        decisions = {url: law.decide(now) for url, law in self.laws.items()}
        for url, decision in decisions.items():
            self.driver.set_target(
                decision.target, url, is_held=decision.is_held, note=decision.reason
            )
        self.driver.auto_target = sum(d.auto_target for d in decisions.values())
        reasons = [d.reason for d in decisions.values() if d.is_held]
        if decisions and len(reasons) == len(decisions):
            self._hold(reasons[0])
        else:
            self.driver.release("server")

    def _hold(self, reason: str) -> None:
        holds = self.driver.gate.holds
        if _NUMBERS.sub("", holds.get("server", "")) == _NUMBERS.sub("", reason):
            holds["server"] = reason  # only an age in it went on: no new event
        else:
            self.driver.hold("server", reason)

    def _observe_ceiling(self, url: str, decode: Decode) -> None:
        spec = self.driver.spec
        marks = CeilingMarks(spec.policy, spec.pause_above, spec.resume_below)
        was_paused = POLICY in self.driver.gate.pauses
        fullest = max(self._usages.values(), default=None)
        usage = fullest if was_paused else _value(decode.token_usage)
        queued, retracted = decode.queued.value, self._new_retractions(url, decode)
        reading = CeilingReading(usage, None if queued is None else int(queued), retracted)
        if fullest is not None and fullest <= spec.resume_below:
            self._is_overridden = False
        done = step(was_paused, reading, marks)
        if done.action is CeilingAction.PAUSE and not self._is_overridden:
            self.driver.pause(f"paused by the policy: {done.reason}", by=POLICY)
            self.tell("ceiling", f"paused: {done.reason}")
        elif done.action is CeilingAction.RESUME:
            self.driver.resume(by=POLICY)
            self.tell("ceiling", f"resumed: {done.reason}")
        self._warn(done.action, fullest, done.reason)

    def _warn(self, action: CeilingAction, usage: float | None, reason: str) -> None:
        """Tell the ceiling once, and again only after usage has come down to the lower mark."""
        if action is CeilingAction.WARN and not self._warned:
            self.tell("ceiling", reason)
            self._warned = True
        elif usage is not None and usage <= self.driver.spec.resume_below:
            self._warned = False

    def _new_retractions(self, url: str, decode: Decode) -> int | None:
        total = decode.retracted_total.value
        if total is None:
            return None
        before = self._retracted.get(url, total)
        self._retracted[url] = total
        return max(0, int(total - before))

    def _tell_target(self) -> None:
        """Tell where AUTO has moved the target, once it stands or has moved far."""
        if self.driver.manual is not None or self.driver.auto_target is None:
            return
        now, target = self.clock.monotonic(), self.driver.auto_target
        if self._told_target is None:
            self._told_target, self._told_at = target, now
            return
        moved = abs(target - self._told_target)
        if moved > max(4, 0.2 * self._told_target) and now - self._told_at >= SETTLED_S:
            self.tell("AUTO", f"slots {self._told_target} → {target}")
            self._told_target, self._told_at = target, now


def _sample(watch: ServerWatch, decode: Decode) -> ServerSample | None:
    """Return the figures the law needs, None where one is not known."""
    running, queued, usage = decode.running, decode.queued, decode.token_usage
    if running.value is None or queued.value is None or usage.value is None:
        return None
    pool, retracted = decode.pool_tokens.value, decode.retracted_total.value
    metrics = watch.decode.metrics
    return ServerSample(
        at=running.at if running.at is not None else 0.0,
        running=int(running.value),
        queued=int(queued.value),
        usage=float(usage.value),
        retracted_total=None if retracted is None else int(retracted),
        pool_tokens=None if pool is None else int(pool),
        launch=watch.launch,
        generated_per_s=_value(decode.generation_tokens_per_s),
        ended_total=None if metrics is None else metrics.counters.get("num_requests_total"),
        recompute_ratio=_recompute_ratio(decode),
    )


def _recompute_ratio(decode: Decode) -> float | None:
    """Return the share of the server's time that prefilling retracted requests again takes."""
    share, prefill = _value(decode.prefill_share), _value(decode.prefill_tokens_per_s)
    again = _value(decode.recomputed_tokens_per_min)
    if share is None or again is None or prefill is None:
        return None
    return share * min(1.0, again / 60.0 / prefill) if prefill > 0 else 0.0


def _value(figure: Figure) -> float | None:
    return None if figure.value is None else float(figure.value)
