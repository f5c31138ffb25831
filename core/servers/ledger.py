"""The ledger of launches: append-only JSON lines in the state folder, folded when read.

A launch is a few lines: begun, predicted, ready, measured, its operating points, ended. A torn
last line (a crash while it was written) is skipped. When the file has grown it is rewritten with
one line a launch, the newest ones. Secrets never get here: only what a `LaunchPlan` may show.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvctl.core.domain.capacity.prediction import Interval
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.launches.launch import LaunchRecord as LaunchRecord
from kvctl.core.domain.launches.launch import fold_line
from kvctl.core.domain.launches.operating_point import OperatingPoint


class LedgerUnwritable(KvctlError):
    """The ledger cannot be written; the launch itself is not affected."""


KEPT = 200
"""Launches that the ledger keeps."""
REWRITE_BYTES = 1 << 20
"""From this size on the file is rewritten when it has doubled since the last time."""


class Ledger:
    """Appends launches to a file and reads them back."""

    def __init__(self, path: Path) -> None:
        """Use this file; it appears with the first launch."""
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._records: tuple[LaunchRecord, ...] = ()
        self._rewritten = 0

    def begin(self, record: LaunchRecord) -> None:
        """Write that a launch has begun. Raises LedgerUnwritable."""
        self._append("begun", _facts(record))

    def ready(
        self,
        id: str,
        ready_after_s: float | None,
        pool_tokens: int | None,
        free_gpu_memory_gb: float | None = None,
        version: str | None = None,
    ) -> None:
        """Write that a launch serves, and with what pool. Raises LedgerUnwritable."""
        facts = {
            "served": True,
            "ready_after_s": ready_after_s,
            "pool_tokens": pool_tokens,
            "free_gpu_memory_gb": free_gpu_memory_gb,
            "version": version,
        }
        self._append("ready", {"id": id, **facts})

    def predicted(self, id: str, pool: Interval, by: str | None) -> None:
        """Write what pool was expected before a launch told its own. Raises LedgerUnwritable."""
        bounds = (pool.low, pool.expected, pool.high)
        self._append("predicted", {"id": id, "predicted": bounds, "predicted_by": by})

    def measured(self, id: str, facts: Mapping[str, Any]) -> None:
        """Write what a launch that serves told of itself (fields of `LaunchRecord`).

        Raises:
            LedgerUnwritable: It cannot be written.
        """
        self._append("measured", {"id": id, **facts})

    def point(self, id: str, point: OperatingPoint) -> None:
        """Write a window of a launch, or its later state. Raises LedgerUnwritable."""
        self._append("point", {"id": id, "point": asdict(point)})
        self._rewrite_if_large()

    def ended(self, id: str, wall: float, exit_code: int | None, cause: str) -> None:
        """Write how and when a launch ended; what is there already stands. Raises LedgerUnwritable.

        The kvctld that saw it die knows its exit status; a later one that closes it does not.
        """
        known = self.record_of(id)
        if known is not None and known.ended_wall is not None:
            return
        facts = {"ended_wall": wall, "exit_code": exit_code, "cause": cause}
        self._append("ended", {"id": id, **facts})
        self._rewrite_if_large()

    def records(self) -> tuple[LaunchRecord, ...]:
        """Return every launch, oldest first; empty where there is no ledger yet."""
        seen = self._stamp()
        if seen is None:
            return ()
        if seen != self._seen:
            launches: dict[str, LaunchRecord] = {}
            for line in self._lines():
                fold_line(launches, line)
            self._seen, self._records = seen, tuple(launches.values())
        return self._records

    def record_of(self, id: str) -> LaunchRecord | None:
        """Return one launch, None if the ledger does not have it."""
        return next((record for record in self.records() if record.id == id), None)

    def last_good(self, but_not: str | None = None) -> LaunchRecord | None:
        """Return the latest launch that served (of another preset than `but_not`), or None."""
        good = (r for r in reversed(self.records()) if r.was_ready and r.preset != but_not)
        return next(good, None)

    def last_of(self, preset: str) -> LaunchRecord | None:
        """Return the latest launch of a preset that served, None if none did."""
        return next(
            (r for r in reversed(self.records()) if r.was_ready and r.preset == preset), None
        )

    def start_durations_s(self, preset: str) -> tuple[float, ...]:
        """Return how long earlier launches of a preset took to be ready, oldest first."""
        own = (r for r in self.records() if r.preset == preset)
        return tuple(r.ready_after_s for r in own if r.ready_after_s is not None)

    def _append(self, event: str, facts: Mapping[str, Any]) -> None:
        line = _line(event, facts)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, _after_torn(file) + line.encode())
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as failed:
            problem = f"the ledger {self.path} cannot be written: {failed.strerror}"
            raise LedgerUnwritable(problem) from failed

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return what changes with every write; None where there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _rewrite_if_large(self) -> None:
        """Write the newest launches as one line each, once the file has grown enough."""
        seen = self._stamp()
        if seen is None or seen[1] < max(REWRITE_BYTES, 2 * self._rewritten):
            return
        kept = self.records()[-KEPT:]
        text = "".join(_line("begun", _facts(record)) for record in kept)
        temporary = self.path.with_suffix(".tmp")
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as stream:
                stream.write(text.encode())
                stream.flush()
                os.fsync(file)
            os.replace(temporary, self.path)
        except OSError:
            return  # it stays long: nothing is lost, the next write tries again
        self._rewritten = len(text.encode())

    def _lines(self) -> Iterator[Mapping[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        for line in text.split("\n"):  # not at U+2028 and its like, which a log line may hold
            try:
                facts = json.loads(line)
            except ValueError:
                continue
            if isinstance(facts, dict):
                yield facts


def _after_torn(file: int) -> bytes:
    """Return the line end that a torn last line lacks, so that it takes no other with it."""
    size = os.fstat(file).st_size
    return b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b""


def _line(event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"event": event, **facts}, ensure_ascii=False) + "\n"


def _facts(record: LaunchRecord) -> dict[str, Any]:
    """Return what is known of a launch, as a line tells it."""
    facts = {name: getattr(record, name) for name in LaunchRecord.__dataclass_fields__}
    facts["points"] = [asdict(point) for point in record.points]
    if (pool := record.predicted) is not None:
        facts["predicted"] = (pool.low, pool.expected, pool.high)
    return {name: value for name, value in facts.items() if value not in (None, (), [])}
