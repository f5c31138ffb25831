"""The one proof that GPUs are clean: no holder, and memory back at the idle level.

Polls until both are true of every GPU in one and the same reading that was taken after the act.
If the time runs out, says who or what still holds each one.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace

from kvctl.core.clock import Clock
from kvctl.core.domain.gpus.cleanness import prove
from kvctl.core.domain.gpus.devices import GpuView, ProcessIdentity
from kvctl.core.domain.gpus.holding import describe
from kvctl.core.domain.gpus.proofs import GpuProof

POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class CleanProof:
    """All GPUs that were asked for."""

    gpus: tuple[GpuProof, ...]
    started_at: float
    took_s: float
    skipped: str | None = None
    """Why there is nothing to prove (no GPU on this host)."""

    @property
    def is_clean(self) -> bool:
        """Whether every GPU was seen clean in one reading after the act."""
        return bool(self.gpus) and all(gpu.is_clean for gpu in self.gpus)

    @property
    def is_satisfied(self) -> bool:
        """Whether a start may follow: clean, or no GPU to prove clean."""
        return self.is_clean or self.skipped is not None

    def lines(self) -> tuple[str, ...]:
        """Return one line a GPU, or why there is none."""
        if self.skipped is not None:
            return (f"nothing to prove clean: {self.skipped}",)
        return tuple(gpu.line() for gpu in self.gpus)

    def summary(self) -> str:
        """Return one line: "8 of 8 GPUs clean after 1.2 s", or the first that is not."""
        if self.skipped is not None:
            return self.lines()[0]
        clean = sum(1 for gpu in self.gpus if gpu.is_clean)
        if self.is_clean:
            return f"{clean} of {clean} GPUs clean after {self.took_s:.1f} s"
        worst = next((gpu.line() for gpu in self.gpus if not gpu.is_clean), "no GPU was read")
        return f"{clean} of {len(self.gpus)} GPUs clean; {worst}"


async def prove_clean(
    read: Callable[[], Awaitable[GpuView]],
    clock: Clock,
    *,
    idle_bytes: Mapping[str, int],
    gpus: Collection[str] | None,
    timeout_s: float,
    tolerate: Collection[ProcessIdentity] = (),
) -> CleanProof:
    """Poll until the GPUs are clean, or say what still holds them when the time is over.

    Args:
        read: Takes a new reading; TimeoutError means that there is none this time.
        clock: Times the polls.
        idle_bytes: Idle level per UUID, see `learn_idle`.
        gpus: UUIDs; None for every GPU of the host, empty for none.
        timeout_s: Seconds to wait; the first look happens even at 0.
        tolerate: Holders that were there before and are agreed to stay.
    """
    started = clock.monotonic()
    clean_since: dict[str, float] = {}
    while True:
        view = await _read(read)
        now = clock.monotonic()
        if not gpus and (view.is_bare or gpus is not None):
            why = view.problem or "no GPU was named"
            return CleanProof((), started, now - started, why)
        wanted = _wanted(view, gpus)
        looks = [prove(view, uuid, started, idle_bytes, tolerate) for uuid in wanted]
        proofs = tuple(_timed(look, clean_since, now - started) for look in looks)
        proof = CleanProof(proofs, started, now - started)
        left = started + timeout_s - now
        if proof.is_clean or left <= 0:
            return proof
        await clock.sleep(min(POLL_S, left))


def held_lines(view: GpuView) -> tuple[str, ...]:
    """Return one line a holder, for events and dialogs."""
    return tuple(describe(holder) for holder in view.holders)


async def _read(read: Callable[[], Awaitable[GpuView]]) -> GpuView:
    """Return a view, without devices where the driver does not answer in time."""
    try:
        return await read()
    except TimeoutError as error:
        return GpuView(problem=f"the GPUs could not be read: {error}")


def _wanted(view: GpuView, gpus: Collection[str] | None) -> list[str]:
    """Return the UUIDs to prove; a host that cannot be read has one that cannot be."""
    if gpus is not None:
        return list(gpus)
    return [device.uuid for device in view.devices] or ["every GPU"]


def _timed(look: GpuProof, clean_since: dict[str, float], after_s: float) -> GpuProof:
    """Stamp when a GPU was first seen clean without a break since."""
    if not look.is_clean:
        clean_since.pop(look.uuid, None)
        stamp = after_s
    else:
        stamp = clean_since.setdefault(look.uuid, after_s)
    return replace(look, after_s=stamp)
