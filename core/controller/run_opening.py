"""What a run is told about its servers when it is opened or a server is reached again."""

from pathlib import Path

from kvctl.core.controller.server_desk import ServerDesk
from kvctl.core.controller.server_watch import ServerWatch
from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.outcomes import numerics_of
from kvctl.core.domain.runfile import RunSpec
from kvctl.core.runs.opening import OpenOptions
from kvctl.core.runs.slots import ServerFacts


def resolve_servers(spec: RunSpec, servers: ServerDesk) -> tuple[str, ...]:
    """Return the URLs of a run's servers, names resolved; none named: the only one there is."""
    if spec.attach is not None:
        raise RunFileError(f"{spec.path}: [attach] runs are only counted, they cannot be started")
    if not spec.servers:
        return (servers.by_name(None).record.url,)
    return tuple(_url(name, spec, servers) for name in spec.servers)


def _url(name: str, spec: RunSpec, servers: ServerDesk) -> str:
    if "://" in name:
        return name.rstrip("/")
    watch = servers.watches.get(name)
    if watch is None:
        there = ", ".join(sorted(servers.watches)) or "none"
        raise RunFileError(f"{spec.path}: server {name!r} is not known here; there are: {there}")
    return watch.record.url


def open_options(watch: ServerWatch | None, force: bool) -> OpenOptions:
    """Return what the server says of its model, as far as a run checks against it."""
    if watch is None or watch.info is None:
        return OpenOptions(force=force)
    flags = watch.info.flags
    model = flags.get("model_path")
    folder = model if isinstance(model, str) and Path(model).is_dir() else None
    version = flags.get("weight_version")
    return OpenOptions(
        force=force,
        model_folder=folder,
        context_tokens=watch.startup.context_tokens,
        model=model if isinstance(model, str) else None,
        weight_version=version if isinstance(version, str) else None,
    )


def facts_of(watch: ServerWatch) -> ServerFacts | None:
    """Return what a server is now, None before it has said so."""
    if watch.info is None:
        return None
    flags = watch.info.flags
    version = flags.get("weight_version")
    weight_version = version if isinstance(version, str) else None
    model = flags.get("model_path")
    return ServerFacts(
        model=model if isinstance(model, str) else None,
        weight_version=weight_version,
        launch=watch.launch,
        numerics=numerics_of(flags, weight_version),
    )
