"""A start, stop or restart that an earlier kvctld left in the middle: told, or finished.

Until the old server is asked to stop nothing has been done to it: that is told, and it serves on.
From then on the way is gone to its end, because a run waits for it. A process that was launched
is found again, by what is remembered of it or by its mark, and never launched a second time.
"""

import traceback
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.controller.sequences.launching import StartFailed, begin_ledger, refuse_if_failed
from kvctl.core.controller.sequences.sequences import Sequences, stop_of
from kvctl.core.controller.servers.records import began_in_this_boot
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.state import SequenceKind, SequenceRecord, ServerRecord
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.gpus.devices import ProcessFacts

UNTOUCHED = ("hold run", "harvest")
"""Stages before the old server is asked to stop."""
MOST_TAKEN_UP = 3
"""A kvctld that dies over the same sequence again and again leaves it to the operator."""


@dataclass(slots=True, eq=False)
class BrokenOff:
    """Takes up what `state.json` says was going on."""

    sequences: Sequences

    def expect(self) -> None:
        """Let the run wait, and no other command in, until it is known how to go on."""
        record = self._record
        if record is not None:
            self.sequences.busy = f"{what_of(record)}, taken up"
            self.sequences.run.hold(record.url, f"the {what_of(record)} is taken up")

    async def take_up(self) -> None:
        """Finish it or tell where it broke off."""
        record = self._record
        if record is None:
            return
        self.sequences.busy = None
        record.taken_up += 1
        self._keep_its_place(record)
        why_not = self._why_not(record)
        try:
            if why_not is not None:
                self._leave(record, why_not)
            else:
                await self._finish(record)
        except StartFailed as failed:
            self.sequences.desk.feed.emit("failed", str(failed), record.id)
        except KvctlError as error:
            said = "; ".join(str(error).splitlines())
            self._leave(record, f"it cannot be finished: {said}")
        except Exception as error:  # a command boundary, as the controller's: nobody awaits this
            traceback.print_exc()
            self._leave(record, f"unexpected {type(error).__name__} (traceback in kvctld's log)")

    def _keep_its_place(self, record: SequenceRecord) -> None:
        """Let the run find the server by name and address while no process of it is known."""
        desk = self.sequences.desk
        if record.server not in desk.watches:
            desk.watch(ServerRecord(record.server, record.url, True, preset=record.preset))

    def _known(self, record: SequenceRecord) -> ServerWatch | None:
        """Return the old server, None where only its place is kept."""
        watch = self.sequences.desk.watches.get(record.server)
        return watch if watch is not None and watch.identity is not None else None

    @property
    def _record(self) -> SequenceRecord | None:
        return self.sequences.desk.remembered.sequence

    def _why_not(self, record: SequenceRecord) -> str | None:
        """Return why it is only told, None where it is finished."""
        clock = self.sequences.desk.host.clock
        if not began_in_this_boot(record.began_wall, clock.wall() - clock.monotonic()):
            return "the host has booted since"
        if record.taken_up > MOST_TAKEN_UP:
            return f"{MOST_TAKEN_UP} kvctlds have ended over it"
        if record.launch_id is None and record.doing in (None, *UNTOUCHED):
            return "nothing was stopped or launched"
        return None

    def _leave(self, record: SequenceRecord, why: str) -> None:
        """Tell it, and let the server's own state say what the run may do."""
        steps = self.sequences.steps
        steps.note(None)
        if self._known(record) is None and (kept := steps.desk.watches.get(record.server)):
            steps.desk.drop(kept)
        at = f" at {record.doing}" if record.doing else ""
        said = f"the {what_of(record)} broke off{at} when kvctld ended; {why}"
        steps.desk.feed.emit("broken off", f"{said}: R or S asks for it again", record.id)
        self.sequences.run.release(record.url)

    async def _finish(self, record: SequenceRecord) -> None:
        sequences = self.sequences
        at = record.doing or "the launch"
        said = f"the {what_of(record)} goes on at {at}, where kvctld ended"
        sequences.desk.feed.emit("taken up", said, record.id)
        with sequences.alone(what_of(record)):
            launched = self._launched(record)
            if launched is not None:
                launched.stages.items = list(record.stages) or launched.stages.items
                sequences.steps.follow(launched)
                work = sequences.steps.bring_up(launched, record.id)
                await sequences.carry_out(work, record)
            elif record.kind is SequenceKind.STOP:
                await self._stop(record)
            else:
                await self._start(record)

    async def _stop(self, record: SequenceRecord) -> None:
        watch = self._known(record)
        if watch is None:
            self._leave(record, "the server is gone")
            return
        stop = stop_of(watch, record.how, cut_foreign=True)  # its stop was agreed to
        await self.sequences.carry_out(self.sequences.stopping(stop, record.id), record)

    async def _start(self, record: SequenceRecord) -> None:
        """Launch what was not launched yet, after what is left of the old server is gone."""
        sequences, old = self.sequences, self._known(record)
        assert record.preset is not None  # only a stop has none
        prepared = await sequences.prepare(record.preset, old)
        refuse_if_failed(prepared)
        if old is None:
            work = sequences.starting(prepared, record.server, record.id)
        else:
            stop = stop_of(old, record.how, cut_foreign=True)
            work = sequences.restarting(stop, prepared, record.id)
        await sequences.carry_out(work, record)

    # --- what was launched -----------------------------------------------------------------

    def _launched(self, record: SequenceRecord) -> ServerWatch | None:
        """Return the launch of a sequence, None if its process was not started."""
        if record.launch_id is None:
            return None
        watches = self.sequences.desk.watches.values()
        known = next((w for w in watches if w.record.launch_id == record.launch_id), None)
        return known or self._by_mark(record, record.launch_id)

    def _by_mark(self, record: SequenceRecord, mark: str) -> ServerWatch | None:
        """Watch a process that was started in the moment before it could be remembered."""
        desk = self.sequences.desk
        marked = {
            facts.identity.pid: facts
            for facts in desk.host.processes.all_facts()
            if facts.launch_mark == mark
        }
        head = next((f for f in marked.values() if f.parent_pid not in marked), None)
        if head is None or record.preset is None:
            return None
        if (old := self._known(record)) is not None:
            self.sequences.steps.put_away(old)
        plan = desk.host.presets.launch_plan(desk.host.presets.read(record.preset))
        found = _found(record, mark, head, desk.host.log_folder)
        found.gpu_uuids = self.sequences.steps.uuids_of(plan)
        found.stop_command = list(plan.stop or ())
        found.model_path = plan.model_path
        desk.remember(found)
        self.sequences.steps.write(lambda: begin_ledger(self.sequences.ledger, plan, found))
        return desk.watch(found, plan)


def what_of(record: SequenceRecord) -> str:
    """Return what was being done, in words: "restart with kimi"."""
    if record.kind is SequenceKind.STOP:
        return f"stop of {record.server}"
    with_ = "of" if record.kind is SequenceKind.START else "with"
    return f"{record.kind.value} {with_} {record.preset}"


def _found(record: SequenceRecord, mark: str, head: ProcessFacts, logs: Path) -> ServerRecord:
    return ServerRecord(
        name=record.server,
        url=record.url,
        is_managed=True,
        pid=head.identity.pid,
        start_ticks=head.identity.start_ticks,
        session=head.session,
        preset=record.preset,
        log_path=str(logs / f"{mark}.log"),
        launched_wall=record.began_wall,
        launch_id=mark,
    )
