"""Waiting for what is in flight, or cutting it, until what came back is durable."""

from kvctl.core.clock import within
from kvctl.core.runs.driving.pump import Pump
from kvctl.core.runs.sending.harvest import HarvestCount, HarvestReport, cut_all
from kvctl.core.runs.sending.slots import ServerSlots


async def drained(pump: Pump, timeout_s: float) -> bool:
    """Wait until nothing is in flight and all of it is durable; False: time ran out."""
    return await pump.until(lambda: _is_quiet(pump), timeout_s)


async def cut(
    pump: Pump, slots: ServerSlots, *, keep: bool, timeout_s: float
) -> HarvestReport | None:
    """Abort every own request at a server; keep what is there of each answer if `keep`.

    None: nothing was in flight. Rows that the server does not give back in time start again.
    """
    if not slots.flights:
        return None
    asked, begun = len(slots.flights), pump.clock.monotonic()
    count = pump.sender.counting[slots.url] = HarvestCount()
    slots.is_cutting = True
    try:
        left = await cut_all(slots, pump.clock, timeout_s=timeout_s, keep=keep)
        for flight in left:
            await pump.drop_flight(slots, flight)
        await _settled(pump, slots, timeout_s)
    finally:
        slots.is_cutting = False
        pump.sender.counting.pop(slots.url, None)
        pump.wake()
    return count.report(slots.url, asked, len(left), pump.clock.monotonic() - begun)


def _is_quiet(pump: Pump) -> bool:
    writing = any(p.writing for p in pump.opened.counters.partitions)
    return not writing and not any(slots.flights for slots in pump.servers)


async def _settled(pump: Pump, slots: ServerSlots, timeout_s: float) -> None:
    """Wait until what came back from one server is durable; others may go on sending."""
    if len(pump.servers) == 1:
        await drained(pump, timeout_s)
        return
    await pump.until(lambda: not slots.flights, timeout_s)
    try:
        await within(pump.clock, timeout_s, pump.journal.flush())
    except TimeoutError:
        return  # the disk refuses: the journal holds the run and keeps the lines
