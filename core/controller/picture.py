"""Puts the snapshot together: the desks' views, joined with history, presets and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvctl.core.controller.history import OF_SERVER, History, shown_series
from kvctl.core.controller.host import Host
from kvctl.core.controller.launches.operating import KEPT, OperatingLog, steady_rates
from kvctl.core.controller.launches.planner import belongs_to
from kvctl.core.controller.servers.records import same_url
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.diagnosis.diagnose import diagnose
from kvctl.core.domain.diagnosis.scene import Scene
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.figures import Figure, unknown
from kvctl.core.domain.gpus.devices import GpuView
from kvctl.core.domain.launches.operating_point import OperatingPoint
from kvctl.core.domain.presets.rules import Rule, refusals
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.servers.server import Server
from kvctl.core.domain.snapshot import PresetSummary, Snapshot
from kvctl.core.domain.telemetry.balance import Balance, Moment, contradiction, fold_moment
from kvctl.core.domain.verdict import Verdict, VerdictWord
from kvctl.core.servers.ledger import Ledger
from kvctl.core.servers.presets.store import ListedPreset

PRESETS_EVERY_S = 5.0
VERDICT_HOLD_S = 5.0
_SHARED = "several servers share the run"


@dataclass(slots=True)
class Picture:
    """Composes snapshots and keeps what only they need: history and operating points."""

    host: Host
    feed: EventFeed
    ledger: Ledger
    history: History = field(init=False)
    points: OperatingLog = field(default_factory=OperatingLog)
    _presets: tuple[PresetSummary, ...] = ()
    _presets_at: float | None = None
    _verdict: Verdict | None = None
    _verdict_at: float = 0.0
    _balance: Balance | None = None

    def __post_init__(self) -> None:
        """Take up the history and the operating points of an earlier kvctld."""
        self.history = History(self.host.state_folder)
        points = [point for record in self.ledger.records() for point in record.points]
        self.points.take_up(sorted(points, key=lambda point: point.began_wall)[-KEPT:])

    def compose(
        self,
        servers: tuple[Server, ...],
        gpus: GpuView,
        run: Run | None,
        busy: str | None,
        last_good_preset: str | None,
    ) -> Snapshot:
        """Return the snapshot of this moment."""
        at, wall = self.host.clock.monotonic(), self.host.clock.wall()
        run = self._credible(run)
        joined = tuple(_joined(server, run) for server in servers)
        presets = self._list_presets(at, joined)
        first = joined[0] if joined else None
        scene = Scene(at, wall, first, gpus, run, presets, self._own_points(first))
        most_slots = self.host.config.throttle.most
        scene = replace(scene, most_slots=most_slots, last_good_preset=last_good_preset)
        return Snapshot(
            at=at,
            wall=wall,
            host=self.host.name,
            version=self.host.version,
            is_simulated=self.host.gpus.is_simulated,
            gpus=gpus,
            servers=joined,
            run=run,
            verdicts=diagnose(scene),
            presets=presets,
            events=tuple(self.feed.recent),
            series=shown_series(self.history.series(wall), joined[0].name if joined else None),
            operating_points=self.points.points(),
            busy_command=busy,
            last_good_preset=last_good_preset,
        )

    def _own_points(self, server: Server | None) -> tuple[OperatingPoint, ...]:
        """Return what was measured under the launch that serves now."""
        if server is None or server.launch_id is None:
            return ()
        return tuple(p for p in self.points.points() if p.launch == server.launch_id)

    def note(self, snapshot: Snapshot) -> None:
        """Take one second's figures into the history and tell a new verdict as an event."""
        self.history.record(snapshot.wall, _series_values(snapshot))
        self.points.note(snapshot)
        self._balance = fold_moment(self._balance, _moment(snapshot))
        self._tell_verdict(snapshot)

    def _credible(self, run: Run | None) -> Run | None:
        """Return the run without a figure that contradicts what its server generates."""
        why = contradiction(self._balance)
        if run is None or why is None:
            return run
        return replace(run, effective_tokens_per_s=unknown(why, "journal"))

    def _tell_verdict(self, snapshot: Snapshot) -> None:
        """Tell upwards at once, otherwise only what has held for a while."""
        top = snapshot.verdicts[0]
        if self._verdict is None or top.word is self._verdict.word:
            self._verdict, self._verdict_at = top, snapshot.at
            return
        is_worse = _rank(top) < _rank(self._verdict)
        if is_worse or snapshot.at - self._verdict_at > VERDICT_HOLD_S:
            self._verdict, self._verdict_at = top, snapshot.at
            self.feed.emit("verdict", f"{top.word.value}: {top.sentence}")

    def _list_presets(self, at: float, servers: tuple[Server, ...]) -> tuple[PresetSummary, ...]:
        if self._presets_at is None or at - self._presets_at >= PRESETS_EVERY_S:
            self._presets_at = at
            self._presets = self._read_presets()
        running = {server.preset for server in servers if server.state.is_ready}
        steady = steady_rates(self.points.points())
        return tuple(
            replace(
                preset,
                is_running=preset.name in running,
                generation_tokens_per_s=steady.get(preset.name, (None, None))[0],
                effective_tokens_per_s=steady.get(preset.name, (None, None))[1],
            )
            for preset in self._presets
        )

    def _read_presets(self) -> tuple[PresetSummary, ...]:
        records = {r.preset: r for r in self.ledger.records() if r.was_ready}
        pools = {name: record.pool_tokens for name, record in records.items()}
        try:
            is_simulated = self.host.gpus.is_simulated
            everything = self.host.presets.listed()
            listed = [p for p in everything if belongs_to(p, is_simulated=is_simulated)]
            rules = self.host.rules
        except KvctlError:
            return self._presets  # a file that went away meanwhile: the next look tells
        return tuple(self._summary(preset, pools, rules) for preset in listed)

    def _summary(
        self, listed: ListedPreset, pools: Mapping[str, int | None], rules: Sequence[Rule]
    ) -> PresetSummary:
        broken = refusals(listed.preset, rules) if listed.preset else ()
        rule = broken[0].rule if broken else None
        return PresetSummary(
            listed.name,
            listed.preset.description if listed.preset else "",
            refused=f"rule on {rule.flag}: {rule.reason}" if rule else None,
            problem=listed.problems[0].message if listed.problems and not listed.needs else None,
            needs=listed.needs,
            pool_tokens=pools.get(listed.name),
        )


