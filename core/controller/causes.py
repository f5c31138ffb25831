"""The log records that may tell why a server ends, kept in bounded number."""

from dataclasses import dataclass, field

from kvctl.core.domain.loglines import LogKind, LogRecord
from kvctl.core.domain.startadvice import PAUSE_PATHS

KEPT = 500
_WORK = (LogKind.DECODE, LogKind.PREFILL)
_TELLING = (LogKind.FAILURE, LogKind.STAGE, LogKind.READY)


@dataclass(slots=True)
class Causes:
    """What a failure is judged by."""

    records: list[LogRecord] = field(default_factory=list)
    """Oldest first."""

    def keep(self, record: LogRecord) -> None:
        """Keep a record that tells why a server ended; of a row of decode lines one is enough."""
        is_work = record.kind in _WORK
        if is_work and self.records and self.records[-1].kind in _WORK:
            return
        is_pause = record.word_of("path") in PAUSE_PATHS
        if is_work or is_pause or record.kind in _TELLING:
            self.records = [*self.records[-KEPT:], record]
