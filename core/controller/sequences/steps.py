"""The steps that starts, stops and restarts are made of; each noted, so that another can go on.

Before each stage the place is saved: a kvctld that dies leaves behind where it was (`broken_off`
takes it up). Which steps in which order is `Sequences`'.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.controller.gpus.desk import GpuDesk
from kvctl.core.controller.sequences.launching import (
    Prepared,
    StartFailed,
    begin_ledger,
    spawn,
    told_ready,
    took_s,
    until_ready,
)
from kvctl.core.controller.sequences.stopping import RunInterplay, Stop, clean_up, stop_server
from kvctl.core.controller.servers.desk import ServerDesk
from kvctl.core.controller.servers.records import known_server
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.state import SequenceRecord, ServerRecord
from kvctl.core.domain.gpus.membership import LaunchState
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.domain.servers.startup import launched as begin_startup
from kvctl.core.servers.ledger import Ledger, LedgerUnwritable
from kvctl.core.servers.processes.launch import LaunchFailed, new_log_path


@dataclass(slots=True, eq=False)
class Steps:
    """Carries out single steps on the desk's servers."""

    desk: ServerDesk
    gpus: GpuDesk
    run: RunInterplay
    ledger: Ledger
    is_leaving: bool = False
    """kvctld leaves: what goes on is the next one's, nothing is cleaned up."""

    # --- where a sequence is ---------------------------------------------------------------

    def note(self, record: SequenceRecord | None) -> None:
        """Remember the sequence that is carried out, or that none is any more."""
        self.desk.remembered.sequence = record
        self.desk.save()

    def plan(self, watch: ServerWatch, *names: str) -> None:
        """Lay out the stages of a sequence on a server and note each as it begins."""
        watch.stages.plan(*names)
        self.follow(watch)

    def follow(self, watch: ServerWatch) -> None:
        """Note each stage of this server as it begins."""

        def begun() -> None:
            record = self.desk.remembered.sequence
            if record is not None:
                record.stages = list(watch.stages.items)
                self.desk.save()

        watch.stages.on_begin = begun
        begun()

    # --- the steps -------------------------------------------------------------------------

    async def end(self, stop: Stop, cause: str) -> None:
        """Stop a server; where that breaks off, say truly what is left of it."""
        watch = stop.watch
        try:
            await stop_server(self.desk.host, self.gpus, self.run, stop)
        except BaseException as broken:
            if self.is_leaving:
                raise  # the next kvctld finishes it
            if watch.is_alive() is False:
                self.close_record(watch, f"{cause}, then: {str(broken) or 'cancelled'}")
            elif not isinstance(broken, asyncio.CancelledError):
                watch.is_stop_asked = False
            self._judge(watch)
            raise
        self.close_record(watch, cause)
        self._judge(watch)

    def put_away(self, watch: ServerWatch) -> None:
        """Take a server that is over off the list; how it ended stays in the ledger."""
        self.close_record(watch, watch.state_reason)
        self.desk.drop(watch)

    def launch(self, prepared: Prepared, name: str, old: ServerWatch | None = None) -> ServerWatch:
        """Start the process of a checked preset and watch it. Raises LaunchFailed."""
        host = self.desk.host
        log_path = new_log_path(host.log_folder, host.clock.wall())
        if (sequence := self.desk.remembered.sequence) is not None:
            sequence.launch_id = log_path.stem  # by its mark the process is found again
            self.desk.save()
        try:
            record = spawn(host, prepared, name, self.uuids_of(prepared.plan), log_path)
        except LaunchFailed as failed:
            if old is not None:
                old.stages.fail("process", str(failed))
            raise
        self._follow_log(prepared.plan, record)
        if old is not None:
            self.desk.drop(old)
        self.desk.remember(record)
        self.write(lambda: begin_ledger(self.ledger, prepared.plan, record))
        watch = self.desk.watch(record, prepared.plan)
        if prepared.plan.log is not None and watch.tail is not None:
            watch.tail.read_new()  # what earlier servers wrote into it is not about this one
        watch.startup = begin_startup(host.clock.monotonic())
        return watch

    def _follow_log(self, plan: LaunchPlan, record: ServerRecord) -> None:
        """Start what prints the log, as one of the launch's processes; it can go without."""
        if plan.log_command is None or record.log_path is None:
            return
        try:
            follower = self.desk.host.launcher.follow(plan, Path(record.log_path))
        except LaunchFailed as failed:
            self.desk.feed.emit("log", f"{record.name}: no log is followed: {failed}")
            return
        record.tree.append((follower.pid, follower.start_ticks))

    async def bring_up(self, watch: ServerWatch, id: str) -> str:
        """Wait for the first token; a failure leaves a card, no process and clean GPUs."""
        name = watch.record.name
        self.run.hold(watch.record.url, f"server {name} starts")
        try:
            await until_ready(self.desk.host, self.desk.feed, watch)
        except StartFailed as failed:
            watch.failure = watch.failure or failed.failure
            await self._give_up(watch, failed.failure.headline, id)
            raise
        except asyncio.CancelledError:
            if self.is_leaving:
                raise  # the start goes on and the next kvctld takes it up
            watch.is_stop_asked = True
            await asyncio.shield(self._give_up(watch, "cancelled by the operator", id))
            raise
        if watch.info is None:
            # The run asks what serves before it sends, and waits a while if told nothing.
            await watch.learn()
        self._release(watch)
        self._serves(watch, id)
        return told_ready(watch, self.desk.host.clock.wall())

    async def _give_up(self, watch: ServerWatch, cause: str, id: str) -> None:
        if watch.stages.doing is not None:
            watch.stages.fail(watch.stages.doing, cause)
        known = known_server(watch.record, LaunchState.ENDED)
        if known is not None or watch.record.stop_command:
            is_clean, seen = await clean_up(self.desk.host, self.gpus, watch, known)
            self.desk.feed.emit("cleaned" if is_clean else "not clean", seen, id)
        self.close_record(watch, cause)
        self._judge(watch)

    def _release(self, watch: ServerWatch) -> None:
        """Let the run send again."""
        watch.tick()
        watch.record.ready_seen = True
        self.run.release(watch.record.url)
        if any(stage.name == "resume run" for stage in watch.stages.items):
            with watch.stages.step("resume run") as proof:
                proof.append("the run sends again, unless it is paused")

    def _serves(self, watch: ServerWatch, id: str) -> None:
        """Keep what this launch has come to."""
        self.desk.remembered.last_good_preset = watch.record.preset
        self.desk.remember_tree(watch)
        wall = self.desk.host.clock.wall()
        self.write(
            lambda: self.ledger.ready(
                watch.record.launch_id or "",
                took_s(watch, wall),
                watch.startup.pool_tokens,
                watch.startup.available_gpu_memory_gb,
                watch.info.version if watch.info else None,
            )
        )
        self.desk.feed.emit("ready", told_ready(watch, wall), id)

    def _judge(self, watch: ServerWatch) -> None:
        """Let the server's own state say from now on whether the run may send to it."""
        watch.tick()
        self.run.release(watch.record.url)

    def close_record(self, watch: ServerWatch, cause: str) -> None:
        """Write the end of a launch, once, into what is remembered and into the ledger."""
        if watch.record.is_ended:
            return
        self.desk.end_record(watch)
        launch_id, code = watch.record.launch_id, watch.exit_code()
        if launch_id:
            wall = watch.record.ended_wall or self.desk.host.clock.wall()
            self.write(lambda: self.ledger.ended(launch_id, wall, code, cause))

    def write(self, write: Callable[[], None]) -> None:
        """Write to the ledger; that it cannot be written is told and ends nothing."""
        try:
            write()
        except LedgerUnwritable as problem:
            self.desk.feed.emit("ledger", str(problem))

    def uuids_of(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the GPUs that a plan names; empty where it names none."""
        devices = self.gpus.view.devices
        return tuple(d.uuid for d in devices if str(d.index) in plan.gpus or d.uuid in plan.gpus)
