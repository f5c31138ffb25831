"""The flags of a server that runs: SGLang's own defaults, and what it resolved for itself."""

from kvctl.core.controller.host import Host
from kvctl.core.controller.state import ServerRecord
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.presets.flags import FlagCatalogue
from kvctl.core.domain.servers.server import LaunchFlag
from kvctl.core.domain.telemetry.readings import ServerInfo
from kvctl.core.servers.flags.catalogue import InterpreterProblem, locate, read_catalogue


def defaults_of(host: Host, record: ServerRecord, version: str | None) -> FlagCatalogue | None:
    """Return the catalogue of exactly this version; None where it cannot be read here.

    Blocks up to some seconds: called in a thread.
    """
    python = _interpreter(host, record)
    if python is None or version is None:
        return None
    try:
        installed = locate(python, host.presets.environment)
    except InterpreterProblem:
        return None
    if installed is None or installed.version != version:
        return None  # another version's defaults would be told as this one's
    return read_catalogue(installed)


def _interpreter(host: Host, record: ServerRecord) -> str | None:
    """Return the Python of the preset, else the one that the process was started with."""
    if record.preset is not None:
        try:
            plan = host.presets.shown_plan(host.presets.read(record.preset))
        except KvctlError:
            return None  # the preset has gone or was changed since
        return plan.argv[0] if plan.is_direct and plan.argv else None
    facts = None if record.pid is None else host.processes.facts(record.pid)
    word = facts.title.split(" ")[0] if facts is not None else ""
    return word if "python" in word.rpartition("/")[2] and word.startswith("/") else None


def with_resolved(flags: tuple[LaunchFlag, ...], info: ServerInfo) -> tuple[LaunchFlag, ...]:
    """Return the preset's flags plus what the server resolved for the levers it left open."""
    named = {flag.name for flag in flags}
    levers = ("mem-fraction-static", "kv-cache-dtype", "max-running-requests", "attention-backend")
    extra = [
        LaunchFlag(name, str(value), "resolved")
        for name in levers
        if name not in named and (value := info.flags.get(name.replace("-", "_"))) is not None
    ]
    return (*flags, *extra)
