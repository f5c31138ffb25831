"""Restarts in a row, by key in the panel, while a run goes on on a real engine.

    KVCTL_SOAK_RESTARTS=20 pytest -m soak tests/engine/test_soak_restarts.py

cpu-tiny and the same with another --max-total-tokens in turn. Every moment is seen from outside
kvctl: the key, the lines in the servers' logs, the processes in /proc. The table goes to
tests/benchmarks/results/restart-rounds.md.
"""

import os
import re
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from tests.e2e.terminal import Terminal
from tests.engine.keys import choose, leave_dialog, say_yes, wait_running
from tests.engine.operating import Document, Place, in_session, place_in
from tests.engine.server import READY_LINE

pytestmark = pytest.mark.soak

RESTARTS = int(os.environ.get("KVCTL_SOAK_RESTARTS", "20"))
ROWS, TOKENS, SLOTS = 40, 400, 4
COPIES = 1 + RESTARTS // 8
POOLS = {"cpu-tiny": 4096, "cpu-tiny-2x": 8192}
NAME = "restarts"
ANSWERS_BETWEEN = 3
START_WITHIN_S = 180.0
LOOK_S = 0.01
OVERHEAD_S = 1.0
"""The median that a restart may cost beyond SGLang's own times."""
RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "restart-rounds.md"
HEAD = """# Restarts in a row, by key in the panel, on a real engine

{done} of {asked} restarts ended ready and the run went on; {answers} of {total} answers on disk,
missing {missing}, twice {twice}. cpu-tiny (4,096 tokens of KV pool) and cpu-tiny-2x (8,192) in
turn while a run of {total} prompts, {tokens} tokens each, {slots} slots, goes on; harvest.
SGLang 0.5.23 on the CPU, 2 cores. Made by
`KVCTL_SOAK_RESTARTS={asked} pytest -m soak tests/engine/test_soak_restarts.py`.

Every moment is seen from outside kvctl, every 10 ms: y is pressed in the panel; "SIGTERM received"
stands in the old server's log; the last of its processes is gone from /proc; the new server's log
file is there; its ready line is; the second prefill after that line is (the first is the token
that kvctl asks for as its proof). kvctl's own overhead is the sum of the three gaps that are not
SGLang's: key to TERM (checks again, harvest, hold), last process gone to new log file (proof of
clean GPUs, spawn), and ready line to the run's first prefill (first token, resume). SGLang's are
TERM to last process gone (stop) and new log file to ready line (start).

Median of the overhead: {median:.2f} s, worst {worst:.2f} s; a median below {limit:.0f} s is asked
for.

| no. | to preset | pool | key to TERM | stop | gone to start | start | ready to run | own | kept |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
"""


@dataclass(slots=True)
class Moments:
    """What a thread saw of one restart; monotonic seconds, None: not seen."""

    log_folder: Path
    old: list[psutil.Process]
    """The processes of the server that is replaced."""
    termed_at: float | None = None
    gone_at: float | None = None
    launched_at: float | None = None
    ready_at: float | None = None
    prefilled_at: float | None = None
    """The run's first prefill on the new server."""
    _logs: set[Path] = field(default_factory=set)
    _old_log: Path = field(init=False)
    _offset: int = field(init=False)
    _new_log: Path | None = None

    def __post_init__(self) -> None:
        self._logs = set(self.log_folder.iterdir())
        self._old_log = max(self._logs, key=lambda path: path.stat().st_mtime)
        self._offset = self._old_log.stat().st_size

    @property
    def is_over(self) -> bool:
        return self.prefilled_at is not None

    def look(self) -> None:
        """Note what has come about since the last look."""
        now = time.monotonic()
        if self.termed_at is None and b"SIGTERM received" in self._old_text():
            self.termed_at = now
        if self.gone_at is None and not any(_runs(process) for process in self.old):
            self.gone_at = now
        if self.launched_at is None:
            self._find_log(now)
        elif not self.is_over:
            self._read_log(now)

    def _old_text(self) -> bytes:
        with self._old_log.open("rb") as log:
            log.seek(self._offset)
            return log.read()

    def _find_log(self, now: float) -> None:
        if new := set(self.log_folder.iterdir()) - self._logs:
            self._new_log, self.launched_at = new.pop(), now

    def _read_log(self, now: float) -> None:
        assert self._new_log is not None
        _, found, after = self._new_log.read_bytes().partition(READY_LINE.encode())
        if found and self.ready_at is None:
            self.ready_at = now
        if after.count(b"Prefill batch") >= 2:
            self.prefilled_at = now


