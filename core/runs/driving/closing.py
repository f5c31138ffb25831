"""Ends an open run: cuts what is in flight, writes what came back, gives the folder back."""

from kvctl.core.runs.driving.cutting import cut
from kvctl.core.runs.driving.pump import Pump


async def close_all(pump: Pump, *, keep: bool, timeout_s: float) -> None:
    """Cut what is in flight at every server, kept or not, then close everything.

    Raises:
        DiskTrouble: Records could not be written; their rows are made again.
    """
    if pump.gate.is_started:
        for slots in pump.servers:
            if slots.flights and slots.down is None:
                await cut(pump, slots, keep=keep, timeout_s=timeout_s)
    await pump.stop()
    try:
        await pump.journal.close()
    finally:
        for slots in pump.servers:
            await slots.generator.close()
        for index in pump.opened.indexes:
            index.close()
        pump.opened.lock.release()
