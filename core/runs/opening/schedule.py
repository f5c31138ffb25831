"""Which row is sent next: a pull model over all partitions of a run.

In this order: partials that can go on, retries whose time has come, scouts (the first answers of
every partition), then the open partitions by order or weight. Deterministic, and live: weights
and order may change at any time. It knows row numbers only.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kvctl.core.domain.runs.run import PartitionState
from kvctl.core.domain.runs.run_file import Order


@dataclass(slots=True)
class Job:
    """One row on its way to an answer."""

    partition: int
    """Number of the partition in the run."""
    row: int
    attempt: int = 0
    """Requests sent for it so far, in this process and before; part of the rid."""
    failures: int = 0
    """Attempts that count against the row's limit."""
    unserved: int = 0
    """Times in a row that nothing was done for it (refused, queue full): sets the back-off."""
    spared: int = 0
    """Attempts that failed by the server's fault and were not counted."""
    partial: "PartialAt | None" = None
    is_scout: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """The row it is for."""
        return self.partition, self.row


@dataclass(frozen=True, slots=True)
class PartialAt:
    """Where a harvested prefix lies in the journal."""

    file: str
    offset: int
    tokens: int
    numerics: str | None
    """What must be equal on the server that continues it; None is unknown."""


@dataclass(slots=True)
class Lane:
    """The rows of one partition that were not taken yet."""

    name: str
    total: int
    weight: float = 1.0
    taken: bytearray = field(default_factory=bytearray)
    """One byte a row: 1 where it is done, failed, in flight or in another lane."""
    left: int = 0
    cursor: int = 0
    scouts_left: int = 0
    served: float = 0.0
    """Rows taken over weight: the lane with the least is next."""
    mean_tokens: Callable[[], float | None] = lambda: None
    """Mean answer so far, for the order `longest`."""

    def take(self) -> int | None:
        """Return the next row that is not taken, and take it."""
        index = self.taken.find(b"\0", self.cursor)
        if index < 0:
            self.left = 0
            return None
        self.taken[index] = 1
        self.cursor = index + 1
        self.left -= 1
        return index

    def skip(self, row: int) -> None:
        """Take a row out because it needs no request from this lane."""
        if not self.taken[row]:
            self.taken[row] = 1
            self.left -= 1


class Schedule:
    """The rows of a run that are still to be sent, and their order."""

    def __init__(self, sizes: Mapping[str, int], order: Order, scout: int) -> None:
        """Begin with every row of every partition untaken."""
        self.order = order
        self.lanes = [
            Lane(name, total, taken=bytearray(total), left=total, scouts_left=min(scout, total))
            for name, total in sizes.items()
        ]
        self._retries: list[tuple[float, int, Job]] = []
        self._partials: deque[Job] = deque()
        self._again: deque[Job] = deque()
        self._numbers = itertools.count()
        self._current: int | None = None

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Share the slots among open partitions in proportion; 0 stops a partition."""
        for lane in self.lanes:
            if lane.name in weights:
                lane.weight = weights[lane.name]
        self.order = Order.WEIGHTS
        floor = min((lane.served for lane in self.lanes if lane.left), default=0.0)
        for lane in self.lanes:
            lane.served = floor

    def mark_done(self, partition: int, row: int) -> None:
        """Take out a row that has an answer or has failed for good."""
        self.lanes[partition].skip(row)

    def mark_answered(self, partition: int, answers: int) -> None:
        """Count rows that were there before as taken and as scouts; `taken` has them already."""
        self.lanes[partition].left -= answers
        self.mark_scouted(partition, answers)

    def mark_scouted(self, partition: int, answers: int) -> None:
        """Count answers that were there before as scouts."""
        lane = self.lanes[partition]
        lane.scouts_left = max(0, lane.scouts_left - answers)

    def add_partial(self, job: Job) -> None:
        """Queue a row whose answer has begun; it goes before everything else."""
        self.lanes[job.partition].skip(job.row)
        self._partials.append(job)

    def requeue(self, job: Job, not_before: float | None = None) -> None:
        """Give back a row: at once in front, or in the retry lane until its time has come."""
        if not_before is not None:
            heapq.heappush(self._retries, (not_before, next(self._numbers), job))
        elif job.partial is not None:
            self._partials.append(job)
        else:
            self._again.append(job)

    def add_failed(self, jobs: Iterable[Job]) -> None:
        """Queue failed rows again."""
        for job in jobs:
            self.lanes[job.partition].skip(job.row)
            self._again.append(job)

    def next(self, now: float, numerics: str | None = None) -> Job | None:
        """Return the row to send now, or None if nothing may be sent yet.

        `numerics` is what the server with room computes with: only partials made so may go there.
        """
        job = self._next_partial(numerics)
        if job is not None:
            return job
        if self._retries and self._retries[0][0] <= now:
            return heapq.heappop(self._retries)[2]
        if self._again:
            return self._again.popleft()
        return self._next_fresh()

    def _next_partial(self, numerics: str | None) -> Job | None:
        for n, job in enumerate(self._partials):
            if job.partial is None or job.partial.numerics == numerics:
                del self._partials[n]
                return job
        return None

    def _next_fresh(self) -> Job | None:
        chosen = self._scout_lane()
        is_scout = chosen is not None
        if chosen is None:
            chosen = self._main_lane()
        if chosen is None:
            return None
        lane = self.lanes[chosen]
        row = lane.take()
        if row is None:
            lane.scouts_left = 0
            return self._next_fresh()
        lane.scouts_left -= 1 if is_scout else 0
        lane.served += 1.0 / lane.weight if lane.weight > 0 else 0.0
        return Job(chosen, row, is_scout=is_scout)

    def _scout_lane(self) -> int | None:
        open_lanes = [n for n, lane in enumerate(self.lanes) if lane.scouts_left and lane.left]
        if not open_lanes:
            return None
        return max(open_lanes, key=lambda n: (self.lanes[n].scouts_left, -n))

    def _main_lane(self) -> int | None:
        lanes = self.lanes
        usable = [n for n, lane in enumerate(lanes) if lane.left and lane.weight > 0]
        if not usable:
            return None
        if self.order is Order.WEIGHTS:
            return min(usable, key=lambda n: (lanes[n].served, n))
        if self._current in usable:
            return self._current
        if self.order is Order.LONGEST:
            self._current = max(usable, key=lambda n: (lanes[n].mean_tokens() or 0.0, -n))
        else:
            self._current = usable[0]
        return self._current

    def in_order(self) -> list[int]:
        """Return the partitions' numbers in the order in which their rows will run out."""
        numbers = range(len(self.lanes))
        if self.order is Order.WEIGHTS:
            return sorted(numbers, key=lambda n: self._share_left(self.lanes[n]))
        if self.order is Order.FILE:
            return list(numbers)
        by_length = sorted(numbers, key=lambda n: -(self.lanes[n].mean_tokens() or 0.0))
        return sorted(by_length, key=lambda n: n != self._current)

    @staticmethod
    def _share_left(lane: Lane) -> float:
        return lane.left / lane.weight if lane.weight > 0 else 0.0

    def wake_at(self) -> float | None:
        """Return when the first retry's time comes (monotonic seconds); None without retries."""
        return self._retries[0][0] if self._retries else None

    def retrying(self, partition: int) -> int:
        """Return how many rows of a partition wait for another attempt."""
        waiting = [job for _, _, job in self._retries] + list(self._again)
        return sum(job.partition == partition for job in waiting)

    @property
    def partials(self) -> tuple[Job, ...]:
        """Rows whose answer has begun and waits to be continued."""
        return tuple(self._partials)

    def take_partials(self) -> tuple[Job, ...]:
        """Take every waiting partial out; each is given back with `requeue`."""
        taken = tuple(self._partials)
        self._partials.clear()
        return taken

    @property
    def is_empty(self) -> bool:
        """Whether no row is left to send; rows in flight are not seen here."""
        is_waiting = self._partials or self._retries or self._again
        return not is_waiting and not any(lane.left for lane in self.lanes)

    def state_of(self, partition: int, *, in_flight: int, done: int) -> PartitionState:
        """Return where a partition stands."""
        lane = self.lanes[partition]
        if not lane.left and not in_flight and not self._has_waiting(partition):
            return PartitionState.DONE
        started = self.order is Order.WEIGHTS or self._current == partition or not lane.left
        if started and not lane.scouts_left and (in_flight or done):
            return PartitionState.OPEN
        if not lane.scouts_left and done:
            return PartitionState.SCOUTED
        return PartitionState.OPEN if in_flight else PartitionState.WAITING

    def _has_waiting(self, partition: int) -> bool:
        waiting = itertools.chain((j for _, _, j in self._retries), self._again, self._partials)
        return any(job.partition == partition for job in waiting)
