"""The servers of an open run: their targets, and servers that come and go while it runs."""

from collections.abc import Callable

from kvctl.core.domain.errors import CommandRefused
from kvctl.core.ports import Generator
from kvctl.core.runs.driving.cutting import cut
from kvctl.core.runs.driving.descriptors import room_for, why_capped
from kvctl.core.runs.driving.pump import Pump
from kvctl.core.runs.sending.harvest import HarvestReport
from kvctl.core.runs.sending.slots import NOT_REACHED, ServerSlots

CUT_S = 30.0


def server_at(pump: Pump, server: str | None) -> ServerSlots:
    """Return one server of the run; None: the only one.

    Raises:
        CommandRefused: There is no such server, or None was given and there are several.
    """
    wanted = None if server is None else server.rstrip("/")
    found = [s for s in pump.servers if wanted in (None, s.url)]
    if len(found) != 1:
        names = ", ".join(s.url for s in pump.servers)
        raise CommandRefused(f"name one server of this run: {names}")
    return found[0]


def share_target(pump: Pump, target: int, *, is_held: bool, note: str) -> None:
    """Set how many requests may be in flight over all servers."""
    share, rest = divmod(max(0, target), max(1, len(pump.servers)))
    for number, slots in enumerate(pump.servers):
        set_target(pump, slots, share + (number < rest), is_held=is_held, note=note)


def set_target(pump: Pump, slots: ServerSlots, target: int, *, is_held: bool, note: str) -> None:
    """Set how many requests may be in flight at one server, as far as files can be opened."""
    others = sum(s.target for s in pump.servers if s is not slots)
    wanted = others + max(0, target)
    room = room_for(wanted)
    if room < wanted:
        why = why_capped(wanted, room)
        if why not in slots.note:
            pump.hooks.event("files", why)
        note = f"{note}; {why}" if note else why
    slots.target, slots.is_held, slots.note = max(0, target - (wanted - room)), is_held, note
    pump.wake()


def add_server(pump: Pump, make: Callable[[], Generator]) -> ServerSlots:
    """Let the run send to one more server, once that has answered; it starts without a target.

    Raises:
        CommandRefused: The run uses it already.
    """
    slots = ServerSlots(make(), pump.clock)
    if any(s.url == slots.url for s in pump.servers):
        raise CommandRefused(f"{slots.url} is a server of this run already")
    slots.down, slots.probe_at = NOT_REACHED, pump.clock.monotonic()
    pump.servers.append(slots)
    pump.wake()
    return slots


async def remove_server(
    pump: Pump, slots: ServerSlots, *, keep: bool | None
) -> HarvestReport | None:
    """Stop using a server: what is in flight there ends (None), is kept (True) or starts again.

    Raises:
        CommandRefused: It is the last one.
    """
    if len(pump.servers) == 1:
        raise CommandRefused(f"{slots.url} is the run's last server: add another, or pause")
    slots.is_leaving = True
    report = None
    if keep is None:
        await pump.until_ever(lambda: not slots.flights)
    else:
        report = await cut(pump, slots, keep=keep, timeout_s=CUT_S)
    pump.servers.remove(slots)
    await slots.generator.close()
    pump.restart_foreign_partials()
    pump.wake()
    return report
