"""The proof that one GPU is clean: what was seen, when, and by which measure."""

from dataclasses import dataclass

from kvctl.core.domain.units import mib


@dataclass(frozen=True, slots=True)
class GpuProof:
    """One GPU: clean, or what still holds it."""

    uuid: str
    index: int | None
    """None where the GPU is not in the reading at all."""
    is_clean: bool
    used_bytes: int | None
    limit_bytes: int | None
    """Highest use that counts as idle; None where memory proves nothing (unified)."""
    basis: str
    """Where the limit comes from, in words."""
    after_s: float
    """Seconds from the start of the proof until it was seen clean, or until the last look."""
    blockers: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    """Holders that were agreed to stay, in words."""
    at: float | None = None
    """Monotonic seconds of the reading that shows it; None without one."""
    since: float | None = None
    """Monotonic seconds since when every reading has shown it clean; None if it is not."""

    def line(self) -> str:
        """Return one line that says clean with its figures, or what is in the way."""
        name = f"GPU {self.index}" if self.index is not None else self.uuid
        if not self.is_clean:
            return f"{name} NOT clean after {self.after_s:.1f} s: {'; '.join(self.blockers)}"
        beside = f", beside {', '.join(self.beside)}" if self.beside else ""
        return (
            f"{name} clean after {self.after_s:.1f} s: no holder, {mib(self.used_bytes)} used"
            f" ({self.basis}){beside}"
        )
