"""The ledger of launches: append-only JSON lines in the state folder, folded when read.

A launch is three lines at most: begun, ready, ended. A torn last line (a crash while it was
written) is skipped. Secrets never get here: only what a `LaunchPlan` may show.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvctl.core.domain.errors import KvctlError


class LedgerUnwritable(KvctlError):
    """The ledger cannot be written; the launch itself is not affected."""


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch with everything the ledger knows of it."""

    id: str
    """Unique, e.g. the log's name without its suffix."""
    preset: str
    wall: float
    """UTC seconds of the start."""
    argv: tuple[str, ...]
    """With secrets hidden."""
    env: tuple[tuple[str, str], ...] = ()
    """What was added to the environment, secrets hidden."""
    url: str = ""
    log_path: str = ""
    pid: int | None = None
    start_ticks: int | None = None
    version: str | None = None
    """SGLang's, None if unknown."""
    ready_after_s: float | None = None
    """None: never ready (or not yet)."""
    pool_tokens: int | None = None
    """max_total_num_tokens as the server said; None if never ready."""
    free_gpu_memory_gb: float | None = None
    """Per GPU after graph capture, as the start-up line says; None if it did not."""
    ended_wall: float | None = None
    exit_code: int | None = None
    """None while it runs, or for a process that was not our child."""
    cause: str | None = None
    """How it ended: "stopped", "restarted", or the first cause of a failure."""

    @property
    def was_ready(self) -> bool:
        """Whether it ever served."""
        return self.ready_after_s is not None


_READY_KEYS = ("ready_after_s", "pool_tokens", "free_gpu_memory_gb", "version")
_END_KEYS = ("ended_wall", "exit_code", "cause")


class Ledger:
    """Appends launches to a file and reads them back."""

    def __init__(self, path: Path) -> None:
        """Use this file; it appears with the first launch."""
        self.path = path

    def begin(self, record: LaunchRecord) -> None:
        """Write that a launch has begun. Raises LedgerUnwritable."""
        facts = {name: getattr(record, name) for name in LaunchRecord.__dataclass_fields__}
        self._append("begun", {k: v for k, v in facts.items() if v is not None})

    def ready(
        self,
        id: str,
        ready_after_s: float,
        pool_tokens: int | None,
        free_gpu_memory_gb: float | None = None,
        version: str | None = None,
    ) -> None:
        """Write that a launch serves, and with what pool. Raises LedgerUnwritable."""
        values = (ready_after_s, pool_tokens, free_gpu_memory_gb, version)
        self._append("ready", {"id": id, **dict(zip(_READY_KEYS, values, strict=True))})

    def ended(self, id: str, wall: float, exit_code: int | None, cause: str) -> None:
        """Write how and when a launch ended. Raises LedgerUnwritable."""
        values = (wall, exit_code, cause)
        self._append("ended", {"id": id, **dict(zip(_END_KEYS, values, strict=True))})

    def records(self) -> tuple[LaunchRecord, ...]:
        """Return every launch, oldest first; empty where there is no ledger yet."""
        launches: dict[str, LaunchRecord] = {}
        for line in self._lines():
            _fold(launches, line)
        return tuple(launches.values())

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
        line = json.dumps({"event": event, **facts}, ensure_ascii=False) + "\n"
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

    def _lines(self) -> Iterator[Mapping[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        for line in text.splitlines():
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


def _fold(launches: dict[str, LaunchRecord], facts: Mapping[str, Any]) -> None:
    id, event = facts.get("id"), facts.get("event")
    if not isinstance(id, str):
        return
    if event == "begun":
        known = {k: v for k, v in facts.items() if k in LaunchRecord.__dataclass_fields__}
        known["argv"] = tuple(known.get("argv", ()))
        known["env"] = tuple((str(n), str(v)) for n, v in known.get("env", ()))
        if {"preset", "wall"} <= known.keys():
            launches[id] = LaunchRecord(**known)
    elif id in launches:
        keys = {"ready": _READY_KEYS, "ended": _END_KEYS}.get(str(event), ())
        launches[id] = replace(launches[id], **{k: facts[k] for k in keys if k in facts})
