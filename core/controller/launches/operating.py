"""Operating points: what each partition measured under each launch, with the window it held.

A window grows while (nearly) one partition is in flight at a server under one launch; its steady
part is kept apart, and only that is quoted as steady. Each server has windows of its own.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvctl.core.controller.servers.records import same_url
from kvctl.core.domain.launches.operating_point import OperatingPoint
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.servers.server import Server
from kvctl.core.domain.snapshot import Snapshot

LEAST_STEADY_S = 30.0
LEAST_BURST_S = 15.0
KEPT = 200
MOSTLY = 0.7
"""Share of the requests in flight from which a window is one partition's."""
KEEP_EVERY_S = 60.0
"""How much of an open window a killed kvctld may lose."""

_Key = tuple[str, str | None, str | None, bool]
"""Partition, preset, launch, steady."""


@dataclass(slots=True)
class _Window:
    """One stretch at one server under the same partition, launch and steadiness."""

    server: str
    key: _Key
    began_wall: float
    began_at: float
    last_at: float
    began_tokens: int
    last_tokens: int
    began_done: int
    last_done: int
    is_alone: bool
    """The run has no other server: what it completes is this server's."""
    kept_at: float
    samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, value: float | None) -> None:
        if value is not None:
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def mean(self, name: str) -> float | None:
        return self.sums[name] / self.counts[name] if self.counts.get(name) else None

    @property
    def length_s(self) -> float:
        return self.last_at - self.began_at

    @property
    def is_long(self) -> bool:
        return self.length_s >= (LEAST_STEADY_S if self.key[3] else LEAST_BURST_S)

    def point(self) -> OperatingPoint:
        partition, preset, launch, steady = self.key
        done, tokens = self.last_done - self.began_done, self.last_tokens - self.began_tokens
        counts = self.is_alone and self.length_s > 0
        return OperatingPoint(
            partition=partition,
            preset=preset,
            running=self.mean("running"),
            queued=self.mean("queued"),
            token_usage=self.mean("usage"),
            generation_tokens_per_s=self.mean("generation"),
            effective_tokens_per_s=tokens / self.length_s if counts else None,
            window_s=self.length_s,
            steady=steady,
            server=self.server,
            launch=launch,
            began_wall=self.began_wall,
            completed=done if counts else None,
            completed_per_s=done / self.length_s if counts else None,
        )


@dataclass(slots=True)
class OperatingLog:
    """Collects windows from one snapshot a second."""

    _done: deque[OperatingPoint] = field(default_factory=lambda: deque(maxlen=KEPT))
    _open: dict[str, _Window] = field(default_factory=dict)
    _fresh: list[OperatingPoint] = field(default_factory=list)

    def take_up(self, points: Iterable[OperatingPoint]) -> None:
        """Begin with what an earlier kvctld measured, oldest first."""
        self._done.extend(points)

    def note(self, snapshot: Snapshot) -> None:
        """Take one second into the open windows, or close them and open others."""
        keys = {server.name: _key(server, snapshot.run) for server in snapshot.servers}
        for name, window in list(self._open.items()):
            if window.key != keys.get(name):
                self._close(name)
        run = snapshot.run
        for server in snapshot.servers:
            key = keys[server.name]
            if key is None or run is None:
                continue
            if server.name not in self._open:
                self._open[server.name] = _opened(server, key, run, snapshot)
            _extend(self._open[server.name], server, run, snapshot.at)

    def points(self) -> tuple[OperatingPoint, ...]:
        """Return every window that was long enough, oldest first, the open ones last."""
        open_points = (window.point() for window in self._open.values() if window.is_long)
        return (*self._done, *open_points)

    def take_fresh(self) -> list[OperatingPoint]:
        """Return the windows to be kept on disk now: closed ones, and open ones from time to time.

        A later state of a window has the same server, launch, partition and beginning.
        """
        fresh, self._fresh = self._fresh, []
        for window in self._open.values():
            if window.is_long and window.last_at - window.kept_at >= KEEP_EVERY_S:
                window.kept_at = window.last_at
                fresh.append(window.point())
        return fresh

    def close(self) -> None:
        """Close every window: kvctld leaves."""
        for name in list(self._open):
            self._close(name)

    def _close(self, server: str) -> None:
        window = self._open.pop(server)
        if window.is_long:
            self._done.append(window.point())
            self._fresh.append(window.point())


def steady_rates(
    points: Iterable[OperatingPoint],
) -> dict[str, tuple[float | None, float | None]]:
    """Return generation and effective tok/s of the longest steady window of each preset."""
    best: dict[str, OperatingPoint] = {}
    for point in points:
        if not point.steady or point.preset is None:
            continue
        if point.preset not in best or point.window_s > best[point.preset].window_s:
            best[point.preset] = point
    return {name: (p.generation_tokens_per_s, p.effective_tokens_per_s) for name, p in best.items()}


def _key(server: Server, run: Run | None) -> _Key | None:
    """Return what a window belongs to; None while nothing decodes for the run there."""
    if run is None or not server.state.is_ready or server.decode.is_frozen:
        return None
    if run.servers and not any(same_url(server.url, url) for url in run.servers):
        return None
    flying = {part.name: part.in_flight for part in run.partitions if part.in_flight}
    if not flying:
        return None
    is_steady = server.decode.steady_since is not None
    return _mostly(flying), server.preset, server.launch_id, is_steady


def _mostly(flying: dict[str, int]) -> str:
    """Return the partition that most requests belong to, or all names where none stands out."""
    name, most = max(flying.items(), key=lambda item: item[1])
    return name if most >= MOSTLY * sum(flying.values()) else "+".join(flying)


def _opened(server: Server, key: _Key, run: Run, snapshot: Snapshot) -> _Window:
    at, tokens, done = snapshot.at, run.tokens, run.done
    return _Window(
        server=server.name,
        key=key,
        began_wall=snapshot.wall,
        began_at=at,
        last_at=at,
        began_tokens=tokens,
        last_tokens=tokens,
        began_done=done,
        last_done=done,
        is_alone=len(run.servers) <= 1,
        kept_at=at,
    )


def _extend(window: _Window, server: Server, run: Run, at: float) -> None:
    decode = server.decode
    window.last_at, window.last_tokens, window.last_done = at, run.tokens, run.done
    window.samples += 1
    window.add("running", decode.running.value)
    window.add("queued", decode.queued.value)
    window.add("usage", decode.token_usage.value)
    window.add("generation", decode.generation_tokens_per_s.value)
