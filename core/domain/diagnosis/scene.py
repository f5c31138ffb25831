"""What the verdict rules look at, and the fresh decode figures in it."""

from dataclasses import dataclass

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus.devices import GpuView
from kvctl.core.domain.launches.operating_point import OperatingPoint
from kvctl.core.domain.runs.run import Run, RunState
from kvctl.core.domain.servers.server import Server, ServerState
from kvctl.core.domain.snapshot import PresetSummary
from kvctl.core.domain.throttle.parameters import ThrottleParameters
from kvctl.core.domain.units import day_time

STALE_AFTER_S = 15.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What the rules look at."""

    at: float
    wall: float
    server: Server | None
    gpus: GpuView
    run: Run | None
    presets: tuple[PresetSummary, ...] = ()
    points: tuple[OperatingPoint, ...] = ()
    """Measured under the present launch, every partition."""
    most_slots: int = ThrottleParameters().most
    """AUTO sends no more requests at once to a server."""
    last_good_preset: str | None = None
    """The preset that served here last; `b` starts it."""

    @property
    def is_sending(self) -> bool:
        """Whether a run sends now."""
        return self.run is not None and self.run.state is RunState.RUNNING

    def number(self, figure: Figure) -> float | None:
        """Return a figure's value if it is fresh enough to build a sentence on."""
        age = figure.age_s(self.at)
        fresh = age is not None and age <= STALE_AFTER_S
        return figure.value if fresh else None


def is_changing(scene: Scene) -> bool:
    """Whether a start, stop or restart is in progress."""
    server = scene.server
    return server is not None and server.state in (ServerState.STARTING, ServerState.STOPPING)


@dataclass(frozen=True, slots=True)
class Load:
    """Fresh decode figures of a scene that has them."""

    running: float
    queued: float
    usage: float
    pool: float


def load_of(scene: Scene) -> Load | None:
    """Return the fresh figures of a serving server, None where one is missing or old."""
    if scene.server is None or not scene.server.state.is_ready:
        return None
    decode = scene.server.decode
    running, queued = scene.number(decode.running), scene.number(decode.queued)
    usage, pool = scene.number(decode.token_usage), decode.pool_tokens.value
    if running is None or queued is None or usage is None or pool is None:
        return None
    return Load(running, queued, usage, pool)


def done_at(scene: Scene) -> str:
    """Return ": done ~TIME." for the run, "." where that is not known."""
    if scene.run is None or scene.run.done_wall is None:
        return "."
    return f": done ~{day_time(scene.run.done_wall, scene.wall)}."
