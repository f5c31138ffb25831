"""Whom a kill means, and what must never be signalled: the rules before any signal is sent."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kvctl.core.controller.commands import ClearGpus
from kvctl.core.controller.host import Host
from kvctl.core.domain.errors import CommandRefused
from kvctl.core.domain.gpus.devices import GpuView, Holder, ProcessFacts, ProcessIdentity
from kvctl.core.domain.gpus.holding import (
    confirmation_text,
    identity_of,
    is_left_behind,
    shown_holders,
    signal_refusal,
)
from kvctl.core.domain.gpus.launch_groups import group_of
from kvctl.core.domain.gpus.membership import KnownServer
from kvctl.core.servers.processes.ending import living


@dataclass(slots=True)
class KillTargets:
    """Chooses and guards the targets of a kill; remembers who was seen to start them again."""

    host: Host
    known: Callable[[], Sequence[KnownServer]]
    starters: set[ProcessIdentity] = field(default_factory=set)
    """Processes that started again what was ended."""

    def guard(
        self, targets: Collection[ProcessIdentity], holders: Sequence[Holder], *, confirmed: bool
    ) -> None:
        """Refuse what must never be signalled, and what needs a yes that was not given.

        Raises:
            CommandRefused: Nothing was sent to any of them.
        """
        for target in targets:
            if target.pid in (1, self.host.me.pid):
                raise CommandRefused(f"pid {target.pid} is {_sacred(target.pid)}: never signalled")
        ending = {target.pid for target in targets}
        for holder in holders:
            if (why := self._refusal(holder, ending)) is not None:
                raise CommandRefused(f"{holder.pid}: {why}")
        for holder in holders:
            text = confirmation_text(holder)
            if text is not None and not confirmed:
                raise CommandRefused(f"needs an explicit yes: {text}")

    def _refusal(self, holder: Holder, ending: Collection[int]) -> str | None:
        if holder.owner_pid is not None and holder.owner_pid in ending:
            return None  # what would start it again ends with it
        if (why := signal_refusal(holder)) is not None:
            return why
        starter = self.host.processes.facts(holder.owner_pid) if holder.owner_pid else None
        if starter is not None and starter.identity in self.starters:
            pid = starter.identity.pid
            return f"{holder.owner} has started it again before; stop that first: kvctl kill {pid}"
        return None

    def group(self, targets: Iterable[ProcessIdentity]) -> tuple[ProcessFacts, ...]:
        """Return every living process of the launches that the targets belong to."""
        facts = {found.identity.pid: found for found in self.host.processes.all_facts()}
        known, found = self.known(), dict[ProcessIdentity, ProcessFacts]()
        for target in targets:
            process = facts.get(target.pid)
            if process is not None and process.identity == target:
                found.update((p.identity, p) for p in group_of(process, facts, known))
        return living(self.host.processes, found.values())

    def respawned(
        self, killed: Sequence[Holder], before: Collection[ProcessIdentity]
    ) -> tuple[ProcessFacts, ...]:
        """Return what the starters of the killed have started since, and remember those."""
        above = {holder.owner_pid for holder in killed if holder.owner_pid is not None}
        titles = {holder.title for holder in killed}
        new = tuple(
            facts
            for facts in (self.host.processes.all_facts() if above else ())
            if facts.parent_pid in above and facts.identity not in before and facts.title in titles
        )
        for facts in new:
            starter = self.host.processes.facts(facts.parent_pid)
            if starter is not None:
                self.starters.add(starter.identity)
        return new


def chosen(view: GpuView, command: ClearGpus) -> list[Holder]:
    """Return the leftovers of one GPU or of the host, or every holder of one GPU.

    Of one GPU only who holds memory: a monitor with an open device file is nobody's holder.
    """
    gpu, server = command.gpu, command.server
    devices = [device for device in view.devices if gpu is None or device.index == gpu]
    here = [holder for device in devices for holder in shown_holders(view, device)]
    if command.every_holder and gpu is not None:
        return here
    rows = (*here, *(view.strays if gpu is None else ()))
    return [row for row in rows if is_left_behind(row) and server in (None, row.server)]


def named(view: GpuView, targets: Collection[ProcessIdentity]) -> list[Holder]:
    """Return the rows of these processes, one for each GPU they hold."""
    return [holder for holder in view.holders if identity_of(holder) in targets]


def _sacred(pid: int) -> str:
    return "the init of this host" if pid == 1 else "kvctld itself"
