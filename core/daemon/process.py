"""kvctld as a process: session, signals, standard streams, lock; then it serves.

Order matters: the lock is taken before anything heavy is imported or read, so a second kvctld
leaves at once and without a trace.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from kvctl.core.daemon.lock import DaemonLock
from kvctl.core.daemon.logfile import log_to_standard_error, redirect_standard_streams
from kvctl.core.daemon.paths import DaemonPaths, prepare_folders
from kvctl.core.daemon.port import ServedController
from kvctl.core.daemon.server import DaemonOptions, Kvctld, stop_on_signals

_COLLECT_AFTER = 50_000
"""Objects; Python's own limit is 700."""

log = logging.getLogger("kvctld")


def detach() -> Callable[[], None]:
    """Go on in a child that belongs to no terminal; the parent waits until it serves, then exits.

    The fork lets init reap kvctld: a panel that started it never holds its zombie. The parent's
    exit status tells how the start went.

    Returns:
        To be called once kvctld answers.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        os._exit(_status_of_start(reading, child))
    os.close(reading)
    os.setsid()
    return partial(_report_ready, writing)


def _status_of_start(reading: int, child: int) -> int:
    if os.read(reading, 1):
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or 1


def _report_ready(writing: int) -> None:
    with suppress(BrokenPipeError):  # whoever started us has stopped waiting
        os.write(writing, b"1")
    os.close(writing)


def serve_here(
    paths: DaemonPaths,
    build: Callable[[], ServedController],
    options: DaemonOptions,
    *,
    is_detached: bool,
) -> None:
    """Become kvctld in this process and return when it has left.

    Args:
        paths: Where it is found.
        build: Makes the controller, once the lock is held.
        options: How it behaves.
        is_detached: Leave the caller's terminal first; the caller waits until kvctld serves.

    Raises:
        AlreadyRunning: Another kvctld serves this state folder.
        DaemonUnreachable: The folders cannot be used.
    """
    # The fork comes before anything starts a thread or opens a file.
    tell = detach() if is_detached else _leave_the_session
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    prepare_folders(paths, os.getuid())
    lock = DaemonLock(paths.lock, paths.name_hash)
    lock.acquire()
    log_to_standard_error()

    def on_ready() -> None:
        if not is_detached:
            print(f"kvctld serves; from here on it logs to {paths.log}", file=sys.stderr)
        redirect_standard_streams(paths.log)
        tell()

    try:
        asyncio.run(_serve(lambda: Kvctld(build(), paths, lock, options), on_ready))
    finally:
        lock.release()


def collect_seldom() -> None:
    """Let the collector look less often, and never at what the imports have made.

    A run makes thousands of objects a second and hardly a cycle: looking for those took a
    twentieth of the client's time.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def _leave_the_session() -> None:
    with suppress(PermissionError):  # already the leader of its group: a shell's foreground job
        os.setsid()


async def _serve(build: Callable[[], Kvctld], on_ready: Callable[[], None]) -> None:
    collect_seldom()
    daemon = build()
    stop_on_signals(daemon)
    reason = await daemon.serve(on_ready)
    log.info("kvctld leaves: %s", reason)
