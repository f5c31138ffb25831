"""Reads what the preflight needs to know: interpreter, model folder, port, disks, memory, limits.

Everything is read, nothing is changed. What cannot be read is None, never a guess.
"""

import asyncio
import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvctl.core.domain.gpus.devices import GpuView, ProcessFacts
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.ports import Processes
from kvctl.core.servers.flags.catalogue import Installed, InterpreterProblem
from kvctl.core.servers.flags.interpreters import Interpreters
from kvctl.core.servers.preflight.types import Facts, ModelFacts, PortFacts, Replaced

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the caller knows already and what it wants read where."""

    gpus: GpuView
    log_folder: Path
    environment: Mapping[str, str]
    """kvctl's own."""
    replaced: Replaced | None = None
    managed_ports: Mapping[int, str] | None = None
    """Port -> name of the other servers that kvctl manages."""
    interpreters: Interpreters = field(default_factory=Interpreters)


async def gather_facts(
    plan: LaunchPlan, around: Surroundings, processes: Processes, proc: Path = Path("/proc")
) -> Facts:
    """Read the facts of one launch, in threads."""
    return await asyncio.to_thread(read_facts, plan, around, processes, proc)


def read_facts(
    plan: LaunchPlan, around: Surroundings, processes: Processes, proc: Path = Path("/proc")
) -> Facts:
    """Read the facts of one launch. Blocks: the interpreter is asked (0.1 s, up to 20 s)."""
    installed, problem = _interpreter(plan, around)
    log_problem, log_free = _disk(around.log_folder)
    return Facts(
        gpus=around.gpus,
        port=port_facts(plan.port, around.replaced, processes, proc),
        replaced=around.replaced,
        installed=installed,
        interpreter_problem=problem,
        model=_model(plan),
        log_folder=str(around.log_folder),
        log_problem=log_problem,
        log_free_bytes=log_free,
        available_ram_bytes=_available_ram(proc),
        shm_free_bytes=_free_bytes(Path("/dev/shm")),
        open_files_limit=_open_files(),
        managed_ports=around.managed_ports,
    )


def _interpreter(plan: LaunchPlan, around: Surroundings) -> tuple[Installed | None, str | None]:
    if not plan.is_direct:
        return None, _command_problem(plan, around.environment)
    environment = {**around.environment, **dict(plan.env)}
    try:
        return around.interpreters.installed(plan.argv[0], environment), None
    except InterpreterProblem as problem:
        return None, f"{problem}; correct [launch] python"


def _command_problem(plan: LaunchPlan, environment: Mapping[str, str]) -> str | None:
    """Return why the first word of a command template cannot be run here, None if it can."""
    if plan.is_observed_only:
        return None
    program = plan.argv[0]
    path = {**environment, **dict(plan.env)}.get("PATH")
    if shutil.which(program, path=path) is not None:
        return None
    return f"{program} is not a program that can be run here; correct [launch] command"


def _model(plan: LaunchPlan) -> ModelFacts | None:
    """Look at the model folder; None for a hub id and for what a command sees elsewhere."""
    if plan.model_path is None:
        return None
    path = Path(plan.model_path)
    if not path.exists():
        is_path = path.is_absolute() or plan.model_path.startswith((".", "~"))
        return ModelFacts(exists=False) if is_path and plan.is_direct else None
    try:
        weights = (
            [e for e in os.scandir(path) if e.name.endswith(_WEIGHTS)] if path.is_dir() else []
        )
        return ModelFacts(
            exists=True,
            is_readable=os.access(path, os.R_OK | os.X_OK),
            has_config=os.access(path / "config.json", os.R_OK) or path.suffix == ".gguf",
            shards=len(weights) or int(path.suffix == ".gguf"),
            weight_bytes=sum(entry.stat().st_size for entry in weights),
        )
    except OSError:
        return ModelFacts(exists=True)


def _disk(folder: Path) -> tuple[str | None, int | None]:
    """Return (why the folder cannot be written, free bytes)."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not os.access(nearest, os.W_OK | os.X_OK):
        return "not writable by this user", _free_bytes(nearest)
    return None, _free_bytes(nearest)


def _free_bytes(folder: Path) -> int | None:
    try:
        state = os.statvfs(folder)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


def _available_ram(proc: Path) -> int | None:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(words[1]) * 1024 for words in found), None)


def _open_files() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if limit == resource.RLIM_INFINITY else limit


def port_facts(
    port: int, replaced: Replaced | None, processes: Processes, proc: Path = Path("/proc")
) -> PortFacts:
    """Find who listens on a TCP port, from /proc alone: nothing is bound or connected to."""
    sockets = _listening_sockets(port, proc)
    if not sockets:
        return PortFacts(is_taken=False)
    likely = replaced.identity.pid if replaced is not None and replaced.identity else None
    pid = _process_with(sockets, proc, likely)
    facts = processes.facts(pid) if pid is not None else None
    is_ours = facts is not None and replaced is not None and _belongs_to(facts, replaced)
    return PortFacts(True, pid, facts.title if facts else "", is_ours)


def _belongs_to(facts: ProcessFacts, replaced: Replaced) -> bool:
    """Whether a process is the server or, where it leads a session of its own, in that session."""
    server = replaced.identity
    if server is None:
        return False
    leads = replaced.session == server.pid
    return facts.identity == server or (leads and facts.session == replaced.session)


def _listening_sockets(port: int, proc: Path) -> frozenset[str]:
    """Return "socket:[inode]" of the listeners on a port, IPv4 and IPv6."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            local, state, inode = words[1], words[3], words[9]
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                found.add(f"socket:[{inode}]")
    return frozenset(found)


def _process_with(sockets: frozenset[str], proc: Path, likely: int | None) -> int | None:
    """Return the likely or the lowest pid that has one of these open, None if none is visible."""
    if likely is not None and _has_open(likely, sockets, proc):
        return likely
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return next((pid for pid in pids if _has_open(pid, sockets, proc)), None)


def _has_open(pid: int, sockets: frozenset[str], proc: Path) -> bool:
    try:
        with os.scandir(proc / str(pid) / "fd") as entries:
            return any(_target(entry.path) in sockets for entry in entries)
    except OSError:
        return False


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
