"""One job on one host: where everything lies, what was seen, what held and what did not."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.kvctl_cli import Kvctl
from tests.gpu.load import Load


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done; every stage reads what it needs."""

    work: Path
    out: Path
    preset: str
    denied: str
    """A preset that the rule forbids."""
    deny: str
    """The rule as FLAG=PATTERN."""
    load: Load
    phases: tuple[str, ...]
    """`auto` or a number of slots each."""
    phase_s: float
    settle_s: float
    """Left out at the head of each phase."""
    rows: int
    """Prompts of the run of the acts."""
    look_s: float
    """Seconds of serving between acts."""
    ends_at: float
    """Monotonic seconds: a phase that could not end by then is not begun."""


@dataclass(slots=True)
class Job:
    """A stage's tools and its report."""

    plan: Plan
    stage: str
    kvctl: Kvctl
    seen: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def check(self, claim: str, holds: object, seen: object = None) -> None:
        """Write down whether a claim holds; a false one does not end the job."""
        self.checks.append({"claim": claim, "holds": bool(holds), "seen": seen})
        self.kvctl.note(f"{'ok  ' if holds else 'FAIL'} {claim}: {seen}")

    @contextmanager
    def act(self, name: str) -> Iterator[dict[str, Any]]:
        """Run one act; what it raises is a failed check, and the next act goes on."""
        self.kvctl.note(f"=== {name}")
        started = time.monotonic()
        found: dict[str, Any] = {}
        try:
            yield found
        except Exception as error:
            self.check(f"{name} ran to its end", False, f"{type(error).__name__}: {error}"[:900])
        finally:
            self.seen[name] = {"took_s": round(time.monotonic() - started, 1), **found}
            self.save()

    def save(self) -> None:
        """Write the report as it stands."""
        document = {"stage": self.stage, "checks": self.checks, "seen": self.seen}
        path = self.plan.out / f"{self.stage}.json"
        path.write_text(json.dumps(document, indent=1, default=str), encoding="utf-8")

    def server(self) -> dict[str, Any]:
        """Return the server as `status --json` shows it now."""
        found: dict[str, Any] = self.kvctl.read("status")["servers"][0]
        return found

    def kvctld_pid(self) -> int:
        """Return the pid of kvctld."""
        return int(self.kvctl.read("daemon", "status")["pid"])


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def open_job(plan: Plan, stage: str) -> Job:
    """Make the folders of a stage; the state folder is shared by all of them."""
    plan.out.mkdir(parents=True, exist_ok=True)
    plan.work.mkdir(parents=True, exist_ok=True)
    command = tuple(os.environ.get("KVCTL", "kvctl").split())
    return Job(plan, stage, Kvctl(command, plan.work / "state", plan.out / f"{stage}.txt"))
