"""The resolution of a process's start time, by which kvctl tells a reused pid: one clock tick.

A pid that is given away within the tick in which its first owner began cannot be told. Outside a
test that takes as many forks as there are pids, in ten milliseconds.
"""

import os
import time

from kvctl.core.domain.gpus.devices import ProcessIdentity

PER_S = os.sysconf("SC_CLK_TCK")


def wait_past(one: ProcessIdentity) -> None:
    """Wait until a process that begins now has a later start time."""
    while int(time.clock_gettime(time.CLOCK_BOOTTIME) * PER_S) <= one.start_ticks:
        time.sleep(0.001)
