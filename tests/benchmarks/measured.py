"""What one client took in one round."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """One client over one round."""

    count: int
    wall_s: float
    cpu_s: float
    """User and system time of the client's process."""
    lag_p99_ms: float | None = None
    """Event loop: how much later than asked a sleep of 10 ms ended; None: not measured."""
    rss_mb: tuple[float, ...] = ()
    """Resident memory at every tenth of the requests, MB."""

    @property
    def per_s(self) -> float:
        """Return responses per second."""
        return self.count / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """Return CPU milliseconds a response."""
        return self.cpu_s / self.count * 1000
