"""Finds SGLang servers that run on this host, from the process table alone.

Source: `python -m sglang.launch_server`, `sglang serve` (0.5.5+, the model may be positional in
0.5.23) and kvctl's own simulated engine. The title is read exactly from /proc/PID/cmdline where it
is visible. Nothing is asked over the network and nothing is touched.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.domain.gpus.devices import ProcessFacts, ProcessIdentity
from kvctl.core.domain.gpus.supervisors import Owner, container_of, find_owner
from kvctl.core.domain.presets.diff import flags_of_argv
from kvctl.core.domain.presets.launch_plan import DEFAULT_HOST, DEFAULT_PORT, redact
from kvctl.core.domain.presets.preset import canonical
from kvctl.core.ports import Processes

SIMULATED_MODULE = "kvctl.core.sim.server"
_MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server", SIMULATED_MODULE)


@dataclass(frozen=True, slots=True)
class FoundServer:
    """One SGLang server process on this host."""

    identity: ProcessIdentity
    session: int
    url: str
    """From its command line, or SGLang's default address."""
    model: str | None
    argv: tuple[str, ...]
    """With secrets hidden."""
    log_path: str | None
    """The file its standard output goes to; None for a terminal, a pipe, or if not visible."""
    user: str
    uid: int
    owner: Owner | None
    """What would start it again; None if nothing was seen."""
    is_simulated: bool
    container: str | None = None
    """Id of the container it runs in; None if in none."""


def discover(processes: Processes, proc: Path = Path("/proc")) -> tuple[FoundServer, ...]:
    """Return the SGLang servers visible here, by pid."""
    everything = {facts.identity.pid: facts for facts in processes.all_facts()}
    candidates = []
    for facts in everything.values():
        argv = _argv(facts, proc)
        if facts.state != "Z" and is_server(argv):
            candidates.append((facts, argv))
    pids = {facts.identity.pid for facts, _ in candidates}
    # A worker forked from a server has the same command line; the server is the parent.
    heads = [(f, argv) for f, argv in candidates if f.parent_pid not in pids]
    found = [_found(facts, argv, proc, find_owner(facts, everything)) for facts, argv in heads]
    return tuple(sorted(found, key=lambda server: server.identity.pid))


def is_server(argv: Sequence[str]) -> bool:
    """Return whether a command line is a server itself, not a shell or container around it."""
    if not argv:
        return False
    program = os.path.basename(argv[0])
    if program.startswith("python"):
        head = list(argv[1:])
        while len(head) > 1 and head[0].startswith("-") and head[0] != "-m":
            head.pop(0)
        runs_module = len(head) > 1 and head[0] == "-m" and head[1] in _MODULES
        return runs_module or _is_sglang_serve(head)
    return _is_sglang_serve(argv)


def address_of(argv: Sequence[str]) -> tuple[str, int]:
    """Return (host to connect to, port) that a command line gives, SGLang's defaults without."""
    flags = {canonical(name): str(value) for name, value in flags_of_argv(argv)}
    port = flags.get("port", "")
    host = flags.get("host", DEFAULT_HOST)
    reachable = DEFAULT_HOST if host in ("0.0.0.0", "::") else host
    return reachable, int(port) if port.isdigit() else DEFAULT_PORT


def _is_sglang_serve(argv: Sequence[str]) -> bool:
    return len(argv) > 1 and os.path.basename(argv[0]) == "sglang" and argv[1] == "serve"


def _found(
    facts: ProcessFacts, argv: Sequence[str], proc: Path, owner: Owner | None
) -> FoundServer:
    host, port = address_of(argv)
    return FoundServer(
        identity=facts.identity,
        session=facts.session,
        url=f"http://{f'[{host}]' if ':' in host else host}:{port}",
        model=_model(argv),
        argv=redact(argv),
        log_path=_log_path(facts.identity.pid, proc),
        user=facts.user,
        uid=facts.uid,
        owner=owner,
        is_simulated=SIMULATED_MODULE in argv,
        container=container_of(facts.cgroup),
    )


def _model(argv: Sequence[str]) -> str | None:
    flags = {canonical(name): value for name, value in flags_of_argv(argv)}
    model = flags.get("model-path")
    if model is None and "serve" in argv:
        following = argv[list(argv).index("serve") + 1 :]
        model = following[0] if following and not following[0].startswith("-") else None
    return model if isinstance(model, str) else None


def _argv(facts: ProcessFacts, proc: Path) -> tuple[str, ...]:
    try:
        raw = (proc / str(facts.identity.pid) / "cmdline").read_bytes()
    except OSError:
        raw = b""
    words = raw.decode("utf-8", errors="replace").rstrip("\0").split("\0")
    return tuple(words) if raw.strip(b"\0") else tuple(facts.title.split())


def _log_path(pid: int, proc: Path) -> str | None:
    """Return where standard output goes, if it is a regular file that still has its name."""
    try:
        target = os.readlink(proc / str(pid) / "fd" / "1")
    except OSError:
        return None
    return target if target.startswith("/") and Path(target).is_file() else None
