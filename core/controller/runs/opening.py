"""What a run is told about its servers when it is opened or a server is reached again."""

from pathlib import Path

from kvctl.core.controller.servers.desk import ServerDesk
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.domain.errors import RunFileError
from kvctl.core.domain.runs.outcomes import numerics_of
from kvctl.core.domain.runs.run_file import RunSpec
from kvctl.core.runs.opening.opening import OpenOptions
from kvctl.core.runs.outputs.folder import read_settings
from kvctl.core.runs.sending.slots import ServerFacts


def resolve_servers(spec: RunSpec, servers: ServerDesk) -> tuple[str, ...]:
    """Return the URLs of a run's servers, names resolved; none named: the only one there is.

    Servers that the operator has added or removed since stand above the run file, until that
    names others.
    """
    if spec.attach is not None:
        raise RunFileError(f"{spec.path}: [attach] runs are only counted, they cannot be started")
    settings = read_settings(Path(spec.output), None)
    if settings.servers and settings.servers_named == list(spec.servers):
        return tuple(settings.servers)
    if not spec.servers:
        return (servers.by_name(None).record.url,)
    return tuple(server_url(name, spec, servers) for name in spec.servers)


def server_url(name: str, spec: RunSpec, servers: ServerDesk) -> str:
    """Return the URL of a server that is named by URL or by the name it has here.

    Raises:
        RunFileError: No server of that name is watched.
    """
    if "://" in name:
        return name.rstrip("/")
    watch = servers.watches.get(name)
    if watch is None:
        there = ", ".join(sorted(servers.watches)) or "none"
        raise RunFileError(f"{spec.path}: server {name!r} is not known here; there are: {there}")
    return watch.record.url


def open_options(watch: ServerWatch | None, force: bool) -> OpenOptions:
    """Return what is known of the server's model, as far as a run checks against it.

    A server that does not answer (now) still has the model path it was launched with.
    """
    if watch is None:
        return OpenOptions(force=force)
    flags = watch.info.flags if watch.info is not None else {}
    model = _text(flags.get("model_path")) or watch.record.model_path
    return OpenOptions(
        force=force,
        model_folder=model if model is not None and Path(model).is_dir() else None,
        context_tokens=watch.startup.context_tokens,
        model=model,
        weight_version=_text(flags.get("weight_version")),
    )


def facts_of(watch: ServerWatch) -> ServerFacts | None:
    """Return what a server is now, None before it has said so."""
    if watch.info is None:
        return None
    flags = watch.info.flags
    weight_version = _text(flags.get("weight_version"))
    return ServerFacts(
        model=_text(flags.get("model_path")),
        weight_version=weight_version,
        launch=watch.launch,
        numerics=numerics_of(flags, weight_version),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
