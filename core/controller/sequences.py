"""The commands that start, stop and replace a server; one at a time, each can be cancelled."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvctl.core.controller.checking import Situation, outcome_of
from kvctl.core.controller.commands import (
    CancelStart,
    CheckPreset,
    Outcome,
    RestartServer,
    StartServer,
    StopServer,
    WaitHow,
)
from kvctl.core.controller.gpu_desk import GpuDesk
from kvctl.core.controller.launching import (
    Prepared,
    StartFailed,
    begin_ledger,
    is_lost,
    prepare,
    refuse_if_failed,
    spawn,
    told_ready,
    until_ready,
)
from kvctl.core.controller.server_desk import ServerDesk
from kvctl.core.controller.server_records import known_server, port_of, same_url
from kvctl.core.controller.server_watch import ServerWatch
from kvctl.core.controller.stages import RESUME_STAGES, START_STAGES, STOP_STAGES
from kvctl.core.controller.stopping import (
    RunInterplay,
    Stop,
    clean_up,
    foreign_requests,
    guard_stop,
    stop_server,
)
from kvctl.core.domain.errors import CommandRefused, UsageError
from kvctl.core.domain.launch_plan import LaunchPlan
from kvctl.core.domain.membership import LaunchState
from kvctl.core.servers.flag_catalogue import CatalogueCache
from kvctl.core.servers.launch import LaunchFailed
from kvctl.core.servers.ledger import Ledger, LedgerUnwritable
from kvctl.core.servers.preflight_types import Replaced


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
    _work: "asyncio.Task[str] | None" = None
    _is_leaving: bool = False

    async def check(self, command: CheckPreset, id: str) -> Outcome:
        """Run the preflight of a preset and say what a restart would change."""
        replaced = self.desk.watches.get(command.server or self.desk.default_name())
        prepared = await self._prepare(command.preset, replaced)
        situation = self._situation(replaced)
        return await asyncio.to_thread(outcome_of, prepared, situation, self.ledger)

    async def start(self, command: StartServer, id: str) -> Outcome:
        """Launch a preset under a name that serves nothing now."""
        name = command.server or self.desk.default_name()
        old = self.desk.watches.get(name)
        if old is not None:
            old.tick()  # it may have ended this very second
        if old is not None and not is_lost(old.state):
            raise CommandRefused(
                f"{name} runs already ({old.state.value}, preset {old.record.preset}): "
                f"kvctl server restart {command.preset}"
            )
        with self._alone(f"start of {command.preset}"):
            prepared = await self._prepare(command.preset, old)
            refuse_if_failed(prepared)
            if old is not None:
                self._put_away(old)
            return await self._carry_out(self._starting(prepared, name, id))

    async def stop(self, command: StopServer, id: str) -> Outcome:
        """Stop a server and prove its GPUs clean."""
        watch = self.desk.by_name(command.server)
        stop = self._stop_of(watch, command.how, command.cut_foreign)
        with self._alone(f"stop of {watch.record.name}"):
            await watch.refresh()
            guard_stop(self.run, stop)
            watch.stages.plan(*STOP_STAGES)
            return await self._carry_out(self._stopping(stop, id))

    async def restart(self, command: RestartServer, id: str) -> Outcome:
        """Check the preset, stop, prove clean, start, resume the run."""
        watch = self.desk.by_name(command.server)
        watch.tick()  # it may have ended this very second
        preset = command.preset or watch.record.preset
        if preset is None:
            raise UsageError(f"{watch.record.name} was not started from a preset: name one")
        with self._alone(f"restart with {preset}"):
            prepared = await self._prepare(preset, watch)
            refuse_if_failed(prepared)
            if is_lost(watch.state):
                self._put_away(watch)
                return await self._carry_out(self._starting(prepared, watch.record.name, id))
            self._refuse_to_move(watch, prepared)
            stop = self._stop_of(watch, command.how, command.cut_foreign)
            await watch.refresh()
            guard_stop(self.run, stop)
            return await self._carry_out(self._restarting(stop, prepared, id))

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
    def _alone(self, what: str) -> Iterator[None]:
        """Be the one command that changes servers. Raises CommandRefused if one is at work."""
        if self.busy is not None:
            raise CommandRefused(f"{self.busy} is in progress: wait, or cancel it (X)")
        self.busy = what
        try:
            yield
        finally:
            self.busy = None

    async def _carry_out(self, work: Coroutine[Any, Any, str]) -> Outcome:
        """Run a sequence so that `cancel` can end it, and turn its end into an outcome."""
        task = self._work = asyncio.create_task(work)
        try:
            await asyncio.wait({task})
        finally:
            self._work = None
        if task.cancelled():
            return Outcome(1, f"{self.busy} was cancelled")
        return Outcome(0, task.result())

    async def close(self) -> None:
        """Leave a sequence where it is; what it launched goes on."""
        if self._work is not None:
            self._is_leaving = True
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _starting(self, prepared: Prepared, name: str, id: str) -> str:
        watch = self._launch(prepared, name)
        watch.stages.plan(*START_STAGES)
        return await self._bring_up(watch, id)

    async def _stopping(self, stop: Stop, id: str) -> str:
        name = stop.watch.record.name
        await self._end(stop, "stopped")
        proofs = stop.watch.stages.proofs()
        self.desk.feed.emit("stopped", f"{name}: {proofs[-1]}", id)
        return f"{name} is stopped; {proofs[-1]}"

    async def _restarting(self, stop: Stop, prepared: Prepared, id: str) -> str:
        old = stop.watch
        old.stages.plan(*STOP_STAGES, *START_STAGES, *RESUME_STAGES)
        await self._end(stop, "restarted")
        watch = self._launch(prepared, old.record.name, old)
        watch.stages.items = list(old.stages.items)
        return await self._bring_up(watch, id)

    async def _end(self, stop: Stop, cause: str) -> None:
        """Stop a server; where that breaks off, say truly what is left of it."""
        watch = stop.watch
        try:
            await stop_server(self.desk.host, self.gpus, self.run, stop)
        except BaseException as broken:
            if watch.is_alive() is False:
                self._close_record(watch, f"{cause}, then: {str(broken) or 'cancelled'}")
            elif not isinstance(broken, asyncio.CancelledError):
                watch.is_stop_asked = False
            self._judge(watch)
            raise
        self._close_record(watch, cause)
        self._judge(watch)

    def _judge(self, watch: ServerWatch) -> None:
        """Let the server's own state say from now on whether the run may send to it."""
        watch.tick()
        self.run.release(watch.record.url)

    def _refuse_to_move(self, watch: ServerWatch, prepared: Prepared) -> None:
        """Refuse a preset under whose address the open run would not find the server again."""
        now, then = watch.record.url, prepared.plan.url
        if self.run.sends_to(now) and not same_url(now, then):
            raise CommandRefused(
                f"the run sends to {now} and preset {prepared.preset.name} would serve at {then}: "
                "give it that address, or close the run first"
            )

    def _put_away(self, watch: ServerWatch) -> None:
        """Take a server that is over off the list; how it ended stays in the ledger."""
        self._close_record(watch, watch.state_reason)
        self.desk.drop(watch)

    def _launch(self, prepared: Prepared, name: str, old: ServerWatch | None = None) -> ServerWatch:
        try:
            record = spawn(self.desk.host, prepared, name, self._uuids(prepared.plan))
        except LaunchFailed as failed:
            if old is not None:
                old.stages.fail("process", str(failed))
            raise
        if old is not None:
            self.desk.drop(old)
        self._ledger(lambda: begin_ledger(self.ledger, prepared.plan, record))
        watch = self.desk.watch(record, prepared.plan)
        self.desk.remember(record)
        return watch

    async def _bring_up(self, watch: ServerWatch, id: str) -> str:
        """Wait for the first token; a failure leaves a card, no process and clean GPUs."""
        name = watch.record.name
        self.run.hold(watch.record.url, f"server {name} starts")
        try:
            await until_ready(self.desk.host, watch)
        except StartFailed as failed:
            watch.failure = watch.failure or failed.failure
            await self._give_up(watch, failed.failure.headline, id)
            raise
        except asyncio.CancelledError:
            if self._is_leaving:
                raise  # kvctld leaves: the start goes on and the next kvctld takes it up
            watch.is_stop_asked = True
            await asyncio.shield(self._give_up(watch, "cancelled by the operator", id))
            raise
        if watch.info is None:
            await watch.learn()
        self._serves(watch, id)
        return told_ready(watch, self.desk.host.clock.wall())

    async def _give_up(self, watch: ServerWatch, cause: str, id: str) -> None:
        if watch.stages.doing is not None:
            watch.stages.fail(watch.stages.doing, cause)
        known = known_server(watch.record, LaunchState.ENDED)
        if known is not None:
            is_clean, seen = await clean_up(self.desk.host, self.gpus, watch, known)
            self.desk.feed.emit("cleaned" if is_clean else "not clean", seen, id)
        self._close_record(watch, cause)
        self._judge(watch)

    def _serves(self, watch: ServerWatch, id: str) -> None:
        watch.tick()
        watch.record.ready_seen = True
        self.desk.remember_tree(watch)
        self.desk.remembered.last_good_preset = watch.record.preset
        self.desk.save()
        pool = watch.startup.pool_tokens
        ready_after = self.desk.host.clock.wall() - (watch.record.launched_wall or 0.0)
        self._ledger(
            lambda: self.ledger.ready(
                watch.record.launch_id or "",
                ready_after,
                pool,
                watch.startup.available_gpu_memory_gb,
                watch.info.version if watch.info else None,
            )
        )
        self.desk.feed.emit("ready", told_ready(watch, self.desk.host.clock.wall()), id)
        self.run.release(watch.record.url)
        if any(stage.name == "resume run" for stage in watch.stages.items):
            with watch.stages.step("resume run") as proof:
                proof.append("the run sends again, unless it is paused")

    async def _prepare(self, preset: str, replaced: ServerWatch | None) -> Prepared:
        gone = replaced if replaced is not None and not is_lost(replaced.state) else None
        ports = {
            port_of(w.record.url): w.record.name
            for w in self.desk.watches.values()
            if w is not replaced and w.identity is not None and not is_lost(w.state)
        }
        view = await self.gpus.read(fresh=True)
        return await prepare(
            self.desk.host, preset, view, self.catalogues, self._replaced(gone), ports
        )

    def _situation(self, watch: ServerWatch | None) -> Situation:
        is_running = watch is not None and not is_lost(watch.state)
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
        own = self.run.in_flight_at(watch.record.url)
        record = next((r for r in self.ledger.records() if r.id == watch.record.launch_id), None)
        return Replaced(
            watch.record.name,
            watch.identity,
            watch.record.session,
            record.argv if record else (),
            watch.record.owner,
            foreign_requests(watch, own),
        )

    def _close_record(self, watch: ServerWatch, cause: str) -> None:
        """Write the end of a launch, once, into what is remembered and into the ledger."""
        if watch.record.is_ended:
            return
        self.desk.end_record(watch)
        identity, launch_id = watch.identity, watch.record.launch_id
        code = self.desk.host.launcher.exit_of(identity) if identity is not None else None
        if launch_id:
            wall = self.desk.host.clock.wall()
            self._ledger(lambda: self.ledger.ended(launch_id, wall, code, cause))

    def _stop_of(self, watch: ServerWatch, how: WaitHow, cut_foreign: bool) -> Stop:
        return Stop(watch, how, cut_foreign, known_server(watch.record, LaunchState.ENDED))

    def _uuids(self, plan: LaunchPlan) -> tuple[str, ...]:
        devices = self.gpus.view.devices
        return tuple(d.uuid for d in devices if str(d.index) in plan.gpus or d.uuid in plan.gpus)

    def _ledger(self, write: Callable[[], None]) -> None:
        try:
            write()
        except LedgerUnwritable as problem:
            self.desk.feed.emit("ledger", str(problem))
