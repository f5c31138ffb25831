"""Recorded loads sent again, to the simulated pool: the same rows, clients and server settings.

A recording is a list of requests and the server's decode lines, both in seconds from its first
request. Closed loops are sent as they were made: that many clients, each taking the next row when
an answer ends. Loads whose client changed its number of slots are sent at the recorded moments.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import linear_regression
from typing import Any

from kvctl.core.sim.model import (
    DecodeTick,
    Finished,
    PoolEvent,
    PoolLimits,
    PoolRequest,
    StepLaw,
)
from kvctl.core.sim.pool import Pool

DATA = Path(__file__).parents[1] / "data" / "recorded-load"
LOG_INTERVAL = 10
"""Decode steps from one recorded line of the H200 to the next (decode_log_interval)."""
STEP_S = 0.05
"""How often a simulated client looks for ended requests."""
PREFILL_TOKENS_PER_S = 38_000.0
"""Least squares over the 703 intervals with one prefill batch in the log of `law-*`."""
FITTED_ON = "law-fixed150"
"""The recording that gives the step law of all others on the bf16 pool."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One load on one server."""

    name: str
    cuts: tuple[float, ...]
    """Where the compared windows begin and end: a minute each, phases where those are shorter."""
    retracted: int
    """Requests retracted meanwhile, by the server's log."""
    clients: int | None = None
    """Closed-loop clients; None sends at the recorded moments."""
    send_until_s: float = inf
    """When the clients stop to send; what is in flight then goes on."""
    capacity: int = 159_277
    conservativeness: float = 1.0

    @property
    def limits(self) -> PoolLimits:
        """Return the settings of its server; what is not named here had SGLang's default."""
        return PoolLimits(
            self.capacity, conservativeness=self.conservativeness, log_interval=LOG_INTERVAL
        )


MINUTES = (0.0, 60.0, 120.0, 192.0)
SWEEP = (0.0, 48.0)
CLIENTS = 150
RECORDINGS = (
    Recording("bf16", MINUTES, 193, CLIENTS),
    Recording("fp8", (0.0, 60.0, 102.0), 53, CLIENTS, capacity=376_029),
    Recording("c1.5", (0.0, 60.0, 101.0), 90, CLIENTS, conservativeness=1.5),
    Recording("c0.3", (0.0, 60.0, 101.0), 95, CLIENTS, conservativeness=0.3),
    Recording("c1.0-24", SWEEP, 0, 24),
    Recording("c1.0-40", SWEEP, 0, 40),
    Recording("c1.0-56", SWEEP, 0, 56),
    Recording("c1.0-72", SWEEP, 18, 72),
    Recording("c1.0-100", SWEEP, 20, 100),
    Recording("c1.0-150", SWEEP, 2, 150),
    Recording("law-fixed150", (0.0, 60.0, 105.0, 167.0), 10, CLIENTS, 105.0),
    Recording("law-fixed72", (0.0, 60.0, 105.0), 0, 72),
    Recording("law-auto1", (0.0, 60.0, 105.0, 151.0), 19),
    Recording("law-auto2", (0.0, 60.0, 105.0, 150.0, 190.0, 260.0), 28),
)
"""Every load of a minute or so that was recorded whole on the H200."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded request."""

    at: float
    """When it was sent; unused in a closed loop once all clients have begun."""
    prompt_tokens: int
    new_tokens: int
    """Asked and, with ignore_eos, generated."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a window of decode lines says."""

    running: float
    usage: float
    """Token usage, 0 to 1."""
    tokens_per_s: float
    """Generated tokens a second of the window, prefill passes included."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One window of a recording beside its simulation."""

    recording: Recording
    begin_s: float
    end_s: float
    recorded: Means
    simulated: Means


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a simulated server said."""

    ticks: list[DecodeTick]
    retracted: int


@dataclass(slots=True)
class _Replay:
    """Clients and the pool they send to."""

    recording: Recording
    pool: Pool
    rows: Iterator[Row]
    ticks: list[DecodeTick] = field(default_factory=list)
    _sent: int = 0
    _in_flight: int = 0

    def run(self) -> Replayed:
        """Send everything and return what the server said up to the end of the recording."""
        clients = self.recording.clients
        if clients is None:
            self._send_on_time(self.rows)
        else:
            self._send_on_time(next(self.rows) for _ in range(clients))
            self._keep_in_flight(clients)
        self._take(self.recording.cuts[-1])
        return Replayed(self.ticks, self.pool.totals.retracted_requests)

    def _send_on_time(self, rows: Iterator[Row]) -> None:
        for row in rows:
            self._take(row.at)
            self._send(row, row.at)

    def _keep_in_flight(self, clients: int) -> None:
        last = min(self.recording.send_until_s, self.recording.cuts[-1])
        for step in range(1, int(last / STEP_S)):
            self._take(now := step * STEP_S)
            while self._in_flight < clients and (row := next(self.rows, None)) is not None:
                self._send(row, now)

    def _send(self, row: Row, now: float) -> None:
        self.pool.submit(
            PoolRequest(str(self._sent), row.prompt_tokens, row.new_tokens, row.new_tokens, now)
        )
        self._sent += 1
        self._in_flight += 1

    def _take(self, until: float) -> None:
        for event in self.pool.advance(max(until, self.pool.now)):
            self._note(event)

    def _note(self, event: PoolEvent) -> None:
        if isinstance(event, DecodeTick):
            self.ticks.append(event)
        elif isinstance(event, Finished):
            self._in_flight -= 1


def replay(recording: Recording) -> Replayed:
    """Return what the simulated server says under the recorded load."""
    pool = Pool(recording.limits, law=step_law(recording))
    return _Replay(recording, pool, iter(rows_of(recording.name))).run()


def compare(recording: Recording, simulated: Replayed) -> list[Compared]:
    """Return the recording's windows beside those of its replay."""
    lines = lines_of(recording.name, recording.capacity)
    return [
        Compared(
            recording, begin, end, means(lines, begin, end), means(simulated.ticks, begin, end)
        )
        for begin, end in pairwise(recording.cuts)
    ]


