"""The GPU view of a host: the driver's list joined with what /proc says, read in one go.

Blocking: `read_within` runs it in a thread that may be left behind when a driver call never
returns. The scan of everybody's open files is the dear part and has its own, longer period.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from kvctl.core.clock import Clock, within
from kvctl.core.domain.gpus.devices import (
    GpuReading,
    GpuView,
    Holder,
    ProcessFacts,
    ProcessIdentity,
)
from kvctl.core.domain.gpus.holders import HostFacts, classify, off_gpu, stray_pids
from kvctl.core.domain.gpus.membership import KnownServer, LaunchState, Me
from kvctl.core.domain.gpus.supervisors import Owner, find_owner
from kvctl.core.ports import GpuSource, Processes

T = TypeVar("T")
FILES_EVERY_S = 5.0
"""How long a scan for open device files is used."""
STRAYS_EVERY_S = 10.0
"""How long a look at all processes for leftovers is used, unless a launch begins or ends."""
Launches = tuple[tuple[ProcessIdentity, LaunchState], ...]


@runtime_checkable
class _KnowsLimits(Protocol):
    """What a process source can say about what it may not see."""

    @property
    def scan_limits(self) -> tuple[str, ...]: ...

    def is_hidden(self, pid: int) -> bool: ...


class GpuViewProbe:
    """Reads devices and holders together."""

    def __init__(
        self,
        source: GpuSource,
        processes: Processes,
        me: Me,
        files_every_s: float = FILES_EVERY_S,
    ) -> None:
        """Join `source` and `processes` as seen by `me`."""
        self._source = source
        self._processes = processes
        self._me = me
        self._files_every_s = files_every_s
        self._files: Mapping[int, tuple[int, ...]] = {}
        self._files_at: float | None = None
        self._strays: tuple[int, ...] = ()
        self._strays_at: float | None = None
        self._strays_of: Launches = ()

    def read(self, at: float, known: Sequence[KnownServer], *, fresh: bool = False) -> GpuView:
        """Return the view at `at`; `fresh` scans all processes anew. Blocking, never raises."""
        reading = self._source.read(at)
        files = self._device_files(reading, fresh)
        strays = self._stray_pids(at, known, fresh)
        pids = {row.pid for device in reading.devices for row in device.processes} | files.keys()
        host = self._host(pids | set(strays), files, known)
        return classify(reading, host, known, self._me, strays)

    def look_up(self, pids: Iterable[int], known: Sequence[KnownServer]) -> tuple[Holder, ...]:
        """Return what processes are that hold no GPU; those not visible here are left out."""
        wanted = set(pids)
        host = self._host(wanted, {}, known)
        found = (off_gpu(pid, host, known, self._me) for pid in sorted(wanted))
        return tuple(holder for holder in found if holder is not None)

    def _stray_pids(self, at: float, known: Sequence[KnownServer], fresh: bool) -> tuple[int, ...]:
        age = None if self._strays_at is None else at - self._strays_at
        launches = tuple((server.identity, server.state) for server in known)
        is_old = age is None or not 0 <= age < STRAYS_EVERY_S
        if fresh or is_old or launches != self._strays_of:
            self._strays_of = launches
            facts = {found.identity.pid: found for found in self._processes.all_facts()}
            self._strays, self._strays_at = stray_pids(facts, known, self._me), at
        return self._strays

    def _device_files(self, reading: GpuReading, fresh: bool) -> Mapping[int, tuple[int, ...]]:
        if not reading.devices:
            return {}
        age = None if self._files_at is None else reading.at - self._files_at
        if fresh or age is None or not 0 <= age < self._files_every_s:
            self._files = self._processes.device_file_holders()
            self._files_at = reading.at
        return self._files

    def _host(
        self,
        pids: set[int],
        files: Mapping[int, tuple[int, ...]],
        known: Sequence[KnownServer],
    ) -> HostFacts:
        mains = {server.pid for server in known} if pids else set[int]()
        facts = with_ancestors(self._processes, pids | mains)
        owners = {pid: find_owner(facts[pid], facts) for pid in pids if pid in facts}
        hidden, limits = frozenset[int](), tuple[str, ...]()
        if isinstance(self._processes, _KnowsLimits):
            unseen = [pid for pid in pids if pid not in facts]
            hidden = frozenset(pid for pid in unseen if self._processes.is_hidden(pid))
            limits = self._processes.scan_limits
        return HostFacts(facts, files, hidden, self._foreign_owners(owners), limits)

    def _foreign_owners(self, owners: Mapping[int, Owner | None]) -> dict[int, Owner]:
        """Return the owners that do not stand above kvctld itself (its container, its unit)."""
        found = {pid: owner for pid, owner in owners.items() if owner is not None}
        if not found:
            return found
        own_facts = with_ancestors(self._processes, [self._me.pid])
        own = own_facts.get(self._me.pid)
        own_owner = find_owner(own, own_facts) if own else None
        return {pid: o for pid, o in found.items() if o.restarts is False or o != own_owner}


def with_ancestors(processes: Processes, pids: Iterable[int]) -> dict[int, ProcessFacts]:
    """Return the facts of these processes and of everything above them, as far as visible."""
    found: dict[int, ProcessFacts] = {}
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        facts = processes.facts(pid) if pid > 0 and pid not in found else None
        if facts is not None:
            found[pid] = facts
            waiting.append(facts.parent_pid)
    return found


async def read_within(clock: Clock, seconds: float, work: Callable[[], T]) -> T:
    """Run blocking work in a thread of its own and wait at most `seconds` for it.

    Raises:
        TimeoutError: The time ran out; the thread is left behind and dies with the process.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # None only beside an error

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except Exception as error:  # the probe boundary: the waiting task raises it
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the loop has ended while the driver hung

    threading.Thread(target=run, name="gpu-read", daemon=True).start()
    return await within(clock, seconds, answer)
