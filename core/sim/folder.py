"""The simulated host's folder: who holds how much of which GPU, and how busy each server is.

    holders/<pid>.json    {pid, start_ticks, gpu, bytes, title}
    activity/<pid>.json   {pid, start_ticks, gpus, load}     one a server, pid of its main process
    scenario              name of the scenario whose lengths apply
    leave-leftover        a GPU number: its scheduler is left behind when the server ends

A record counts only while that very process (pid and start time) is alive, so memory is given
back by a death, however it came.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class MemoryHolder:
    """A process and the memory it holds on one simulated GPU."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""
    gpu: int
    memory_bytes: int
    title: str


@dataclass(frozen=True, slots=True)
class Activity:
    """How hard a server works its GPUs."""

    pid: int
    start_ticks: int
    gpus: tuple[int, ...]
    load: float
    """0 idle to 1 full batches."""


class HostFolder:
    """Reads and writes the records of one simulated host."""

    def __init__(self, path: Path) -> None:
        """Use this folder; its parts are made when first written."""
        self.path = path

    def write_holder(self, holder: MemoryHolder) -> None:
        """Say that a process holds memory; replaces what was said of that pid."""
        record = {
            "pid": holder.pid,
            "start_ticks": holder.start_ticks,
            "gpu": holder.gpu,
            "bytes": holder.memory_bytes,
            "title": holder.title,
        }
        _write(self.path / "holders" / f"{holder.pid}.json", record)

    def holders(self) -> list[MemoryHolder]:
        """Return the holders that are alive, by GPU and pid; forget the dead ones."""
        alive: list[MemoryHolder] = []
        for record in self._living("holders"):
            alive.append(
                MemoryHolder(
                    record["pid"],
                    record["start_ticks"],
                    record["gpu"],
                    record["bytes"],
                    record["title"],
                )
            )
        return sorted(alive, key=lambda holder: (holder.gpu, holder.pid))

    def write_activity(self, activity: Activity) -> None:
        """Say how busy a server is."""
        record = {
            "pid": activity.pid,
            "start_ticks": activity.start_ticks,
            "gpus": list(activity.gpus),
            "load": round(activity.load, 3),
        }
        _write(self.path / "activity" / f"{activity.pid}.json", record)

    def activities(self) -> list[Activity]:
        """Return the activity of the servers that are alive."""
        return [
            Activity(r["pid"], r["start_ticks"], tuple(r["gpus"]), r["load"])
            for r in self._living("activity")
        ]

    def scenario_name(self) -> str | None:
        """Return the scenario that this host plays, None if none was set."""
        try:
            return (self.path / "scenario").read_text("utf-8").strip() or None
        except OSError:
            return None

    def write_scenario_name(self, name: str) -> None:
        """Set the scenario whose length laws the servers of this host use."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "scenario").write_text(name + "\n", "utf-8")

    def take_leftover_request(self) -> int | None:
        """Return the GPU whose scheduler is to be left behind, once; None if none is asked for."""
        request = self.path / "leave-leftover"
        try:
            gpu = int(request.read_text("utf-8"))
            request.unlink()
        except (OSError, ValueError):
            return None
        return gpu

    def ask_for_leftover(self, gpu: int) -> None:
        """Ask the next server that ends to leave the scheduler of a GPU behind."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "leave-leftover").write_text(f"{gpu}\n", "utf-8")

    def _living(self, kind: str) -> list[dict[str, Any]]:
        living: list[dict[str, Any]] = []
        for path in sorted((self.path / kind).glob("*.json")):
            try:
                record = json.loads(path.read_text("utf-8"))
            except (OSError, ValueError):
                continue
            if start_ticks(record["pid"]) == record["start_ticks"]:
                living.append(record)
            else:
                path.unlink(missing_ok=True)
        return living


def start_ticks(pid: int) -> int | None:
    """Return when a live process started, ticks after boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return None
    fields: Sequence[str] = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _write(path: Path, record: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(json.dumps(record), "utf-8")
    scratch.replace(path)
