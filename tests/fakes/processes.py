"""A process table that a test writes: who lives, who dies of which signal, and when."""

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvctl.core.clock import Clock
from kvctl.core.domain.gpus.devices import ProcessFacts, ProcessIdentity

FIRST_PID = 5_000_001
"""Above the kernel's highest: the real /proc never has it."""
ME = 7_000_000
UID, USER = 1000, "ann"


@dataclass
class FakeProcess:
    """One process and how it takes a signal."""

    facts: ProcessFacts
    term_s: float | None = 0.3
    """Seconds from TERM, INT or QUIT to its end; None: ignored."""
    kill_s: float | None = 0.0
    """Seconds from KILL to its end; None: stuck in the kernel."""
    minors: tuple[int, ...] = ()
    """/dev/nvidiaN it has open."""
    exit_status: int | None = None
    """None while it lives."""
    at_end: list[Callable[[], None]] = field(default_factory=list)
    refuses: bool = False
    """The kernel does not permit a signal."""

    @property
    def lives(self) -> bool:
        return self.exit_status is None


@dataclass
class FakeProcesses:
    """Implements `kvctl.core.ports.Processes`."""

    clock: Clock
    table: dict[int, FakeProcess] = field(default_factory=dict)
    """By pid; who has ended is not in it."""
    sent: list[tuple[int, str]] = field(default_factory=list)
    """Every signal that reached a process: pid and name."""
    ended: dict[ProcessIdentity, int] = field(default_factory=dict)
    _pids: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_PID))
    _dying: "set[asyncio.Task[None]]" = field(default_factory=set)

    def __post_init__(self) -> None:
        self._put(1, ProcessIdentity(1, 1), "/sbin/init", parent=0, uid=0, user="root")
        self._put(ME, ProcessIdentity(ME, 50), "kvctl daemon run", parent=1)

    # -- the port -----------------------------------------------------------------------------

    def facts(self, pid: int) -> ProcessFacts | None:
        found = self.table.get(pid)
        if found is None:
            return None
        is_orphan = found.facts.parent_pid not in self.table and pid != 1
        return replace(found.facts, parent_pid=1) if is_orphan else found.facts

    def environment(self, identity: ProcessIdentity, name: str) -> str | None:
        found = self.facts(identity.pid)
        return found.launch_mark if found and found.identity == identity else None

    def all_facts(self) -> Sequence[ProcessFacts]:
        return [facts for pid in list(self.table) if (facts := self.facts(pid)) is not None]

    def device_file_holders(self) -> Mapping[int, tuple[int, ...]]:
        return {pid: p.minors for pid, p in list(self.table.items()) if p.minors}

    def is_alive(self, identity: ProcessIdentity) -> bool:
        found = self.table.get(identity.pid)
        return found is not None and found.facts.identity == identity and found.facts.state != "Z"

    def send(self, identity: ProcessIdentity, number: signal.Signals) -> None:
        if not self.is_alive(identity):
            raise ProcessLookupError(identity.pid)
        process = self.table[identity.pid]
        if process.refuses:
            raise PermissionError(1, "Operation not permitted")
        self.sent.append((identity.pid, number.name.removeprefix("SIG")))
        delay = process.kill_s if number is signal.SIGKILL else process.term_s
        if delay is not None:
            self.end(identity, after_s=delay, status=-int(number))

    # -- the test's side ----------------------------------------------------------------------

    def begin(
        self,
        title: str,
        *,
        parent: int = 1,
        session: int | None = None,
        mark: str | None = None,
        cgroup: str = "",
        uid: int = UID,
        user: str = USER,
    ) -> FakeProcess:
        """Start a process; its own session unless one is named."""
        pid = next(self._pids)
        identity = ProcessIdentity(pid, 1000 + int(self.clock.monotonic() * 100))
        made = self._put(pid, identity, title, parent=parent, uid=uid, user=user)
        made.facts = replace(
            made.facts, session=pid if session is None else session, launch_mark=mark, cgroup=cgroup
        )
        return made

    def end(self, identity: ProcessIdentity, *, after_s: float = 0.0, status: int = 0) -> None:
        """Let a process end, now or after some time."""
        if after_s <= 0:
            self._end_now(identity, status)
            return
        task = asyncio.get_running_loop().create_task(self._end_later(identity, after_s, status))
        self._dying.add(task)
        task.add_done_callback(self._dying.discard)

    def reuse(self, identity: ProcessIdentity, title: str) -> FakeProcess:
        """The process ends and another one gets its pid."""
        self._end_now(identity, 0)
        again = ProcessIdentity(identity.pid, identity.start_ticks + 777)
        return self._put(identity.pid, again, title, parent=1)

    def signals_to(self, identity: ProcessIdentity) -> list[str]:
        return [name for pid, name in self.sent if pid == identity.pid]

    async def close(self) -> None:
        for task in list(self._dying):
            task.cancel()
        await asyncio.gather(*self._dying, return_exceptions=True)

    def _put(
        self,
        pid: int,
        identity: ProcessIdentity,
        title: str,
        *,
        parent: int,
        uid: int = UID,
        user: str = USER,
    ) -> FakeProcess:
        facts = ProcessFacts(identity, parent, pid, pid, "S", user, uid, title, "")
        made = self.table[pid] = FakeProcess(facts)
        return made

    async def _end_later(self, identity: ProcessIdentity, after_s: float, status: int) -> None:
        await self.clock.sleep(after_s)
        self._end_now(identity, status)

    def _end_now(self, identity: ProcessIdentity, status: int) -> None:
        process = self.table.get(identity.pid)
        if process is None or process.facts.identity != identity:
            return
        process.exit_status = status
        self.ended[identity] = status
        del self.table[identity.pid]
        for told in process.at_end:
            told()
