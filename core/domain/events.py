"""What happened, when, and what was observed that proves it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the event feed and of the audit log."""

    at: float
    """Monotonic seconds."""
    wall: float
    """UTC seconds."""
    kind: str
    """One word: ready, throttled, paused, killed, clean, verdict, …"""
    text: str
    """What was observed, in one line."""
    command: str | None = None
    """Id of the command that caused it; None for what happened by itself."""
