"""The log records that may tell why a server ends, kept in bounded number."""

from dataclasses import dataclass, field

from kvctl.core.domain.logs.lines import LogKind, LogRecord
from kvctl.core.domain.servers.server import Failure
from kvctl.core.domain.servers.start_advice import PAUSE_PATHS
from kvctl.core.domain.servers.start_failure import cause_of, failure_of

KEPT = 500
PORT_IN_USE = "port_in_use"
_WORK = (LogKind.DECODE, LogKind.PREFILL)
_FATAL = frozenset({"sigquit", "killed", "crashed"})
"""Classes that SGLang logs once it has begun to end itself."""
_TELLING = (LogKind.FAILURE, LogKind.STAGE, LogKind.READY)


@dataclass(slots=True)
class Causes:
    """What a failure is judged by."""

    records: list[LogRecord] = field(default_factory=list)
    """Oldest first."""

    @property
    def is_fatal(self) -> bool:
        """Whether the log says that the server has begun to end itself after a failure."""
        failures = (r for r in self.records if r.kind is LogKind.FAILURE)
        return any(record.word_of("class") in _FATAL for record in failures)

    def port_failure(self) -> Failure | None:
        """Return the card of a server that could not bind its port; None if it could."""
        is_told = any(record.word_of("class") == PORT_IN_USE for record in self.records)
        cause = cause_of(self.records) if is_told else None
        is_port = cause is not None and cause.kind == PORT_IN_USE
        return failure_of(self.records) if is_port else None

    def keep(self, record: LogRecord) -> None:
        """Keep a record that tells why a server ended; of a row of decode lines one is enough."""
        is_work = record.kind in _WORK
        if is_work and self.records and self.records[-1].kind in _WORK:
            return
        is_pause = record.word_of("path") in PAUSE_PATHS
        if is_work or is_pause or record.kind in _TELLING:
            self.records = [*self.records[-KEPT:], record]
