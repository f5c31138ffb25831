"""kvctld: one controller behind a Unix socket, for as long as somebody or something needs it.

It runs in its own session, ignores SIGHUP, leaves at SIGTERM and SIGINT, keeps its socket
reachable when its folder is deleted, and leaves by itself when idle.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web

from kvctl.core.clock import Clock, RealClock
from kvctl.core.daemon.api import DaemonApi
from kvctl.core.daemon.attached import Attached, has_work
from kvctl.core.daemon.listener import SocketListener
from kvctl.core.daemon.lock import AlreadyRunning, DaemonLock
from kvctl.core.daemon.logfile import turn_over
from kvctl.core.daemon.paths import DaemonPaths, prepare_folders
from kvctl.core.daemon.port import ServedController
from kvctl.core.daemon.wire import DaemonInfo
from kvctl.core.domain.errors import KvctlError

CHECK_EVERY_S = 1.0
IDLE_EXIT_S = 600.0
_CLOSE_WITHIN_S = 20.0
_SHUTDOWN_S = 2.0

log = logging.getLogger("kvctld")


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """How this kvctld behaves."""

    idle_exit_s: float | None = IDLE_EXIT_S
    """Leave after so many seconds without clients and work; None: never."""
    check_every_s: float = CHECK_EVERY_S
    """How often socket, lock and log are looked at."""
    owns_standard_streams: bool = True
    """Standard error is the log file, to be turned over by size."""


class Kvctld:
    """Serves one controller until told to leave."""

    def __init__(
        self,
        controller: ServedController,
        paths: DaemonPaths,
        lock: DaemonLock,
        options: DaemonOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Serve `controller` at `paths`; `lock` is already held by the caller."""
        self._controller = controller
        self._paths = paths
        self._lock = lock
        self._options = options or DaemonOptions()
        self._clock = clock or RealClock()
        self._started = self._clock.monotonic()
        self._started_wall = self._clock.wall()
        self._attached = Attached(self._clock)
        self._api = DaemonApi(controller, self._attached, self.describe)

    def describe(self) -> DaemonInfo:
        """Return what kvctld says about itself."""
        snapshot = self._controller.snapshot()
        return DaemonInfo(
            pid=os.getpid(),
            version=snapshot.version,
            socket=str(self._paths.socket),
            state=str(self._paths.state),
            log=str(self._paths.log),
            host=snapshot.host,
            started_wall=self._started_wall,
            uptime_s=self._clock.monotonic() - self._started,
            is_simulated=snapshot.is_simulated,
            operators=self._attached.operators,
        )

    def stop(self, reason: str) -> None:
        """Ask kvctld to leave."""
        self._api.stop(reason)

    async def serve(self, on_ready: Callable[[], None] = lambda: None) -> str:
        """Serve until stopped and return why; servers and the run's files stay as they are.

        Args:
            on_ready: Called once the socket answers.

        Raises:
            OSError: The socket cannot be bound.
        """
        runner = web.AppRunner(
            self._api.application(),
            access_log=None,
            handler_cancellation=True,  # a stream ends with its client; commands are tasks apart
            shutdown_timeout=_SHUTDOWN_S,
        )
        await runner.setup()
        listener = SocketListener(runner, self._paths.socket)
        await listener.bind()
        on_ready()
        log.info("kvctld pid %d answers at %s", os.getpid(), self._paths.socket)
        tasks = [
            asyncio.create_task(self._controller.run(), name="controller"),
            asyncio.create_task(self._watch(listener), name="watch"),
        ]
        ending = asyncio.create_task(self._api.stopped())
        try:
            return await self._first_end(ending, tasks)
        finally:
            await self._leave(runner, listener, [ending, *tasks])

    async def _first_end(
        self, ending: "asyncio.Task[str]", tasks: "list[asyncio.Task[None]]"
    ) -> str:
        await asyncio.wait({ending, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                self._api.stop(f"the {task.get_name()} ended unexpectedly")
                task.result()
        return await ending

    async def _leave(
        self,
        runner: web.AppRunner,
        listener: SocketListener,
        tasks: "list[asyncio.Task[str] | asyncio.Task[None]]",
    ) -> None:
        self._api.stop("kvctld stopped")
        await listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await asyncio.wait_for(self._controller.close(), _CLOSE_WITHIN_S)
        except TimeoutError:
            log.error("the controller did not come to rest within %g s", _CLOSE_WITHIN_S)
        await self._api.abandon_commands()
        await runner.cleanup()

    async def _watch(self, listener: SocketListener) -> None:
        while True:
            await self._clock.sleep(self._options.check_every_s)
            await self._keep_reachable(listener)
            if self._options.owns_standard_streams:
                with suppress(OSError):
                    turn_over(self._paths.log)
            if self._is_unneeded():
                self.stop("idle: no client, no run, no managed server")

    async def _keep_reachable(self, listener: SocketListener) -> None:
        try:
            prepare_folders(self._paths, os.getuid())
            if self._lock.renew_if_lost():
                log.warning("the lock file was gone and is held again")
            if listener.is_lost():
                await listener.bind()
                log.warning("the socket was gone and is bound again at %s", self._paths.socket)
        except AlreadyRunning as error:
            self.stop(f"another kvctld took over: {error}")
        except (OSError, KvctlError) as error:
            log.error("socket or lock cannot be restored: %s", error)

    def _is_unneeded(self) -> bool:
        limit = self._options.idle_exit_s
        return (
            limit is not None
            and self._attached.unattended_s() >= limit
            and not self._api.is_busy
            and not has_work(self._controller.snapshot())
        )


def stop_on_signals(daemon: Kvctld) -> None:
    """Leave at SIGTERM and SIGINT, survive SIGHUP."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop, f"stopped by {number.name}")
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP ignored: kvctld outlives its terminal")
