"""kvctld's listening socket, made again when its file or folder is deleted."""

import os
import socket
from pathlib import Path

from aiohttp import web

_BACKLOG = 64


class SocketListener:
    """Binds an aiohttp runner to a Unix socket and keeps it reachable."""

    def __init__(self, runner: web.AppRunner, path: Path) -> None:
        """Remember the runner and the path; binds nothing yet."""
        self._runner = runner
        self._path = path
        self._site: web.SockSite | None = None
        self._node: os.stat_result | None = None

    async def bind(self) -> None:
        """Put a fresh socket (0600) at the path; connections of an older one live on.

        The caller holds kvctld's lock, so a file already there belongs to nobody alive.
        """
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(os.fspath(self._path))
        self._path.chmod(0o600)
        self._node = self._path.lstat()
        older, self._site = self._site, web.SockSite(self._runner, listening, backlog=_BACKLOG)
        await self._site.start()
        if older is not None:
            await older.stop()

    def is_lost(self) -> bool:
        """Return whether the path no longer leads to this socket."""
        try:
            return self._node is None or not os.path.samestat(self._node, self._path.lstat())
        except OSError:
            return True

    async def close(self) -> None:
        """Stop listening and remove the file if it is still ours."""
        if not self.is_lost():
            self._path.unlink(missing_ok=True)
        if self._site is not None:
            await self._site.stop()
            self._site = None
