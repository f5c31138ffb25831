"""Keeps what a restart with each preset would bring, as the panel shows it before it is asked."""

import asyncio
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kvctl.core.controller.commands import Outcome, PlanPresets
from kvctl.core.controller.host import Host
from kvctl.core.domain.capacity.ceiling import lengths_of
from kvctl.core.domain.errors import KvctlError, UsageError
from kvctl.core.domain.launches.plan import Planned, PlanScene, Work, plan, works_of
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.servers.server import Server
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import kilo_tokens
from kvctl.core.runs.opening.lengths import works_on_disk
from kvctl.core.runs.opening.locating import spec_at
from kvctl.core.servers.ledger import Ledger
from kvctl.core.servers.planning import PlanReader, PlanSurroundings
from kvctl.core.servers.presets.store import ListedPreset
from kvctl.core.servers.processes.discover import SIMULATED_MODULE


def belongs_to(listed: ListedPreset, *, is_simulated: bool) -> bool:
    """Whether a preset is for this kind of host: simulated ones stay on the simulated host."""
    command = listed.preset.launch_setting("command") if listed.preset else None
    words = command.value if command is not None and isinstance(command.value, tuple) else ()
    return (SIMULATED_MODULE in words) == is_simulated


@dataclass(slots=True, eq=False)
class Planner:
    """Reads presets, models and memory in a thread and keeps the plans made of them."""

    host: Host
    ledger: Ledger
    plans: tuple[Planned, ...] = ()
    outdated: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a launch has told what the next ones are predicted from."""
    _reader: PlanReader = field(init=False)

    def __post_init__(self) -> None:
        """Begin without plans; nothing is read yet."""
        is_simulated = self.host.gpus.is_simulated
        self._reader = PlanReader(
            self.host.presets,
            self.host.processes,
            self.host.clock,
            lambda listed: belongs_to(listed, is_simulated=is_simulated),
        )

    async def refresh(self, snapshot: Snapshot) -> None:
        """Make the plans anew for the present run and GPUs; a file that went away is waited for."""
        self.outdated.clear()
        try:
            works = works_of(snapshot.run)
            self.plans = await asyncio.to_thread(self._made, snapshot, works)
        except KvctlError:
            return

    def of(self, preset: str) -> Planned | None:
        """Return the plan of a preset, None before it was made."""
        return next((planned for planned in self.plans if planned.name == preset), None)

    async def answer(self, command: PlanPresets, snapshot: Snapshot) -> Outcome:
        """Plan the presets that are asked for, under the lengths that are asked for.

        Raises:
            UsageError: There is no such preset.
            KvctlError: The named run, or config.toml, cannot be read.
        """
        works = await asyncio.to_thread(_works, command, snapshot.run)
        made = await asyncio.to_thread(self._made, snapshot, works)
        by_name = {planned.name: planned for planned in made}
        unknown = [name for name in command.presets if name not in by_name]
        if unknown:
            known = ", ".join(by_name)
            raise UsageError(f"there is no preset {', '.join(unknown)}; there are: {known}")
        chosen = [by_name[name] for name in command.presets or by_name]
        return Outcome(0, f"{len(chosen)} presets", data={"presets": [asdict(x) for x in chosen]})

    def _made(self, snapshot: Snapshot, works: tuple[Work, ...]) -> tuple[Planned, ...]:
        launches = self.ledger.records()
        name = snapshot.server.name if snapshot.server else None
        session = self._session(snapshot.server)
        around = PlanSurroundings(snapshot.gpus, launches, self.host.rules, name, session)
        candidates, memory = self._reader.candidates(around)
        is_simulated = self.host.gpus.is_simulated
        free = None if memory is None or is_simulated else memory.available
        return plan(candidates, PlanScene(launches, works, _fixed_slots(snapshot), free))

    def _session(self, server: Server | None) -> int | None:
        """Return the session of a managed server's processes; None where there is none here."""
        if server is None or server.pid is None or not server.is_managed:
            return None
        facts = self.host.processes.facts(server.pid)
        return None if facts is None else facts.session


def _works(command: PlanPresets, run: Run | None) -> tuple[Work, ...]:
    """Return the lengths that are asked for: given ones, those of a file, or of the open run."""
    if command.lengths:
        return tuple(
            Work(f"{mean:,.0f} tokens", lengths_of(mean), None, None) for mean in command.lengths
        )
    if command.run is None:
        return works_of(run)
    named = run if run is not None and command.run in (run.name, run.path) else None
    if named is not None and named.partitions:
        return works_of(named)
    spec = spec_at(Path(named.path if named is not None else command.run))
    # A run that is still being read has no partitions yet: what lies on disk is asked.
    is_open = run is not None and run.path == spec.path and run.partitions
    return works_of(run) if is_open else works_on_disk(spec)


def _fixed_slots(snapshot: Snapshot) -> int | None:
    """Return the slots that the operator fixed; None where AUTO follows the pool."""
    run = snapshot.run
    return None if run is None or run.is_auto else run.target


def plan_document(planned: Planned, now_tokens: float | None) -> dict[str, object]:
    """Return what the restart dialog shows of a plan, beside the pool that runs now."""
    pool, lines = planned.pool, brings(planned, now_tokens)
    return {
        "predicted_tokens": None if pool is None else round(pool.expected),
        "predicted_ratio": None if pool is None else pool.error_ratio,
        "calibrated_by": planned.calibrated_by,
        "fits": planned.fits,
        "plan_reason": planned.reason,
        **({"brings": list(lines)} if lines else {}),
    }


def brings(planned: Planned, now_tokens: float | None) -> tuple[str, ...]:
    """Return what a preset's pool would decode at once, a line for each partition that is open."""
    found = []
    for part in planned.parts:
        if part.steady is None or planned.pool is None or part.mean_tokens is None:
            continue
        after = part.steady.expected
        before = after * now_tokens / planned.pool.expected if now_tokens else None
        arrow = f"~{before:.0f} → ~{after:.0f}" if before is not None else f"~{after:.0f}"
        found.append(f"{part.name} at {kilo_tokens(part.mean_tokens)}  {arrow}")
    lines = [f"decodes at once   {'     '.join(found[:3])}"] if found else []
    if planned.host_bytes:
        lines.append("hicache keeps old prefixes in host RAM: reuse, not decode capacity")
    return tuple(lines)
