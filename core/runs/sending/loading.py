"""Reads rows off the event loop, several in one go: a thread for each would cost more than the row.

While one batch is read the next one gathers, so that a batch grows with the load.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvctl.core.runs.outputs.journal import Offload

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class Loader(Generic[K, V]):
    """Hands each caller what `read` returns or raises for its key."""

    read: Callable[[K], V]
    offload: Offload
    _wanted: "list[tuple[K, asyncio.Future[V]]]" = field(default_factory=list)
    _reading: "asyncio.Task[None] | None" = None

    async def load(self, key: K) -> V:
        """Read one, together with what others want at the same time."""
        loaded: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._wanted.append((key, loaded))
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_wanted())
        return await loaded

    async def _read_wanted(self) -> None:
        while self._wanted:
            batch, self._wanted = self._wanted, []
            keys = [key for key, _ in batch]
            found = await self.offload(lambda keys=keys: [self._try(key) for key in keys])  # type: ignore[misc]
            for (_, loaded), result in zip(batch, found, strict=True):
                if loaded.done():
                    continue  # its caller was cancelled
                if isinstance(result, _Failed):
                    loaded.set_exception(result.error)
                else:
                    loaded.set_result(result)

    def _try(self, key: K) -> "V | _Failed":
        try:
            return self.read(key)
        except Exception as error:  # each caller gets its own, whatever it is
            return _Failed(error)


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception
