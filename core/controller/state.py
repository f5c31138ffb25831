"""What kvctld must remember over its own death: its servers, its run, what it changed.

One small JSON file in the state folder, replaced atomically. The journal, not this file, is
the truth about responses; this only says where to look.
"""

import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from kvctl.core.controller.commands import WaitHow
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.servers.server import Stage, StageState


@dataclass(slots=True)
class ServerRecord:
    """A server kvctl launched or adopted."""

    name: str
    url: str
    is_managed: bool
    pid: int | None = None
    start_ticks: int | None = None
    session: int | None = None
    preset: str | None = None
    log_path: str | None = None
    launched_wall: float | None = None
    launch_id: str | None = None
    gpu_uuids: tuple[str, ...] = ()
    """GPUs it was given; empty means every GPU of the host."""
    tree: list[tuple[int, int]] = field(default_factory=list)
    """(pid, start ticks) of every process of it that was seen."""
    is_ended: bool = False
    """Its stop was carried out, or it was seen dead."""
    ended_wall: float | None = None
    """UTC seconds when its process was first seen to be gone; None while it lives."""
    ready_seen: bool = False
    """It served once."""
    ready_wall: float | None = None
    """UTC seconds when it first did; None where no kvctld saw that."""
    container: str | None = None
    """Id of the container it runs in, where that is not kvctld's own."""
    owner: str | None = None
    """The supervisor that would start it again."""
    owner_command: str | None = None
    """What to type to stop it there; None where that is not known."""
    model_path: str | None = None
    """As the launch named it: a folder here, or a hub id."""
    stop_command: list[str] = field(default_factory=list)
    """What stops a server that is not our child; empty: signals."""
    is_handed_over: bool = False
    """What was launched has ended; pid is the server's that another program started for us."""
    api_key_env: str | None = None
    """Name of the variable that holds the key, never the key."""
    api_key_file: str | None = None
    """Path of the file that holds the key."""
    paused_mode: str | None = None
    """We paused the engine in this mode and must continue it."""
    cap_before: int | None = None
    """The live cap that was there before we changed it."""
    restarts_after_crash: bool | None = None
    """As its preset says; None: as config.toml says."""
    ranks: list[tuple[int, int]] = field(default_factory=list)
    """(pid, start ticks) of the processes that it cannot serve without, once it served."""


@dataclass(slots=True)
class RunRecord:
    """The run that is open."""

    path: str
    """Its run file; what the operator set is kept in the run's own folder."""


class SequenceKind(StrEnum):
    """What is done to a server in several steps."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"


@dataclass(slots=True)
class SequenceRecord:
    """A start, stop or restart that is being carried out, and where it is."""

    kind: SequenceKind
    server: str
    url: str
    preset: str | None = None
    """What is started; None at a stop."""
    how: WaitHow = WaitHow.HARVEST
    cut_foreign: bool = False
    id: str = ""
    """Of the command."""
    began_wall: float = 0.0
    stages: list[Stage] = field(default_factory=list)
    """As they were when the latest one began; times are the monotonic clock's of this boot."""
    launch_id: str | None = None
    """Mark of the process that is started or is about to be."""
    taken_up: int = 0
    """How many later kvctlds have gone on with it."""

    @property
    def doing(self) -> str | None:
        """Name of the stage that was going on."""
        return next((s.name for s in self.stages if s.state is StageState.DOING), None)


@dataclass(slots=True)
class Remembered:
    """The content of state.json."""

    version: int = 1
    servers: list[ServerRecord] = field(default_factory=list)
    ended: list[ServerRecord] = field(default_factory=list)
    """Launches of before, newest last: whose a leftover is."""
    run: RunRecord | None = None
    sequence: SequenceRecord | None = None
    """None: no server is being changed."""
    crash_restarts: dict[str, list[float]] = field(default_factory=dict)
    """Server -> wall times of its automatic restarts, oldest first."""
    last_good_preset: str | None = None
    idle_bytes: dict[str, int] = field(default_factory=dict)
    """Lowest memory seen per GPU uuid while nothing held it."""


@dataclass(slots=True)
class StateFile:
    """Reads and replaces state.json."""

    path: Path

    def load(self) -> Remembered:
        """Return what was remembered; nothing if the file does not exist.

        Raises:
            KvctlError: The file is there but cannot be read; it is left as it is.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return Remembered()
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from None
        try:
            return msgspec.json.decode(data, type=Remembered)
        except msgspec.DecodeError as error:
            raise self._unreadable(str(error)) from None

    def _unreadable(self, why: str) -> KvctlError:
        return KvctlError(
            f"{self.path} cannot be read ({why}): move it away to start without it; "
            "servers and runs are not affected"
        )

    def save(self, remembered: Remembered) -> None:
        """Replace the file atomically and durably."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.path.with_suffix(".tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(handle, msgspec.json.format(msgspec.json.encode(remembered)))
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, self.path)
