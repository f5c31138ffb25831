"""Servers: which are watched and what is remembered of them. `Sequences` starts and stops them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kvctl.core.controller.commands import AdoptServer, ForgetServer, Outcome
from kvctl.core.controller.host import Host
from kvctl.core.controller.servers.records import (
    found_record,
    is_of_this_boot,
    known_server,
    launch_state,
    port_of,
    same_url,
)
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.state import Remembered, ServerRecord
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.domain.gpus.kinship import is_vital
from kvctl.core.domain.gpus.membership import KnownServer, LaunchState
from kvctl.core.domain.gpus.supervisors import container_of
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.domain.servers.server import LaunchFlag, Server, ServerState
from kvctl.core.domain.units import clock_time
from kvctl.core.servers.processes.discover import FoundServer, discover
from kvctl.core.servers.processes.ending import launch_group

DEFAULT_NAME = "main"
ENDED_KEPT = 20
_AWAY = "while kvctld was away"


@dataclass(slots=True, eq=False)
class ServerDesk:
    """Owns the watches and the records behind them."""

    host: Host
    feed: EventFeed
    remembered: Remembered
    save: Callable[[], None]
    """Writes `remembered` to disk."""
    on_sample: Callable[[ServerWatch], None]
    watches: dict[str, ServerWatch] = field(default_factory=dict)
    _closing: "set[asyncio.Task[None]]" = field(default_factory=set)

    def known(self) -> tuple[KnownServer, ...]:
        """Return every launch on record, ended ones first."""
        booted = self.host.clock.wall() - self.host.clock.monotonic()
        records = [r for r in self.remembered.ended if is_of_this_boot(r, booted)]
        ended = [known_server(r, LaunchState.ENDED) for r in records]
        now = [known_server(w.record, launch_state(w)) for w in self.watches.values()]
        return tuple(k for k in (*ended, *now) if k is not None)

    def views(self) -> tuple[Server, ...]:
        """Return every watched server, managed ones first."""
        watches = sorted(self.watches.values(), key=lambda w: not w.record.is_managed)
        return tuple(watch.view() for watch in watches)

    def by_name(self, name: str | None) -> ServerWatch:
        """Return the server that is meant. Raises UsageError if that is not clear."""
        if name is not None:
            if name in self.watches:
                return self.watches[name]
            raise UsageError(f"there is no server {name}; there are: {self._names()}")
        managed = [w for w in self.watches.values() if w.record.is_managed]
        chosen = managed or list(self.watches.values())
        if len(chosen) == 1:
            return chosen[0]
        if not chosen:
            raise UsageError("no server is known here: `kvctl server start PRESET` starts one")
        raise UsageError(f"several servers: choose with --server: {self._names()}")

    def at_url(self, url: str) -> ServerWatch | None:
        """Return the watch of a URL; of several the one that is not over."""
        there = [w for w in self.watches.values() if same_url(w.record.url, url)]
        return next((w for w in there if not _is_over(w)), there[0] if there else None)

    def default_name(self) -> str:
        """Return the name a start takes when none is given: the one managed server's."""
        managed = [n for n, w in self.watches.items() if w.record.is_managed]
        return managed[0] if len(managed) == 1 else DEFAULT_NAME

    def readopt(self) -> None:
        """Watch the servers that an earlier kvctld remembered."""
        for record in list(self.remembered.servers):
            watch = self.watch(record)
            if watch.is_alive() is False:
                at = f"at {clock_time(record.ended_wall)}" if record.ended_wall else _AWAY
                said = f"{record.name} (pid {record.pid}) ended {at}"
                self.feed.emit("gone", said)
            else:
                said = f"{record.name}: pid {record.pid} at {record.url} goes on"
                self.feed.emit("adopted", said)

    def find(self) -> None:
        """Watch what runs here unnamed; stop watching found servers that ended."""
        for watch in list(self.watches.values()):
            if not watch.record.is_managed and watch.is_alive() is False:
                self.feed.emit("gone", f"{watch.record.name} at {watch.record.url} ended")
                self.drop(watch)
        if not self.host.finds_servers:
            return
        mine = {known.identity for known in self.known()}
        for found in discover(self.host.processes):
            there = self.at_url(found.url)
            self._note_container(there, found)
            is_free = there is None or _is_over(there) or _is_an_address_alone(there)
            if found.identity not in mine and is_free:
                self.watch(found_record(found, self._free_name(found.url), self._container()))
                who = f"pid {found.identity.pid} ({found.user})"
                self.feed.emit("found", f"SGLang at {found.url}, {who}: watched, not touched")

    def tick(self) -> None:
        """Judge every server's state; remember who served."""
        self.host.launcher.reap()
        for watch in self.watches.values():
            watch.tick()
            self._note_end(watch)
            if watch.state.is_ready and not watch.record.ready_seen:
                watch.record.ready_seen = True
                self.remember_tree(watch)

    def _note_end(self, watch: ServerWatch) -> None:
        """Remember when the process of a server was first seen to be gone."""
        record, alive = watch.record, watch.is_alive()
        if record.ended_wall is None and watch.is_lost and alive is False:
            record.ended_wall = self.host.clock.wall()
            self.save()
        elif record.ended_wall is not None and alive:
            record.ended_wall = None  # another process stands for it now
            self.save()

    async def adopt(self, command: AdoptServer, id: str) -> Outcome:
        """Watch a server by URL or pid."""
        record = self._adopted(command)
        if (there := self.at_url(record.url)) is not None:
            raise CommandRefused(f"{record.url} is watched already as {there.record.name}")
        if record.name in self.watches:
            raise CommandRefused(f"there is a server {record.name} already: choose another name")
        watch = self.watch(record)
        await watch.refresh()
        if watch.last_answer_at is None and watch.identity is None:
            self.drop(watch)
            raise KvctlError(
                f"{record.url} does not answer as SGLang ({watch.probe_cause}): "
                "check host and port, or name a pid"
            )
        self.remember(record)
        self.feed.emit("adopted", f"{record.name}: {record.url}", id)
        return Outcome(0, f"watching {record.url} as {record.name}; nothing was touched")

    async def forget(self, command: ForgetServer, id: str) -> Outcome:
        """Stop watching a server; nothing is done to it."""
        watch = self.by_name(command.server)
        if watch.stages.doing is not None:
            raise CommandRefused(
                f"{watch.record.name} is in the middle of a start or stop: wait, or cancel it (X)"
            )
        if watch.record.cap_before is not None:
            raise CommandRefused(
                f"{watch.record.name} has a cap of kvctl's: `kvctl server cap off` first"
            )
        self.drop(watch)
        self.save()
        return Outcome(0, f"{watch.record.name} is not watched any more; it goes on")

    def watch(self, record: ServerRecord, plan: LaunchPlan | None = None) -> ServerWatch:
        """Begin to read a server; what was known of its URL alone makes room for it."""
        there = self.at_url(record.url)
        if there is not None and there.identity is None:
            self.drop(there)
        watch = ServerWatch(self.host, record, feed=self.feed, on_sample=self.on_sample)
        watch.flags = plan.flags if plan is not None else self._flags_of(record)
        self.watches[record.name] = watch
        watch.start()
        return watch

    def watch_url(self, url: str) -> ServerWatch | None:
        """Watch what a run sends to, answering or not; None where it was watched already."""
        if self.at_url(url) is not None:
            return None
        watch = self.watch(self._adopted(AdoptServer(url)))
        self.remember(watch.record)
        return watch

    def drop(self, watch: ServerWatch) -> None:
        """Stop reading a server and take it off the list."""
        self.watches.pop(watch.record.name, None)
        self.remembered.servers = [r for r in self.remembered.servers if r is not watch.record]
        closing = asyncio.get_running_loop().create_task(watch.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Stop watching everything; servers go on."""
        await asyncio.gather(*(watch.close() for watch in self.watches.values()), *self._closing)
        self.host.launcher.close()

    def remember(self, record: ServerRecord) -> None:
        """Keep a server over kvctld's own death."""
        others = [r for r in self.remembered.servers if r.name != record.name]
        self.remembered.servers = [*others, record]
        self.save()

    def remember_tree(self, watch: ServerWatch) -> None:
        """Keep who belongs to a launch, so that its leftovers are known as ours."""
        known = known_server(watch.record, LaunchState.RUNNING)
        if known is None:
            return
        group = launch_group(self.host.processes, known)
        watch.record.tree = [(p.identity.pid, p.identity.start_ticks) for p in group]
        vital = [p.identity for p in group if is_vital(p.title)]
        watch.record.ranks = [(i.pid, i.start_ticks) for i in vital if i != watch.identity]
        self.save()

    def end_record(self, watch: ServerWatch) -> None:
        """Move a launch to those that ended."""
        record = watch.record
        record.is_ended = True
        self.remembered.servers = [r for r in self.remembered.servers if r is not record]
        self.remembered.ended = [*self.remembered.ended, record][-ENDED_KEPT:]
        self.save()

    def _note_container(self, there: ServerWatch | None, found: FoundServer) -> None:
        """Remember the container of a server that a launch of ours started through docker."""
        if there is None or found.container is None or found.container == self._container():
            return
        if there.record.is_managed and found.identity != there.identity:
            there.record.container = found.container

    def _container(self) -> str | None:
        """Return the container that kvctld itself sits in."""
        own = self.host.processes.facts(self.host.me.pid)
        return container_of(own.cgroup) if own is not None else None

    def _names(self) -> str:
        return ", ".join(sorted(self.watches)) or "none"

    def _flags_of(self, record: ServerRecord) -> tuple[LaunchFlag, ...]:
        """Return the flags of a preset launch that an earlier kvctld made."""
        if record.preset is None:
            return ()
        try:
            return self.host.presets.shown_plan(self.host.presets.read(record.preset)).flags
        except KvctlError:
            return ()  # the preset is gone; the server's own answer tells its flags

    def _free_name(self, url: str) -> str:
        base = name = f"port-{port_of(url)}"
        number = 2
        while name in self.watches:
            name, number = f"{base}-{number}", number + 1
        return name

    def _adopted(self, command: AdoptServer) -> ServerRecord:
        found = discover(self.host.processes)
        if command.target.isdigit():
            pid = int(command.target)
            match = next((f for f in found if f.identity.pid == pid), None)
            if match is None:
                raise UsageError(f"pid {pid} is no SGLang server that is visible here")
            name = command.server or self._free_name(match.url)
            return found_record(match, name, self._container())
        url = command.target if "://" in command.target else f"http://{command.target}"
        match = next((f for f in found if same_url(f.url, url)), None)
        if match is not None:
            name = command.server or self._free_name(match.url)
            return found_record(match, name, self._container())
        return ServerRecord(command.server or self._free_name(url), url.rstrip("/"), False)


def _is_over(watch: ServerWatch) -> bool:
    return watch.state in (ServerState.FAILED, ServerState.STOPPED)


def _is_an_address_alone(watch: ServerWatch) -> bool:
    """Return whether nobody is known behind a URL; a launch waits for its own process."""
    return watch.identity is None and not watch.record.is_managed
