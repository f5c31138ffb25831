"""Who would start a process again if it were ended: found from its cgroup and its parents.

Pure: text and facts in, an `Owner` out. Knows systemd (system and user units), docker, podman,
containerd, cri-o, Kubernetes, Slurm, supervisord and its like, scripts, tmux and screen.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvctl.core.domain.gpus.devices import ProcessFacts, short_title
from kvctl.core.domain.gpus.kinship import ancestors, is_engine, is_spawn_child, program


@dataclass(frozen=True, slots=True)
class Owner:
    """What stands above a process and how it is asked to stop it."""

    text: str
    """Such as "systemd sglang.service", "docker 3f2a9c0d1e4b"."""
    restarts: bool | None
    """True: ended only through it. None: it may start the process again. False: it does not."""
    command: str | None = None
    """What to type to stop the process for good; None if that is not known."""
    pid: int | None = field(default=None, compare=False)
    """The process that starts it, where the owner is one; None for a unit or container."""


_CONTAINER = re.compile(
    r"(?:(?P<kind>docker|libpod|cri-containerd|crio|podman|containerd|nerdctl)[-/:])?"
    r"(?:conmon-)?(?P<id>[0-9a-f]{64})(?:\.scope)?(?=/|$)"
)
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})")
_SLURM = re.compile(r"slurm\S*?/job_(\d+)")
_STEPD = re.compile(r"slurmstepd: \[(\d+)")
_UNIT = re.compile(r"([^/]+\.service)(?=/|$)")
_USER_UNIT = re.compile(r"/user@\d+\.service/(.*)")
_NO_SUPERVISOR = re.compile(
    r"^(user@\d+|user-runtime-dir@\d+|sshd?|ssh@.*|sshd@.*|crond?|atd|dbus.*|getty@.*|serial-getty@.*|slurmd"
    r"|docker|containerd|crio|podman|supervisord?|gdm|sddm|lightdm|display-manager)\.service$"
)
_CONTAINER_STOP = {"docker": "docker stop", "podman": "podman stop", "cri": "crictl stop"}
_KEEPERS = {
    "supervisord": "supervisorctl stop NAME",
    "circusd": "circusctl stop NAME",
    "runsv": "sv down NAME",
    "s6-supervise": "s6-svc -d DIRECTORY",
    "pm2": "pm2 stop NAME",
    "god": "god stop NAME",
}
_SHELLS = re.compile(r"^-?(ba|da|z|k|fi)?sh$")
_TERMINALS = {"tmux": "tmux", "screen": "screen", "SCREEN": "screen"}
_NO_STARTER = re.compile(
    r"^(systemd|init|tini|dumb-init|docker-init|catatonit|conmon|containerd-shim\S*|s6-svscan|runsvdir|launchd"
    r"|sshd|sshd-session|login|su|sudo|kvctl|nohup|setsid)$"
)


def container_of(cgroup: str) -> str | None:
    """Return the first 12 digits of the id of the container a cgroup path names, None for none."""
    found = list(_CONTAINER.finditer(cgroup))
    return found[-1]["id"][:12] if found else None


def find_owner(process: ProcessFacts, facts: Mapping[int, ProcessFacts]) -> Owner | None:
    """Return what stands above a process, None where nothing would start it again."""
    return (
        _container(process.cgroup)
        or _slurm(process, facts)
        or _keeper(process, facts)
        or _unit(process.cgroup)
        or _starter(process, facts)
        or _terminal(process, facts)
    )


def _container(cgroup: str) -> Owner | None:
    found = list(_CONTAINER.finditer(cgroup))
    pod = _POD.search(cgroup)
    if pod is not None:
        name = pod[1].replace("_", "-")
        return Owner(f"kubernetes pod {name}", True, "kubectl delete pod NAME (or scale it to 0)")
    if not found:
        return None
    kind = {"libpod": "podman", "cri-containerd": "cri", "crio": "cri"}.get(
        found[-1]["kind"] or "docker", found[-1]["kind"] or "docker"
    )
    short = found[-1]["id"][:12]
    label = "container" if kind == "cri" else kind
    stop = _CONTAINER_STOP.get(kind)
    return Owner(f"{label} {short}", True, f"{stop} {short}" if stop else None)


def _slurm(process: ProcessFacts, facts: Mapping[int, ProcessFacts]) -> Owner | None:
    found = _SLURM.search(process.cgroup)
    job = found[1] if found else None
    for above in ancestors(process, facts):
        if job is None and (step := _STEPD.match(above.title)):
            job = step[1]
    return Owner(f"slurm job {job}", True, f"scancel {job}") if job else None


def _keeper(process: ProcessFacts, facts: Mapping[int, ProcessFacts]) -> Owner | None:
    for above in ancestors(process, facts):
        words = above.title.split(" ")[:2]
        for name in (program(word) for word in words):
            if name in _KEEPERS:
                pid = above.identity.pid
                return Owner(f"{name} (pid {pid})", True, _KEEPERS[name], pid)
    return None


def _unit(cgroup: str) -> Owner | None:
    inside = _USER_UNIT.search(cgroup)
    units = _UNIT.findall("/" + inside[1] if inside else cgroup)
    if not units or _NO_SUPERVISOR.match(units[-1]):
        return None
    scope = "systemd user unit" if inside else "systemd"
    switch = "--user " if inside else ""
    return Owner(f"{scope} {units[-1]}", True, f"systemctl {switch}stop {units[-1]}")


def _starter(process: ProcessFacts, facts: Mapping[int, ProcessFacts]) -> Owner | None:
    """Return the living program that started it: a script or a launcher can do so again."""
    for above in ancestors(process, facts):
        if is_engine(above.title) or is_spawn_child(above.title):
            continue
        name = program(above.title)
        if above.identity.pid == 1 or _NO_STARTER.match(name) or name in _TERMINALS:
            return None
        if _SHELLS.match(name) and _is_typed_into(above.title):
            return None
        pid = above.identity.pid
        return Owner(f"started by {pid} {short_title(above.title)}", None, pid=pid)
    return None


def _is_typed_into(title: str) -> bool:
    """Return whether a shell runs no script: "bash", "bash --norc -i", but not "bash -c …"."""
    options = title.split()[1:]
    return all(re.match(r"^-(-[a-z-]+|[^cs-]+)$", option) for option in options)


def _terminal(process: ProcessFacts, facts: Mapping[int, ProcessFacts]) -> Owner | None:
    for above in ancestors(process, facts):
        name = _TERMINALS.get(program(above.title))
        if name is not None:
            return Owner(f"{name} (pid {above.identity.pid})", False)
    return None
