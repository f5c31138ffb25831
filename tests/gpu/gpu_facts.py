"""What the driver itself says, through nvidia-smi: kvctl's figures are held against it."""

import csv
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DriverView:
    """One reading of nvidia-smi, summed over the GPUs."""

    used_mib: int
    processes: dict[int, int]
    """Pid -> MiB."""


def read_driver() -> DriverView | None:
    """Ask nvidia-smi; None on a host without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    used = _query("--query-gpu=memory.used")
    rows = _query("--query-compute-apps=pid,used_memory")
    processes = {int(pid): int(memory) for pid, memory in rows if memory.strip().isdigit()}
    return DriverView(sum(int(row[0]) for row in used), processes)


def driver_text() -> str:
    """Return what nvidia-smi shows, without a card's serial identity."""
    if shutil.which("nvidia-smi") is None:
        return "no nvidia-smi on this host"
    words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def _query(what: str) -> list[list[str]]:
    words = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if row]
