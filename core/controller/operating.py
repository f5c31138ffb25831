"""Operating points: what each partition measured under each launch, with the window it held.

A window grows while (nearly) one partition is in flight under one preset and target; its steady
part is kept apart, and only that is quoted as steady.
"""

from collections import deque
from dataclasses import dataclass, field

from kvctl.core.domain.snapshot import OperatingPoint, Snapshot

LEAST_STEADY_S = 30.0
LEAST_BURST_S = 15.0
KEPT = 200
MOSTLY = 0.7
"""Share of the requests in flight from which a window is one partition's."""


@dataclass(slots=True)
class _Window:
    """One stretch under the same partition, preset and steadiness."""

    partition: str
    preset: str | None
    steady: bool
    began_at: float
    last_at: float
    began_tokens: int
    last_tokens: int
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

    def point(self) -> OperatingPoint:
        tokens = self.last_tokens - self.began_tokens
        return OperatingPoint(
            partition=self.partition,
            preset=self.preset,
            running=self.mean("running"),
            queued=self.mean("queued"),
            token_usage=self.mean("usage"),
            generation_tokens_per_s=self.mean("generation"),
            effective_tokens_per_s=tokens / self.length_s if self.length_s > 0 else None,
            window_s=self.length_s,
            steady=self.steady,
        )


@dataclass(slots=True)
class OperatingLog:
    """Collects windows from one snapshot a second."""

    _done: deque[OperatingPoint] = field(default_factory=lambda: deque(maxlen=KEPT))
    _open: _Window | None = None

    def note(self, snapshot: Snapshot) -> None:
        """Take one second into the open window, or close it and open another."""
        key = _key(snapshot)
        window = self._open
        if window is not None and (window.partition, window.preset, window.steady) != key:
            self._close()
            window = None
        if key is None:
            return
        run = snapshot.run
        assert run is not None
        if window is None:
            at, tokens = snapshot.at, run.tokens
            window = self._open = _Window(*key, at, at, tokens, tokens)
        _extend(window, snapshot)

    def points(self) -> tuple[OperatingPoint, ...]:
        """Return every window that was long enough, oldest first, the open one last."""
        window = self._open
        open_points = (window.point(),) if window is not None and _is_long(window) else ()
        return (*self._done, *open_points)

    def best_by_preset(self) -> dict[str, tuple[float | None, float | None]]:
        """Return generation and effective tok/s of the longest steady window of each preset."""
        best: dict[str, OperatingPoint] = {}
        for point in self.points():
            if not point.steady or point.preset is None:
                continue
            if point.preset not in best or point.window_s > best[point.preset].window_s:
                best[point.preset] = point
        return {
            name: (p.generation_tokens_per_s, p.effective_tokens_per_s) for name, p in best.items()
        }

    def _close(self) -> None:
        if self._open is not None and _is_long(self._open):
            self._done.append(self._open.point())
        self._open = None


def _is_long(window: _Window) -> bool:
    return window.length_s >= (LEAST_STEADY_S if window.steady else LEAST_BURST_S)


def _key(snapshot: Snapshot) -> tuple[str, str | None, bool] | None:
    """Return what a window belongs to; None while nothing decodes for the run."""
    server, run = snapshot.server, snapshot.run
    if server is None or run is None or not server.state.is_ready or server.decode.is_frozen:
        return None
    flying = {part.name: part.in_flight for part in run.partitions if part.in_flight}
    if not flying:
        return None
    return _mostly(flying), server.preset, server.decode.steady_since is not None


def _mostly(flying: dict[str, int]) -> str:
    """Return the partition that most requests belong to, or all names where none stands out."""
    name, most = max(flying.items(), key=lambda item: item[1])
    return name if most >= MOSTLY * sum(flying.values()) else "+".join(flying)


def _extend(window: _Window, snapshot: Snapshot) -> None:
    server, run = snapshot.server, snapshot.run
    assert server is not None and run is not None
    decode = server.decode
    window.last_at, window.last_tokens = snapshot.at, run.tokens
    window.samples += 1
    window.add("running", decode.running.value)
    window.add("queued", decode.queued.value)
    window.add("usage", decode.token_usage.value)
    window.add("generation", decode.generation_tokens_per_s.value)
