"""The one picture of the host that every frontend shows."""

from dataclasses import dataclass, field

from kvctl.core.domain.events import Event
from kvctl.core.domain.gpus.devices import GpuView
from kvctl.core.domain.launches.operating_point import OperatingPoint as OperatingPoint
from kvctl.core.domain.launches.plan import Planned
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.servers.server import Server
from kvctl.core.domain.verdict import Verdict


@dataclass(frozen=True, slots=True)
class PresetSummary:
    """One preset as the list shows it."""

    name: str
    description: str
    is_running: bool = False
    refused: str | None = None
    """The rule that refuses it, with its reason; None where it may be started."""
    problem: str | None = None
    """Why it cannot be read."""
    needs: tuple[str, ...] = ()
    """Environment variables that are all that is missing to start it."""
    pool_tokens: int | None = None
    """From the last launch of this preset on this host; None if never launched."""
    generation_tokens_per_s: float | None = None
    """Steady figure of the last launch; None if never steady."""
    effective_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """History for one sparkline, evenly spaced, oldest first."""

    step_s: float
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """History of one GPU, both 0..1: ten minutes."""

    memory: Series
    utilisation: Series


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a frontend needs, at one moment."""

    at: float
    """Monotonic seconds of kvctld's clock when this was made."""
    wall: float
    """UTC seconds."""
    host: str
    version: str
    """kvctl's version."""
    is_simulated: bool = False
    gpus: GpuView = GpuView()
    servers: tuple[Server, ...] = ()
    run: Run | None = None
    verdicts: tuple[Verdict, ...] = ()
    """Most urgent first; never empty once sampled."""
    presets: tuple[PresetSummary, ...] = ()
    events: tuple[Event, ...] = ()
    """Newest last, at most 200."""
    series: dict[str, Series] = field(default_factory=dict)
    """pool, running, queued, generation, effective, retracted, answer, length: 10 minutes."""
    gpu_series: dict[str, GpuSeries] = field(default_factory=dict)
    """By the GPU's UUID."""
    operating_points: tuple[OperatingPoint, ...] = ()
    plans: tuple[Planned, ...] = ()
    """What a restart with each preset would bring; empty before the first look."""
    busy_command: str | None = None
    """What is being carried out now (restart, kill), in words."""
    last_good_preset: str | None = None
    """The preset that served last; where a failed start can go back to."""
    operators: tuple[str, ...] = ()
    """Names of attached panels."""

    @property
    def server(self) -> Server | None:
        """The server shown when only one can be: the first."""
        return self.servers[0] if self.servers else None