def _rank(verdict: Verdict) -> int:
    return list(VerdictWord).index(verdict.word)


def _joined(server: Server, run: Run | None) -> Server:
    """Return the server with what only the run knows: effective rate and answer time."""
    if run is None or not any(same_url(server.url, url) for url in run.servers):
        return server
    answer = (
        Figure(run.mean_answer_s, "journal", run.journal_at)
        if run.mean_answer_s is not None
        else unknown("nothing was completed yet")
    )
    is_alone = len(run.servers) == 1
    effective = run.effective_tokens_per_s if is_alone else unknown(_SHARED)
    completed = run.completed_per_s if is_alone else unknown(_SHARED)
    decode = replace(
        server.decode,
        effective_tokens_per_s=effective,
        effective_window_s=run.effective_window_s if is_alone else None,
        completed_in_window=run.completed_in_window if is_alone else None,
        completed_per_s=completed,
        answer_s=answer,
    )
    return replace(server, decode=decode)


def _moment(snapshot: Snapshot) -> Moment | None:
    """Return what is generated and completed while a run's only server decodes steadily."""
    server, run = snapshot.server, snapshot.run
    if server is None or run is None or len(run.servers) != 1:
        return None
    if not same_url(server.url, run.servers[0]):
        return None
    rate = server.decode.generation_tokens_per_s.value
    if rate is None or server.decode.is_frozen or server.decode.steady_since is None:
        return None
    held = sum(part.in_flight * (part.p95_tokens or 0.0) for part in run.partitions)
    return Moment(snapshot.at, float(rate), run.tokens, held)


def _series_values(snapshot: Snapshot) -> dict[str, float | None]:
    """Return every server's figures under its name, and the run's own."""
    run = snapshot.run
    values = {
        f"{server.name}{OF_SERVER}{name}": value
        for server in snapshot.servers
        for name, value in _server_values(server).items()
    }
    if run is not None:
        values["effective"] = run.effective_tokens_per_s.value
        lengths = [p.mean_tokens for p in run.partitions if p.in_flight and p.mean_tokens]
        values["length"] = sum(lengths) / len(lengths) if lengths else None
    return values


def _server_values(server: Server) -> dict[str, float | None]:
    decode = server.decode
    is_old = decode.is_frozen or not server.state.is_ready
    figures = (
        ("pool", decode.token_usage),
        ("running", decode.running),
        ("queued", decode.queued),
        ("generation", decode.generation_tokens_per_s),
        ("retracted", decode.retracted_per_min),
        ("answer", decode.answer_s),
    )
    return {name: None if is_old else figure.value for name, figure in figures}
