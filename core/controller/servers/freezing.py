"""Freezing an engine: paused with its requests' tokens kept, and remembered until it goes on."""

from collections.abc import Callable

from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.domain.errors import KvctlError
from kvctl.core.ports import ProbeFailed

MODE = "retract"
"""Never a mode that aborts."""
_NOT_DONE = frozenset({"unsupported", "refused", "unauthorized", "http"})
"""Causes that say for certain that the engine was not paused."""


def is_frozen(watch: ServerWatch) -> bool:
    """Return whether kvctl has paused this engine; one that has ended is not."""
    return watch.record.paused_mode is not None and watch.is_alive() is not False


async def freeze(watch: ServerWatch, save: Callable[[], None]) -> str:
    """Pause the engine so that requests keep their tokens.

    Raises:
        KvctlError: It was not paused, or nobody can say whether it was.
    """
    name = watch.record.name
    if is_frozen(watch):
        return f"{name} is frozen already"
    watch.record.paused_mode = MODE
    save()  # remembered first: a kvctld that dies now must still know to continue it
    try:
        await watch.engine.pause(MODE)
    except ProbeFailed as failure:
        await _take_back(watch, failure)
        save()
        raise KvctlError(
            f"sending is stopped, but {name} was not frozen: {failure.detail}"
        ) from None
    watch.forget_rates()
    return f"{name} frozen ({MODE}): its requests wait with their tokens"


async def thaw(watch: ServerWatch, save: Callable[[], None]) -> str:
    """Continue the engine and return its name. Raises KvctlError if it does not answer."""
    try:
        await watch.engine.unpause()
    except ProbeFailed as failure:
        raise KvctlError(f"{watch.record.name} could not be continued: {failure.detail}") from None
    watch.record.paused_mode = None
    watch.forget_rates()
    save()
    return watch.record.name


async def _take_back(watch: ServerWatch, failure: ProbeFailed) -> None:
    """Undo a pause that failed; where that cannot be done either, it stays remembered."""
    if failure.cause not in _NOT_DONE:
        try:
            await watch.engine.unpause()
        except ProbeFailed:
            return
    watch.record.paused_mode = None