def means(ticks: Sequence[DecodeTick], begin_s: float, end_s: float) -> Means:
    """Return a window's means, each line weighing the time since the line before it."""
    gaps = [
        (line.at - max(before, begin_s), line)
        for before, line in zip([0.0, *(tick.at for tick in ticks)], ticks, strict=False)
        if begin_s <= line.at < end_s
    ]
    seconds = sum(gap for gap, _ in gaps)
    return Means(
        sum(gap * line.running for gap, line in gaps) / seconds,
        sum(gap * line.usage for gap, line in gaps) / seconds,
        sum(LOG_INTERVAL * line.running for _, line in gaps) / (end_s - begin_s),
    )


@cache
def rows_of(name: str) -> tuple[Row, ...]:
    """Return a recording's requests in the order in which they were sent.

    A replay that is ahead of the recording takes rows that were sent only after it: they follow
    with no moment. `c1.0` has none, so its clients may end a few seconds short of work.
    """
    return tuple(
        Row(inf if at is None else at, *lengths) for at, *lengths in _read(name, "requests")
    )


@cache
def lines_of(name: str, capacity: int) -> tuple[DecodeTick, ...]:
    """Return a recording's decode lines, oldest first.

    The log has whole seconds; lines of one second were spread evenly over it.
    """
    return tuple(
        DecodeTick(at, running, tokens, tokens / capacity, speed, queued)
        for at, running, tokens, speed, queued in _read(name, "lines")
    )


def _read(name: str, part: str) -> list[list[Any]]:
    with gzip.open(DATA / f"{name}.{part}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def step_law(recording: Recording) -> StepLaw:
    """Return the step law of the server that a recording was made on."""
    return fp8_law() if recording.name == "fp8" else bf16_law()


@cache
def bf16_law() -> StepLaw:
    """Return the law that one recording gives; all others on that pool are checked with it."""
    steps = plain_steps(lines_of(FITTED_ON, 159_277))
    base, request, ktoken = _least_squares(
        [((1.0, running, ktokens), step_ms) for running, ktokens, step_ms in steps]
    )
    return StepLaw(base, request, 1.0, ktoken, PREFILL_TOKENS_PER_S)


@cache
def fp8_law() -> StepLaw:
    """Return the law of the fp8 pool, from 6 s of 60 clients after the part that is compared.

    They always ran 60, so what a request costs is taken from the bf16 pool: the weights are alike.
    """
    steps = plain_steps(lines_of("fp8-after", 376_029))
    slope, intercept = linear_regression([step[1] for step in steps], [step[2] for step in steps])
    request = bf16_law().request_ms
    base = intercept - request * steps[0][0]
    return StepLaw(base, request, 1.0, slope, PREFILL_TOKENS_PER_S)


def plain_steps(lines: Sequence[DecodeTick]) -> list[tuple[float, float, float]]:
    """Return running, 1000 tokens in the pool and ms a step of intervals of nothing but decoding.

    Then the pool grew by one token a step and request, so nobody came and nobody went.
    """
    return [
        (
            line.running,
            (line.tokens + before.tokens) / 2000.0,
            1000.0 * line.running / line.tokens_per_s,
        )
        for before, line in pairwise(lines)
        if line.running == before.running
        and line.tokens - before.tokens == LOG_INTERVAL * line.running
    ]


def _least_squares(points: Sequence[tuple[tuple[float, ...], float]]) -> list[float]:
    """Return the factors of the columns that come closest to the values."""
    columns = range(len(points[0][0]))
    table = [
        [sum(x[row] * x[column] for x, _ in points) for column in columns]
        + [sum(x[row] * y for x, y in points)]
        for row in columns
    ]
    for pivot in columns:
        table[pivot] = [value / table[pivot][pivot] for value in table[pivot]]
        for row in columns:
            if row != pivot:
                factor = table[row][pivot]
                table[row] = [a - factor * b for a, b in zip(table[row], table[pivot], strict=True)]
    return [row[-1] for row in table]
