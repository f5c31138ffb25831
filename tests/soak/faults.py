"""What is done to a run in one round of the chaos soak; every fault is the real thing.

A fault leaves things as they fell; bringing them up again is the place's `go_on`. It returns how
many answers of the newest part were cut off on purpose.
"""

import contextlib
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.soak.journal_check import parts_of
from tests.soak.place import PRESET, SoakPlace, lives, until

from kvctl.core.controller.commands import (
    CloseRun,
    PauseRun,
    RestartServer,
    StartRun,
    StopDaemon,
    WaitHow,
)
from kvctl.core.daemon.waiting import wait_for
from kvctl.core.domain.runs.run import RunState

Fault = Callable[[SoakPlace, Path, random.Random], None]
STREAMS = ("raw_responses", "partials", "errors")


def kill_kvctld(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    place.kill_kvctld()


def kill_server(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    pid = place.server_pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid), "the server is gone")


def kill_both(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    kill_server(place, folder, draw)
    time.sleep(draw.uniform(0, 0.5))
    place.kill_kvctld()


def stop_server(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    with _stopped(place):
        time.sleep(draw.uniform(0.2, 1.5))


def stop_server_kill_kvctld(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    with _stopped(place):
        time.sleep(draw.uniform(0, 0.5))
        place.kill_kvctld()


@contextlib.contextmanager
def _stopped(place: SoakPlace):  # type: ignore[no-untyped-def]
    pid = place.server_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def drop_connections(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    """Reset every connection to the server; needs a network namespace of our own."""
    for _ in range(draw.choice((1, 1, 3))):
        subprocess.run(
            ["ss", "-K", "dport", "=", f":{place.port}"], capture_output=True, check=True
        )
        time.sleep(draw.uniform(0, 0.3))


def full_disk(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    """Fill the small file system up to a few bytes, until kvctl holds, or a kill comes first."""
    filler = place.output / "filler"
    room = draw.randrange(0, 96_000)
    with filler.open("wb", buffering=0) as out:
        _fill(out.fileno())
        out.truncate(max(0, os.fstat(out.fileno()).st_size - room))
    if draw.random() < 0.3:
        time.sleep(draw.uniform(0, 1))
        place.kill_kvctld()
        if draw.random() < 0.5:
            place.start_kvctld()
            until(lambda: place.run().state is not RunState.LOADING, "the run on a full disk")
    else:
        until(lambda: place.run().state is not RunState.RUNNING, "held by the full disk")
    filler.unlink()


def _fill(descriptor: int) -> None:
    block = bytes(1 << 16)
    with contextlib.suppress(OSError):
        while True:
            os.write(descriptor, block)


def file_limit(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    """Let the kernel refuse to grow files (RLIMIT_FSIZE): the write that meets it is cut short."""
    assert place.kvctld is not None
    newest = parts_of(folder, "raw_responses")[-1]
    limit = newest.stat().st_size + draw.randrange(0, 20_000)
    pid, (_, hard) = place.kvctld.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))
    until(lambda: place.run().state is not RunState.RUNNING, "held by the limit")
    if draw.random() < 0.3:
        place.kill_kvctld()
    else:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def torn_write(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    """Kill kvctld and cut a file at a random byte of its last 20,000, as a lost page would."""
    place.kill_kvctld()
    parts = parts_of(folder, draw.choice(STREAMS)) or parts_of(folder, STREAMS[0])
    size = parts[-1].stat().st_size
    os.truncate(parts[-1], size - draw.randrange(0, min(size, 20_000)))


def pause(how: WaitHow, *, is_killed: bool = False) -> Fault:
    """Pause in one way, perhaps with a kill of kvctld behind it: it must still be paused then."""

    def act(place: SoakPlace, folder: Path, draw: random.Random) -> None:
        place.submit(PauseRun(how))
        if how is not WaitHow.FREEZE:
            until(lambda: place.run().in_flight == 0, f"paused by {how}: nothing in flight")
        time.sleep(draw.uniform(0, 0.4))
        if is_killed:
            place.kill_kvctld()
            place.start_kvctld()
            until(lambda: place.run().state is not RunState.LOADING, "the paused run")
        # Where nothing was left to send, what was in flight was the end of the run.
        assert place.run().state in (RunState.PAUSED, RunState.FINISHED), place.run()

    return act


def restart(how: WaitHow) -> Fault:
    """Restart the server as the operator does, the answers in flight treated so."""

    def act(place: SoakPlace, folder: Path, draw: random.Random) -> None:
        place.submit(RestartServer(PRESET, how=how))

    return act


def leave_and_resume(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    """Let kvctld leave in good order; the next one takes the run up."""
    place.submit(StopDaemon())
    assert place.kvctld is not None
    assert wait_for(place.kvctld.poll, 30.0) == 0


def close_and_start(place: SoakPlace, folder: Path, draw: random.Random) -> None:
    path = place.run().path
    place.submit(CloseRun())
    place.submit(StartRun(path))


NEEDS_NAMESPACE = ("connections dropped", "disk full")
FAULTS: Mapping[str, Fault] = {
    "kill -9 kvctld": kill_kvctld,
    "kill -9 server": kill_server,
    "kill -9 server, then kvctld": kill_both,
    "SIGSTOP server": stop_server,
    "SIGSTOP server, kill -9 kvctld": stop_server_kill_kvctld,
    "connections dropped": drop_connections,
    "disk full": full_disk,
    "file size limit": file_limit,
    "kill -9 kvctld, write torn": torn_write,
    "pause drain": pause(WaitHow.DRAIN),
    "pause freeze": pause(WaitHow.FREEZE),
    "pause harvest": pause(WaitHow.HARVEST),
    "pause abandon": pause(WaitHow.ABANDON),
    "pause freeze, kill -9 kvctld": pause(WaitHow.FREEZE, is_killed=True),
    "pause harvest, kill -9 kvctld": pause(WaitHow.HARVEST, is_killed=True),
    "restart harvest": restart(WaitHow.HARVEST),
    "restart drain": restart(WaitHow.DRAIN),
    "restart abandon": restart(WaitHow.ABANDON),
    "kvctld leaves": leave_and_resume,
    "close, start": close_and_start,
}
