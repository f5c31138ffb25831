"""The child processes of a simulated server: one scheduler a GPU, and a detokenizer.

They do nothing but sleep under the title a real one has, and hold simulated memory as long as
they live. They die with their parent (PDEATHSIG), except one that is told to be left behind.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvctl.core.sim.folder import HostFolder, MemoryHolder, start_ticks

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Rank:
    """One scheduler process."""

    number: int
    gpu: int
    title: str
    process: "subprocess.Popen[bytes]"
    memory_bytes: int = 0
    is_left_behind: bool = False


@dataclass(slots=True)
class Ranks:
    """All child processes of one server."""

    gpus: Sequence[int]
    folder: HostFolder | None
    """None: memory is not recorded anywhere."""
    ranks: list[Rank] = field(default_factory=list)
    detokenizer: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start every child."""
        for number, gpu in enumerate(self.gpus):
            title = f"sglang::scheduler_TP{number}" if len(self.gpus) > 1 else "sglang::scheduler"
            self.ranks.append(Rank(number, gpu, title, spawn_titled(title)))
        self.detokenizer = spawn_titled("sglang::detokenizer")

    def taken_bytes(self, gpu: int) -> int:
        """Return what processes that are not ours hold on a GPU."""
        if self.folder is None:
            return 0
        own = {rank.process.pid for rank in self.ranks}
        others = (holder for holder in self.folder.holders() if holder.pid not in own)
        return sum(holder.memory_bytes for holder in others if holder.gpu == gpu)

    def hold(self, memory_bytes: int) -> None:
        """Let every rank hold that much memory."""
        for rank in self.ranks:
            if not rank.is_left_behind:
                rank.memory_bytes = memory_bytes
                self._record(rank)

    def leave_behind(self, gpu: int, memory_bytes: int) -> bool:
        """Put in a scheduler for a GPU that outlives the server and ignores SIGTERM."""
        rank = next((rank for rank in self.ranks if rank.gpu == gpu), None)
        if rank is None or rank.is_left_behind:
            return False
        _end(rank.process)
        rank.process = spawn_titled(rank.title, outlives=True)
        rank.is_left_behind = True
        rank.memory_bytes = memory_bytes
        self._record(rank)
        return True

    def first_dead(self) -> Rank | None:
        """Return a scheduler that has ended by itself, None while all live."""
        return next((rank for rank in self.ranks if rank.process.poll() is not None), None)

    def end(self) -> None:
        """Kill every child that is not to be left behind, and wait for it."""
        for rank in self.ranks:
            if not rank.is_left_behind:
                _end(rank.process)
        if self.detokenizer is not None:
            _end(self.detokenizer)

    def _record(self, rank: Rank) -> None:
        ticks = start_ticks(rank.process.pid)
        if self.folder is not None and ticks is not None:
            self.folder.write_holder(
                MemoryHolder(rank.process.pid, ticks, rank.gpu, rank.memory_bytes, rank.title)
            )


def spawn_titled(title: str, *, outlives: bool = False) -> "subprocess.Popen[bytes]":
    """Start a sleeping process whose command line begins with `title`."""
    sleeper = shutil.which("sleep")
    if sleeper and os.path.basename(os.path.realpath(sleeper)) == "sleep":
        command, program = [title, "infinity"], sleeper
    else:  # a multi-call binary would look at argv[0] for what to do
        command = [title, "-I", "-S", "-c", "import signal; signal.pause()"]
        program = sys.executable
    return subprocess.Popen(
        command,
        executable=program,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_ignore_sigterm if outlives else _die_with_parent(),
    )


def _die_with_parent() -> Callable[[], None]:
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return prepare


def _ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # an ignored signal stays ignored through exec


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
