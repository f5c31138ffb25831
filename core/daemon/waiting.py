"""Waiting for a condition in plain (not asynchronous) code."""

import threading
from collections.abc import Callable
from typing import TypeVar

from kvctl.core.clock import RealClock

T = TypeVar("T")
_POLL_S = 0.03


def wait_for(look: Callable[[], T | None], within_s: float) -> T | None:
    """Return the first result of `look` that is not None, or None when the time has run out."""
    clock, pause = RealClock(), threading.Event()
    deadline = clock.monotonic() + within_s
    while (found := look()) is None and clock.monotonic() < deadline:
        pause.wait(_POLL_S)
    return found
