"""Reads what a plan needs of this host: presets, model folders, interpreters, GPU and host memory.

Blocking. What is slow to read and rarely changes (an interpreter's SGLang, a model folder) is
kept; a changed file is read again.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from kvctl.core.clock import Clock
from kvctl.core.domain.capacity.free_memory import GpuRoom
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, HolderKind
from kvctl.core.domain.launches.launch import LaunchRecord, model_key
from kvctl.core.domain.launches.plan import Candidate
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.domain.presets.rules import Rule, refusals, refusals_of_argv
from kvctl.core.domain.presets.serving_flags import ServingFlags, flags_of_settings
from kvctl.core.ports import Processes
from kvctl.core.servers.flags.catalogue import InterpreterProblem, locate
from kvctl.core.servers.model_folder import ModelFolder, find_model_folder, read_model_folder
from kvctl.core.servers.presets.store import ListedPreset, PresetStore

_VERSION_KEPT_S = 600.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GONE = (HolderKind.RANK, HolderKind.LAUNCHING, HolderKind.LEFTOVER)
"""Holders that a restart ends."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The host's memory in bytes, with our own server gone."""

    total: float
    available: float


@dataclass(frozen=True, slots=True)
class PlanSurroundings:
    """What a plan is made for."""

    gpus: GpuView
    launches: tuple[LaunchRecord, ...]
    rules: tuple[Rule, ...]
    """As they are written now."""
    replaced: str | None = None
    """Name of the server that would be stopped first."""
    session: int | None = None
    """Its session, for the host memory that comes back."""


@dataclass(slots=True)
class PlanReader:
    """Reads presets as candidates of a plan."""

    store: PresetStore
    processes: Processes
    clock: Clock
    is_wanted: Callable[[ListedPreset], bool] = lambda _: True
    """Whether a preset is for this kind of host."""
    proc: Path = Path("/proc")
    _versions: dict[tuple[str, str | None], tuple[float, str | None]] = field(default_factory=dict)
    _folders: dict[Path, tuple[object, ModelFolder]] = field(default_factory=dict)

    def candidates(
        self, around: PlanSurroundings, names: Iterable[str] | None = None
    ) -> tuple[tuple[Candidate, ...], HostMemory | None]:
        """Return the presets of these names (all without), and the host's memory.

        Raises:
            KvctlError: The preset folders cannot be read.
        """
        memory = self.host_memory(around.session)
        wanted = None if names is None else set(names)
        listed = [p for p in self.store.listed() if self.is_wanted(p)]
        chosen = [p for p in listed if wanted is None or p.name in wanted]
        return tuple(self._candidate(p, around, memory) for p in chosen), memory

    def host_memory(self, session: int | None) -> HostMemory | None:
        """Return the host's memory as it would be without the processes of a session."""
        try:
            lines = (self.proc / "meminfo").read_text().splitlines()
        except OSError:
            return None
        rows = {name: words for name, _, words in (line.partition(":") for line in lines)}
        try:
            total, free = (int(rows[n].split()[0]) * 1024 for n in ("MemTotal", "MemAvailable"))
        except (KeyError, ValueError, IndexError):
            return None
        return HostMemory(total, min(total, free + self._held(session)))

    def _held(self, session: int | None) -> int:
        if session is None:
            return 0
        own = (p for p in self.processes.all_facts() if p.session == session)
        return sum(self._own_bytes(facts.identity.pid) for facts in own)

    def _own_bytes(self, pid: int) -> int:
        """Return a process's resident memory without what it shares with others."""
        try:
            words = (self.proc / str(pid) / "statm").read_text().split()
            return max(0, int(words[1]) - int(words[2])) * _PAGE
        except (OSError, ValueError, IndexError):
            return 0

    def _candidate(
        self, listed: ListedPreset, around: PlanSurroundings, memory: HostMemory | None
    ) -> Candidate:
        preset = listed.preset
        if preset is None or listed.problems:
            problem = listed.problems[0].message if listed.problems else "cannot be read"
            text = preset.description if preset is not None else ""
            return Candidate(listed.name, text, problem=problem)
        try:
            plan = self.store.shown_plan(preset)
        except KvctlError as refused:
            return Candidate(listed.name, preset.description, problem=str(refused))
        broken = (
            *refusals(preset, around.rules),
            *refusals_of_argv(plan.shown_argv, around.rules),  # values that came from variables
        )
        flags = flags_of_settings(plan.settings, self._version(plan, around.launches))
        folder, problem = self._folder(plan)
        return Candidate(
            name=listed.name,
            description=preset.description,
            refused=f"rule on {broken[0].rule.flag}: {broken[0].rule.reason}" if broken else None,
            model=model_key(plan.model_path),
            flags=flags,
            argv=plan.shown_argv,
            shape=None if folder is None else folder.shape,
            weights=None if folder is None else folder.weights,
            shape_problem=problem,
            room=_cpu_room(memory) if flags.is_cpu else _gpu_room(plan, flags, around),
        )

    def _version(self, plan: LaunchPlan, launches: Sequence[LaunchRecord]) -> str | None:
        """Return the SGLang that a preset would run: its interpreter's, else the last launch's.

        Without a launch of the preset the last one by the same command counts.
        """
        if plan.is_direct:
            return self._installed(plan)
        known = [x for x in reversed(launches) if x.version]
        own = (x.version for x in known if x.preset == plan.preset)
        command = _command(plan.shown_argv)
        alike = (x.version for x in known if _command(x.argv) == command)
        return next(own, None) or next(alike, None)

    def _installed(self, plan: LaunchPlan) -> str | None:
        environment = {**self.store.environment, **dict(plan.env)}
        key = (plan.argv[0], environment.get("PYTHONPATH"))
        read_at, version = self._versions.get(key, (float("-inf"), None))
        if self.clock.monotonic() - read_at > _VERSION_KEPT_S:
            version = _located(plan.argv[0], environment)
            self._versions[key] = (self.clock.monotonic(), version)
        return version

    def _folder(self, plan: LaunchPlan) -> tuple[ModelFolder | None, str]:
        if plan.model_path is None:
            return None, "the preset names no model path"
        environment = {**self.store.environment, **dict(plan.env)}
        try:
            path = find_model_folder(plan.model_path, environment)
            stamp = _stamp(path)
            known = self._folders.get(path)
            if known is None or known[0] != stamp:
                known = self._folders[path] = (stamp, read_model_folder(path))
            return known[1], ""
        except KvctlError as problem:
            return None, str(problem)


def _command(argv: Sequence[str]) -> tuple[str, ...]:
    """Return what runs SGLang (an image's name is in it): all before the model."""
    return tuple(takewhile(lambda word: not word.startswith("--model"), argv))


def _located(python: str, environment: Mapping[str, str]) -> str | None:
    try:
        installed = locate(python, environment)
    except InterpreterProblem:
        return None  # the preflight says why
    return None if installed is None else installed.version


def _stamp(folder: Path) -> object:
    """Return what changes when a model folder does."""
    try:
        entries = sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in folder.iterdir())
    except OSError:
        return None
    return tuple(entries)


def _cpu_room(memory: HostMemory | None) -> GpuRoom | None:
    return None if memory is None else GpuRoom(memory.total, free_bytes=memory.available)


def _gpu_room(plan: LaunchPlan, flags: ServingFlags, around: PlanSurroundings) -> GpuRoom | None:
    """Return the GPU with the least room among those that a launch would take."""
    named = [d for d in around.gpus.devices if str(d.index) in plan.gpus or d.uuid in plan.gpus]
    devices = named if plan.gpus else list(around.gpus.devices[: flags.layout.ranks_on_host])
    if len(devices) < flags.layout.ranks_on_host:
        return None
    rooms = [_room(device, around) for device in devices]
    known = [room for room in rooms if room is not None]
    if len(known) < len(rooms):
        return None
    return min(known, key=lambda room: room.total_bytes - room.foreign_bytes, default=None)


def _room(device: GpuDevice, around: PlanSurroundings) -> GpuRoom | None:
    total = device.memory_total_bytes.value
    if total is None or device.problem is not None:
        return None
    others = (h for h in around.gpus.holders if h.gpu_uuid == device.uuid)
    foreign = sum(
        h.memory_bytes or 0
        for h in others
        if h.kind not in _GONE or h.server not in (None, around.replaced)
    )
    return GpuRoom(total, foreign)
