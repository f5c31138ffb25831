"""What one partition measured under one launch, with the window it was measured over."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Measured figures of one partition under one launch over a stated window."""

    partition: str
    preset: str | None
    running: float | None
    queued: float | None
    token_usage: float | None
    generation_tokens_per_s: float | None
    effective_tokens_per_s: float | None
    window_s: float
    steady: bool
    server: str | None = None
    """Name of the server."""
    launch: str | None = None
    """Id of its launch in the ledger; None for a server that kvctl did not launch."""
    began_wall: float = 0.0
    """UTC seconds of the window's beginning."""
    completed: int | None = None
    """Answers completed in the window; None where several servers share the run."""
    completed_per_s: float | None = None
