"""Drives the installed `kvctl` as an operator does, and keeps a transcript."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLL_S = 0.5


class NotSeen(AssertionError):
    """Something that had to happen did not."""


@dataclass(frozen=True, slots=True)
class Said:
    """How one call ended."""

    status: int
    out: str
    err: str
    took_s: float

    @property
    def text(self) -> str:
        """Both streams, stripped."""
        return (self.out + self.err).strip()


@dataclass(slots=True)
class Kvctl:
    """One operator: a state folder and a transcript."""

    command: tuple[str, ...]
    state: Path
    transcript: Path

    def call(self, *words: str, expect: int | None = 0, within_s: float = 300.0) -> Said:
        """Run a verb to its end and write down what it printed.

        Raises:
            NotSeen: It ended with another status than `expect` (None: any).
        """
        started = time.monotonic()
        done = subprocess.run(
            [*self.command, "--state-dir", str(self.state), *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=within_s,
            check=False,
        )
        said = Said(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
        self.note(f"$ kvctl {' '.join(words)}\n{said.text}\n[{said.status}, {said.took_s:.1f} s]")
        if expect is not None and said.status != expect:
            raise NotSeen(f"kvctl {' '.join(words)}: status {said.status}: {said.text[-600:]}")
        return said

    def note(self, text: str) -> None:
        """Add to the transcript and show it."""
        stamp = time.strftime("%H:%M:%S")
        with self.transcript.open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {text}\n\n")
        shown = text if len(text) < 1500 else f"{text[:700]}\n …\n{text[-700:]}"
        print(f"{stamp} {shown}", flush=True)

    def read(self, *words: str) -> dict[str, Any]:
        """Return the document of a reading verb, without a transcript."""
        done = subprocess.run(
            [*self.command, "--state-dir", str(self.state), *words, "--json"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        try:
            document: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise NotSeen(f"kvctl {' '.join(words)} --json: {done.stderr.strip()}") from None
        return document

    def wait(
        self, what: str, is_so: Callable[[dict[str, Any]], object], within_s: float
    ) -> tuple[float, dict[str, Any]]:
        """Return the seconds until `status --json` showed it, and that document.

        Raises:
            NotSeen: It did not within the time.
        """
        started = time.monotonic()
        while True:
            status = self.read("status")
            took = time.monotonic() - started
            if is_so(status):
                self.note(f"seen after {took:.1f} s: {what}")
                return took, status
            if took > within_s:
                run, server = status["run"], (status["servers"] or [{}])[0]
                raise NotSeen(
                    f"not within {within_s:.0f} s: {what}; "
                    f"run {run['state']} ({run.get('reason')}), "
                    f"server {server.get('state')} ({server.get('state_reason')})"
                )
            time.sleep(POLL_S)
