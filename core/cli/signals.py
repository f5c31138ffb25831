"""A closed terminal or a SIGTERM ends a verb the way Ctrl-C does: with everything put back."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGHUP and SIGTERM, so that `finally` clauses run."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # A hangup comes twice (shell and kernel) and with a SIGCONT, whose handler in Textual
        # (8.2.8) fails once its loop has ended: neither may break into what is put back now.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
