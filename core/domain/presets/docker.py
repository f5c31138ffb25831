"""The document of `docker inspect CONTAINER` (podman's too) to a preset that runs it again.

Pure. Format: a list with one object, or that object; Docker Engine API 1.4x. The server then runs
in the foreground of `docker run`, so that its output is kvctl's log file and its end is seen;
`docker stop` stops it. Variables go in by name (`-e NAME`): their values stay in `[env]` and
`[secrets]`, off every command line.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvctl.core.domain.errors import PresetError
from kvctl.core.domain.presets.capture import Captured, assembled, entry_of, kept_of, plain
from kvctl.core.domain.presets.text import is_secret_variable

STOP_S = 600
"""Seconds that `docker stop` waits for the drain before it kills."""
_SHM_DEFAULT = 64 << 20
_FROM_IMAGE = ("PATH", "HOME", "HOSTNAME", "LANG", "LC_ALL", "DEBIAN_FRONTEND", "container")


def preset_of_container(document: Any) -> Captured:  # noqa: ANN401 - JSON
    """Return the preset of an inspected container.

    Raises:
        PresetError: It is no such document, or the container runs no SGLang.
    """
    container = _container(document)
    config, host = _table(container, "Config"), _table(container, "HostConfig")
    name = str(container.get("Name") or "").strip("/") or "sglang"
    entrypoint, command = _words(config.get("Entrypoint")), _words(config.get("Cmd"))
    entry = entry_of([*entrypoint, *command])
    environment = dict(pair.partition("=")[::2] for pair in _words(config.get("Env")))
    passed = kept_of(environment) | {n: v for n, v in environment.items() if is_secret_variable(n)}
    gpus = list(_gpu_ids(host))
    literal = {n: passed.pop(n) for n in ("CUDA_VISIBLE_DEVICES",) if gpus and n in passed}
    program = "podman" if "ImageName" in container else "docker"
    port = str(plain(dict(entry.flags).get("port", 30000)))
    outside = _published(host, port)
    words = [
        *(program, "run", "--rm", "--name", name),
        *_resources(host),
        *_network(host, outside),
        *_mounts(container),
        *_identity(config),
        *(word for n, v in literal.items() for word in ("-e", f"{n}={v}")),
        *(word for n in passed for word in ("-e", n)),
    ]
    image = str(container.get("ImageName") or config.get("Image") or container.get("Image") or "")
    inside = list(entry.template)
    if entrypoint:
        words += ["--entrypoint", inside[0]]
        inside = inside[1:]
    launch: dict[str, Any] = {
        "command": [_escaped(word) for word in [*words, image]] + inside,
        "stop": [program, "stop", "-t", str(STOP_S), name],
    }
    if outside is not None:
        launch["port"] = int(outside[1])
    if gpus:
        launch["gpus"] = gpus
    captured = assembled(f"as container {name} ran ({image})", launch, entry, passed)
    left = sorted(n for n in environment if n not in {*passed, *literal, *_FROM_IMAGE})
    return Captured(captured, tuple(_notes(host, program, name, left)))


def _container(document: Any) -> Mapping[str, Any]:  # noqa: ANN401 - JSON
    found = document[0] if isinstance(document, list) and len(document) == 1 else document
    if isinstance(found, list):
        raise PresetError(f"the document has {len(found)} containers; inspect exactly one")
    if not isinstance(found, Mapping) or not isinstance(found.get("Config"), Mapping):
        raise PresetError("this is no output of `docker inspect CONTAINER`: it has no Config")
    return found


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [str(word) for word in value] if isinstance(value, list) else []


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _resources(host: Mapping[str, Any]) -> Iterator[str]:
    for request in _rows(host.get("DeviceRequests")):
        yield from _gpu_words(request)
    if host.get("Runtime") not in (None, "", "runc"):
        yield from ("--runtime", str(host["Runtime"]))
    if host.get("IpcMode") == "host":
        yield from ("--ipc", "host")
    elif int(host.get("ShmSize") or 0) > _SHM_DEFAULT:
        yield from ("--shm-size", str(host["ShmSize"]))
    if host.get("Privileged"):
        yield "--privileged"
    for limit in _rows(host.get("Ulimits")):
        yield from ("--ulimit", f"{limit.get('Name')}={limit.get('Soft')}:{limit.get('Hard')}")
    for capability in _words(host.get("CapAdd")):
        yield from ("--cap-add", capability)
    for option in _words(host.get("SecurityOpt")):
        yield from ("--security-opt", option)
    for device in _rows(host.get("Devices")):
        yield from ("--device", f"{device.get('PathOnHost')}:{device.get('PathInContainer')}")


def _gpu_words(request: Mapping[str, Any]) -> Sequence[str]:
    ids = _words(request.get("DeviceIDs"))
    if request.get("Driver") == "cdi":
        return [word for id in ids for word in ("--device", id)]
    if ids:
        # The quotes are docker's own: its option is a list of fields with commas.
        return ("--gpus", f'"device={",".join(ids)}"')
    count = int(request.get("Count") or 0)
    return ("--gpus", "all" if count < 0 else str(count))


def _gpu_ids(host: Mapping[str, Any]) -> Iterator[int | str]:
    """Yield the GPUs that were asked for by index or UUID; nothing where all were."""
    for request in _rows(host.get("DeviceRequests")):
        for id in _words(request.get("DeviceIDs")):
            plain_id = id.rpartition("=")[2]
            if plain_id != "all":
                yield int(plain_id) if plain_id.isdigit() else plain_id


def _published(host: Mapping[str, Any], port: str) -> tuple[str, str] | None:
    """Return (address, port) on the host of the server's port; None if it is not published."""
    bindings = _rows(_table(host, "PortBindings").get(f"{port}/tcp"))
    for binding in bindings:
        if str(binding.get("HostPort") or "").isdigit():
            return str(binding.get("HostIp") or ""), str(binding["HostPort"])
    return None


def _network(host: Mapping[str, Any], outside: tuple[str, str] | None) -> Iterator[str]:
    mode = str(host.get("NetworkMode") or "default")
    if mode not in ("default", "bridge"):
        yield from ("--network", mode)
    if outside is not None:
        # The same number inside, so that {port} is one thing everywhere.
        address = f"{outside[0]}:" if outside[0] not in ("", "0.0.0.0", "::") else ""
        yield from ("-p", f"{address}{{port}}:{{port}}")


def _mounts(container: Mapping[str, Any]) -> Iterator[str]:
    for mount in _rows(container.get("Mounts")):
        source = mount.get("Name") if mount.get("Type") == "volume" else mount.get("Source")
        if mount.get("Type") == "tmpfs":
            yield from ("--tmpfs", str(mount.get("Destination")))
        elif source:
            suffix = "" if mount.get("RW", True) else ":ro"
            yield from ("-v", f"{source}:{mount.get('Destination')}{suffix}")


def _identity(config: Mapping[str, Any]) -> Iterator[str]:
    if config.get("User"):
        yield from ("-u", str(config["User"]))
    if config.get("WorkingDir") not in (None, "", "/"):
        yield from ("-w", str(config["WorkingDir"]))


def _escaped(word: str) -> str:
    return word.replace("${", "$${")


def _notes(host: Mapping[str, Any], program: str, name: str, left: Sequence[str]) -> Iterator[str]:
    policy = str(_table(host, "RestartPolicy").get("Name") or "no")
    again = f" ({program} would start it again: its policy is {policy})" if policy != "no" else ""
    yield f"before the first start: {program} rm -f {name}{again}"
    if left:
        yield f"not taken over, most likely the image's own: {', '.join(left)}"
