"""What a run has done so far, counted: per partition, per window, and for the ETA."""

from collections import deque
from dataclasses import dataclass, field

from kvctl.core.domain.runs.progress import Lengths, RateWindow

_RECENT = 100


@dataclass(slots=True)
class PartitionCounters:
    """One partition."""

    name: str
    total: int
    """Rows that can be sent."""
    skipped: int = 0
    done: int = 0
    """Accepted answers that are durable, those of `done_from` included."""
    elsewhere: int = 0
    """Those of `done_from` among them."""
    failed: int = 0
    capped: int = 0
    in_flight: int = 0
    writing: int = 0
    """Answers that came and are not durable yet."""
    last_wall: float | None = None
    """UTC seconds when its last answer came."""
    restarted: int = 0
    """Rows that had begun and started again."""
    lengths: Lengths = field(default_factory=Lengths)
    window: RateWindow = field(default_factory=RateWindow)

    def mean_tokens(self) -> float | None:
        """Return the mean length of the answers so far."""
        return self.lengths.mean


@dataclass(slots=True)
class Counters:
    """The whole run."""

    partitions: list[PartitionCounters]
    window: RateWindow = field(default_factory=RateWindow)
    duplicates: int = 0
    """Accepted answers beyond the first of their row; left out of exports."""
    dropped_tokens: int = 0
    """Tokens that were made and could not be kept."""
    kept_tokens: int = 0
    """Tokens of harvested prefixes."""
    queue_full: int = 0
    """Times the server would not take a request."""
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """Seconds from send to end of the last answers."""
    recent_speed: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """Tokens per second of one request, of the last answers."""

    def accept(self, partition: int, tokens: int, prompt_tokens: int | None, capped: bool) -> None:
        """Count an answer that is durable."""
        counters = self.partitions[partition]
        counters.done += 1
        counters.capped += int(capped)
        counters.lengths.add(tokens, prompt_tokens)

    def complete(self, partition: int, at: float, tokens: int, took_s: float | None) -> None:
        """Count an answer of this session in the rates."""
        self.partitions[partition].window.add(at, tokens)
        self.window.add(at, tokens)
        if took_s is not None and took_s > 0:
            self.recent_s.append(took_s)
            self.recent_speed.append(tokens / took_s)

    @property
    def mean_answer_s(self) -> float | None:
        """Seconds an answer takes, mean of the last ones; None before the first."""
        return sum(self.recent_s) / len(self.recent_s) if self.recent_s else None

    @property
    def speed(self) -> float | None:
        """Tokens per second of one request; None before the first answer."""
        return sum(self.recent_speed) / len(self.recent_speed) if self.recent_speed else None

    @property
    def in_flight(self) -> int:
        """Requests at the servers now."""
        return sum(p.in_flight for p in self.partitions)
