"""The commands that start, stop and replace a server; one at a time, each can be cancelled."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvctl.core.controller.commands import (
    CancelStart,
    CheckPreset,
    Outcome,
    RestartServer,
    StartServer,
    StopServer,
    WaitHow,
)
from kvctl.core.controller.gpus.desk import GpuDesk
from kvctl.core.controller.sequences.checking import Situation, outcome_of
from kvctl.core.controller.sequences.launching import Prepared, prepare, refuse_if_failed
from kvctl.core.controller.sequences.steps import Steps
from kvctl.core.controller.sequences.stopping import (
    RunInterplay,
    Stop,
    foreign_requests,
    guard_stop,
)
from kvctl.core.controller.servers.desk import ServerDesk
from kvctl.core.controller.servers.records import known_server, port_of, same_url
from kvctl.core.controller.servers.stages import RESUME_STAGES, START_STAGES, STOP_STAGES
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.state import SequenceKind, SequenceRecord
from kvctl.core.domain.errors import CommandRefused, UsageError
from kvctl.core.domain.gpus.membership import LaunchState
from kvctl.core.servers.flags.asking import CatalogueCache
from kvctl.core.servers.ledger import Ledger
from kvctl.core.servers.preflight.types import Replaced
from kvctl.core.servers.processes.ending import launch_group


@dataclass(slots=True, eq=False)
class Sequences:
    """Carries out starts, stops and restarts on the desk's servers."""

    desk: ServerDesk
    gpus: GpuDesk
    run: RunInterplay
    ledger: Ledger
    catalogues: CatalogueCache
    busy: str | None = None
    """What is being carried out, in words."""
    steps: Steps = field(init=False)
    _work: "asyncio.Task[str] | None" = None

    def __post_init__(self) -> None:
        """Build the steps over the same desks."""
        self.steps = Steps(self.desk, self.gpus, self.run, self.ledger)

    async def check(self, command: CheckPreset, id: str) -> Outcome:
        """Run the preflight of a preset and say what a restart would change."""
        replaced = self.desk.watches.get(command.server or self.desk.default_name())
        prepared = await self.prepare(command.preset, replaced)
        situation = self._situation(replaced)
        return await asyncio.to_thread(outcome_of, prepared, situation, self.ledger)

    async def start(self, command: StartServer, id: str) -> Outcome:
        """Launch a preset under a name that serves nothing now."""
        name = command.server or self.desk.default_name()
        old = self.desk.watches.get(name)
        if old is not None:
            old.tick()  # it may have ended this very second
        if old is not None and not old.is_lost:
            raise CommandRefused(
                f"{name} runs already ({old.state.value}, preset {old.record.preset}): "
                f"kvctl server restart {command.preset}"
            )
        if old is not None and not self._is_over(old):  # it failed and something of it still runs
            return await self.restart(RestartServer(command.preset, name, cut_foreign=True), id)
        with self.alone(f"start of {command.preset}"):
            prepared = await self.prepare(command.preset, old)
            refuse_if_failed(prepared)
            return await self._start_over(prepared, old, name, id)

    async def stop(self, command: StopServer, id: str) -> Outcome:
        """Stop a server and prove its GPUs clean."""
        watch = self.desk.by_name(command.server)
        stop = stop_of(watch, command.how, command.cut_foreign)
        with self.alone(f"stop of {watch.record.name}"):
            await watch.refresh()
            guard_stop(self.run, stop)
            record = _record(SequenceKind.STOP, stop, id)
            return await self.carry_out(self.stopping(stop, id), record)

    async def restart(self, command: RestartServer, id: str) -> Outcome:
        """Check the preset, stop, prove clean, start, resume the run."""
        watch = self.desk.by_name(command.server)
        watch.tick()  # it may have ended this very second
        preset = command.preset or watch.record.preset
        if preset is None:
            raise UsageError(f"{watch.record.name} was not started from a preset: name one")
        with self.alone(f"restart with {preset}"):
            prepared = await self.prepare(preset, watch)
            refuse_if_failed(prepared)
            if self._is_over(watch):
                return await self._start_over(prepared, watch, watch.record.name, id)
            self._refuse_to_move(watch, prepared)
            stop = stop_of(watch, command.how, command.cut_foreign)
            await watch.refresh()
            guard_stop(self.run, stop)
            record = _record(SequenceKind.RESTART, stop, id, preset)
            return await self.carry_out(self.restarting(stop, prepared, id), record)

    async def _start_over(
        self, prepared: Prepared, old: ServerWatch | None, name: str, id: str
    ) -> Outcome:
        """Launch in the place of a server that is over, or of none."""
        if old is not None:
            self.steps.put_away(old)
        record = SequenceRecord(
            SequenceKind.START, name, prepared.plan.url, prepared.preset.name, id=id
        )
        return await self.carry_out(self.starting(prepared, name, id), record)

    async def cancel(self, command: CancelStart, id: str) -> Outcome:
        """Stop the start or restart in progress and clean up behind it."""
        if self.busy is None:
            raise CommandRefused("no start or restart is in progress")
        if self._work is None:
            raise CommandRefused(f"{self.busy} is only being checked: nothing is touched yet")
        what, work = self.busy, self._work
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        self.desk.feed.emit("cancelled", what, id)
        return Outcome(0, f"cancelled: {what}")

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Be the one command that changes servers. Raises CommandRefused if one is at work."""
        if self.busy is not None:
            raise CommandRefused(f"{self.busy} is in progress: wait, or cancel it (X)")
        self.busy = what
        try:
            yield
        finally:
            if self._work is None:  # who asked may have gone while the work goes on
                self.busy = None

    async def carry_out(self, work: Coroutine[Any, Any, str], record: SequenceRecord) -> Outcome:
        """Run a sequence so that `cancel` can end it, and turn its end into an outcome.

        What it does and where it is stays on record until it is over.
        """
        record.began_wall = record.began_wall or self.desk.host.clock.wall()
        self.steps.note(record)
        what = self.busy
        task = self._work = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        await asyncio.wait({task})
        if task.cancelled():
            return Outcome(1, f"{what} was cancelled")
        return Outcome(0, task.result())

    def _ended(self, task: "asyncio.Task[str]") -> None:
        self._work = self.busy = None
        if not self.steps.is_leaving:
            self.steps.note(None)

    async def close(self) -> None:
        """Leave a sequence where it is; what it launched goes on."""
        self.steps.is_leaving = True
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def starting(self, prepared: Prepared, name: str, id: str) -> str:
        """Launch and wait for the first token."""
        watch = self.steps.launch(prepared, name)
        self.steps.plan(watch, *START_STAGES)
        return await self.steps.bring_up(watch, id)

    async def stopping(self, stop: Stop, id: str) -> str:
        """Stop and prove clean."""
        name = stop.watch.record.name
        self.steps.plan(stop.watch, *STOP_STAGES)
        await self.steps.end(stop, "stopped")
        proofs = stop.watch.stages.proofs()
        self.desk.feed.emit("stopped", f"{name}: {proofs[-1]}", id)
        return f"{name} is stopped; {proofs[-1]}"

    async def restarting(self, stop: Stop, prepared: Prepared, id: str) -> str:
        """Stop, prove clean, launch, wait for the first token, resume the run."""
        old = stop.watch
        self.steps.plan(old, *STOP_STAGES, *START_STAGES, *RESUME_STAGES)
        await self.steps.end(stop, "restarted")
        watch = self.steps.launch(prepared, old.record.name, old)
        watch.stages.items = list(old.stages.items)
        self.steps.follow(watch)
        return await self.steps.bring_up(watch, id)

    def _refuse_to_move(self, watch: ServerWatch, prepared: Prepared) -> None:
        """Refuse a preset under whose address the open run would not find the server again."""
        now, then = watch.record.url, prepared.plan.url
        if self.run.sends_to(now) and not same_url(now, then):
            raise CommandRefused(
                f"the run sends to {now} and preset {prepared.preset.name} would serve at {then}: "
                "give it that address, or close the run first"
            )

    async def prepare(self, preset: str, replaced: ServerWatch | None) -> Prepared:
        """Read and check a preset against the server it would replace; touches nothing."""
        gone = replaced if replaced is not None and not self._is_over(replaced) else None
        ports = {
            port_of(w.record.url): w.record.name
            for w in self.desk.watches.values()
            if w is not replaced and w.identity is not None and not w.is_lost
        }
        view = await self.gpus.read(fresh=True)
        return await prepare(
            self.desk.host, preset, view, self.catalogues, self._replaced(gone), ports
        )

    def _is_over(self, watch: ServerWatch) -> bool:
        """Return whether a server is lost and no process of its launch lives."""
        known = known_server(watch.record, LaunchState.ENDED)
        if not watch.is_lost or known is None:
            return watch.is_lost
        return not launch_group(self.desk.host.processes, known)

    def _situation(self, watch: ServerWatch | None) -> Situation:
        is_running = watch is not None and not watch.is_lost
        return Situation(
            watch.flags if watch is not None and is_running else (),
            watch.startup.pool_tokens if watch is not None and is_running else None,
            self.run.view(),
            is_running,
            self.desk.host.clock.wall(),
        )

    def _replaced(self, watch: ServerWatch | None) -> Replaced | None:
        if watch is None:
            return None
        record = next((r for r in self.ledger.records() if r.id == watch.record.launch_id), None)
        return Replaced(
            watch.record.name,
            watch.identity,
            watch.record.session,
            record.argv if record else (),
            watch.record.owner,
            foreign_requests(watch),
        )


def stop_of(watch: ServerWatch, how: WaitHow, cut_foreign: bool) -> Stop:
    """Return the stop of a server, as it is now."""
    known = known_server(watch.record, LaunchState.ENDED)
    return Stop(watch, how, cut_foreign, known, is_dying=watch.broken is not None)


def _record(kind: SequenceKind, stop: Stop, id: str, preset: str | None = None) -> SequenceRecord:
    watch = stop.watch
    return SequenceRecord(
        kind, watch.record.name, watch.record.url, preset, stop.how, stop.cut_foreign, id
    )