def tree_of(pid: int) -> list[psutil.Process]:
    """A server's processes, also those that opened a session of their own."""
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def watched(moments: Moments) -> Iterator[None]:
    """Look every few milliseconds while a restart goes on, until the run is seen to go on."""
    is_over = threading.Event()

    def watch() -> None:
        while not (moments.is_over or is_over.wait(LOOK_S)):
            moments.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Restart:
    """What one restart did and cost; seconds."""

    number: int
    preset: str
    pool: int
    to_term_s: float
    stop_s: float
    to_start_s: float
    start_s: float
    to_run_s: float
    kept: str
    """What the harvest stage says."""

    @property
    def own_s(self) -> float:
        return self.to_term_s + self.to_start_s + self.to_run_s

    def line(self) -> str:
        return (
            f"| {self.number} | {self.preset} | {self.pool:,} | {self.to_term_s:.2f} "
            f"| {self.stop_s:.1f} | {self.to_start_s:.2f} | {self.start_s:.1f} "
            f"| {self.to_run_s:.2f} | {self.own_s:.2f} | {self.kept} |\n"
        )


@pytest.fixture
def place(installed_engine: None, tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


def test_restarts_in_a_row_lose_nothing_and_cost_little(place: Place) -> None:
    place.write_run(NAME, ROWS, TOKENS, COPIES)
    place.do("server", "start", "cpu-tiny")
    place.do("run", "start", f"{NAME}.toml")
    place.do("run", "throttle", str(SLOTS))
    restarts: list[Restart] = []
    with place.panel() as panel:
        wait_running(panel, NAME)
        for number in range(1, RESTARTS + 1):
            restarts.append(one_restart(place, panel, number))
            write_table(place, restarts)
        panel.send("q")
        assert panel.wait_exit() == 0
    assert place.run()["state"] == "running", "the run ended before the last restart: more copies"
    place.do("run", "throttle", "auto")
    place.until(lambda run: run["state"] == "finished", "the end of the run", 900)
    place.check_output(NAME, TOKENS)
    write_table(place, restarts)
    assert statistics.median(r.own_s for r in restarts) < OVERHEAD_S, RESULT.read_text()


def one_restart(place: Place, panel: Terminal, number: int) -> Restart:
    """Press the keys; the server and the run are as they must be afterwards."""
    old, done = place.server(), place.run()["done"]
    preset = "cpu-tiny" if old["preset"] == "cpu-tiny-2x" else "cpu-tiny-2x"
    panel.send("R")
    choose(panel, preset)
    moments = Moments(place.state / "logs", tree_of(old["pid"]))
    with watched(moments):
        pressed_at = say_yes(panel)
        panel.wait_for("done: cpu-tiny", START_WITHIN_S)
        panel.wait_until(lambda: moments.is_over, "the run's first prefill")
    kept = re.search(r"✓ +2 harvest .*?(\d+ partials, [\d,]+ tokens)", panel.text)
    leave_dialog(panel, "done: cpu-tiny")
    wait_running(panel, NAME)
    new = place.server()
    assert (new["preset"], new["pool_tokens"]) == (preset, POOLS[preset])
    assert in_session(old["pid"]) == [] and not any(_runs(process) for process in moments.old)
    place.until(lambda run: run["done"] >= done + ANSWERS_BETWEEN, "answers of the new server")
    return measured(number, new, moments, pressed_at, kept[1] if kept else "NOT SEEN")


def measured(number: int, new: Document, moments: Moments, pressed_at: float, kept: str) -> Restart:
    seen = (moments.termed_at, moments.gone_at, moments.launched_at)
    termed_at, gone_at, launched_at = (at for at in seen if at is not None)
    assert moments.ready_at is not None and moments.prefilled_at is not None
    return Restart(
        number,
        new["preset"],
        new["pool_tokens"],
        to_term_s=termed_at - pressed_at,
        stop_s=gone_at - termed_at,
        to_start_s=launched_at - gone_at,
        start_s=moments.ready_at - launched_at,
        to_run_s=moments.prefilled_at - moments.ready_at,
        kept=kept,
    )


def write_table(place: Place, restarts: list[Restart]) -> None:
    wanted, answers = place.wanted(), place.answers(NAME)
    ids = {(a["partition"], a["id"]) for a in answers}
    own = [restart.own_s for restart in restarts]
    head = HEAD.format(
        done=len(restarts),
        asked=RESTARTS,
        answers=len(ids),
        total=len(wanted),
        missing=len(wanted.keys() - ids),
        twice=len(answers) - len(ids),
        tokens=TOKENS,
        slots=SLOTS,
        median=statistics.median(own),
        worst=max(own),
        limit=OVERHEAD_S,
    )
    RESULT.write_text(head + "".join(restart.line() for restart in restarts))
