"""What a preflight is told (`Facts`) and what it answers (`PreflightLine`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvctl.core.domain.gpus.devices import GpuView, ProcessIdentity
from kvctl.core.servers.flags.catalogue import Installed


class Check(StrEnum):
    """How one line came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class PreflightLine:
    """One check."""

    ok: Check
    name: str
    """rules, flags, interpreter, model, GPUs, memory, port, log disk, …"""
    text: str
    """What was seen and, if it is not well, what to do."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What lies at the model path."""

    exists: bool
    is_readable: bool = False
    has_config: bool = False
    shards: int = 0
    """Weight files (.safetensors, .bin, .gguf)."""
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PortFacts:
    """Who listens on the port."""

    is_taken: bool
    pid: int | None = None
    """None: nobody, or a process that is not visible here."""
    title: str = ""
    is_ours: bool = False
    """It is the server that this start replaces."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The server that is stopped first, if any."""

    name: str
    identity: ProcessIdentity | None
    session: int | None
    argv: tuple[str, ...] = ()
    """Its command line, for what changes; empty if unknown."""
    owner: str | None = None
    """The supervisor that restarts it (`Owner.restarts` is true); None if none."""
    foreign_requests: int | None = None
    """Requests that are not the run's own; None if unknown."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was read; None where it could not be, with that said in the line."""

    gpus: GpuView
    port: PortFacts
    replaced: Replaced | None = None
    installed: Installed | None = None
    interpreter_problem: str | None = None
    flags_problem: str | None = None
    """Why the flags that this SGLang accepts are not known; None where they are, or unasked."""
    model: ModelFacts | None = None
    """None: the path is not one of this host (a hub id, a container's)."""
    log_folder: str = ""
    log_problem: str | None = None
    """Why the log folder cannot be written."""
    log_free_bytes: int | None = None
    available_ram_bytes: int | None = None
    shm_free_bytes: int | None = None
    open_files_limit: int | None = None
    """The hard limit; SGLang raises the soft one itself."""
    managed_ports: Mapping[int, str] | None = None
    """Port -> name of the other servers that kvctl manages."""
