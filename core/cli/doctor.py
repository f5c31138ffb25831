"""`kvctl doctor`: looks at this host and says, one line each, what is right and what to do."""

import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvctl.core.cli.session import Session
from kvctl.core.clock import RealClock
from kvctl.core.daemon.lock import holder_pid, is_locked
from kvctl.core.daemon.paths import file_system_kind, is_local_file_system
from kvctl.core.daemon.spawn import running
from kvctl.core.domain.errors import KvctlError
from kvctl.core.domain.logs.text import clean_line
from kvctl.core.probes.nvml import NvmlSource
from kvctl.core.probes.processes import HostProcesses
from kvctl.core.servers.config import read_config
from kvctl.core.servers.presets.store import PresetStore, preset_folders
from kvctl.core.servers.processes.discover import discover

_PACKAGES = ("textual", "httpx", "aiohttp", "psutil", "nvidia-ml-py", "msgspec")
_ENOUGH_FILES = 4096
"""Open files for about 1,900 requests in flight (two each and some)."""
_OWN_PID_NAMESPACE = "pid:[4026531836]"
"""The host's own pid namespace, the same on every Linux (PROC_PID_INIT_INO)."""


class Mark(StrEnum):
    """How a check ended."""

    FINE = "ok"
    NOTE = "note"
    """Works, with a limit that is said."""
    WRONG = "wrong"


_SIGNS = {Mark.FINE: "✓", Mark.NOTE: "!", Mark.WRONG: "✗"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor."""

    mark: Mark
    subject: str
    text: str
    """What was seen."""
    advice: str = ""
    """What to do, "" where nothing is to be done."""


def doctor(session: Session) -> int:
    """Print every finding; exit 1 if something is wrong."""
    findings = [finding for check in _CHECKS for finding in check(session)]
    if session.wants_json():
        session.document({"findings": [asdict(finding) for finding in findings]})
    else:
        signs = _SIGNS if _can_print_signs(session) else {mark: mark.value for mark in Mark}
        for f in findings:
            advice = f"; {f.advice}" if f.advice else ""
            session.say(clean_line(f"{signs[f.mark]} {f.subject}: {f.text}{advice}"))
    return 1 if any(finding.mark is Mark.WRONG for finding in findings) else 0


def _can_print_signs(session: Session) -> bool:
    try:
        "✓✗".encode(session.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _python(_: Session) -> Iterator[Finding]:
    text = f"{platform.python_version()} at {sys.executable}"
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield (
        Finding(Mark.FINE, "python", text)
        if fits
        else Finding(Mark.NOTE, "python", text, "kvctl is tested on 3.11 to 3.13")
    )
    missing = [name for name in _PACKAGES if _version(name) is None]
    seen = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES if name not in missing)
    yield (
        Finding(Mark.WRONG, "packages", f"missing: {', '.join(missing)}", "install kvctl again")
        if missing
        else Finding(Mark.FINE, "packages", f"kvctl {_version('kvctl') or 'from source'}, {seen}")
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpus(_: Session) -> Iterator[Finding]:
    source = NvmlSource()
    reading = source.read(RealClock().monotonic())
    source.close()
    if reading.problem:
        yield Finding(
            Mark.NOTE, "GPUs", reading.problem, "servers elsewhere and the demo work without"
        )
        return
    bad = [f"GPU {d.index}: {d.problem}" for d in reading.devices if d.problem]
    names = sorted({device.name for device in reading.devices})
    text = f"{len(reading.devices)} ({', '.join(names)}), driver {reading.driver or 'unknown'}"
    yield Finding(Mark.FINE, "GPUs", text)
    yield from (Finding(Mark.WRONG, "GPUs", line, "see dmesg for Xid lines") for line in bad)


def _state_folder(session: Session) -> Iterator[Finding]:
    paths = session.paths
    kind = file_system_kind(paths.state) or "unknown file system"
    where = f"{paths.state} ({kind})"
    if not is_local_file_system(paths.state):
        yield Finding(
            Mark.NOTE, "state folder", f"{where}, not local", f"socket and lock: {paths.runtime}"
        )
    elif not _is_writable(paths.state):
        yield Finding(
            Mark.WRONG, "state folder", f"{where} is not writable", "choose one with --state-dir"
        )
    else:
        yield Finding(Mark.FINE, "state folder", where)


def _is_writable(path: Path) -> bool:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return os.access(existing, os.W_OK | os.X_OK)


def _daemon(session: Session) -> Iterator[Finding]:
    paths = session.paths
    try:
        info = running(paths)
    except KvctlError as error:
        yield Finding(Mark.WRONG, "kvctld", str(error))
        return
    if info is not None:
        yield Finding(Mark.FINE, "kvctld", f"{info.version}, pid {info.pid}, {info.socket}")
    elif is_locked(paths.lock):
        pid = holder_pid(paths.lock)
        yield Finding(
            Mark.WRONG,
            "kvctld",
            f"pid {pid} holds {paths.lock} and does not answer",
            f"see {paths.log}, then kill {pid}",
        )
    else:
        yield Finding(Mark.FINE, "kvctld", "does not run; the first verb that needs it starts it")


def _survival(session: Session) -> Iterator[Finding]:
    """Does what kvctl starts live on when the last login ends?"""
    cgroup = _read("/proc/self/cgroup")
    user = session.environ.get("USER") or str(os.getuid())
    if "slurm" in cgroup or "SLURM_JOB_ID" in session.environ:
        yield Finding(
            Mark.NOTE,
            "survival",
            "inside a Slurm job: kvctld and its servers end with the job's cgroup",
        )
    if not Path("/run/systemd/system").exists():
        yield Finding(Mark.FINE, "survival", "no systemd here that ends processes at logout")
    elif Path(f"/var/lib/systemd/linger/{user}").exists() or os.getuid() == 0:
        yield Finding(Mark.FINE, "survival", f"processes of {user} outlive the last logout")
    elif _kills_user_processes():
        yield Finding(
            Mark.WRONG,
            "survival",
            "logind has KillUserProcesses=yes: kvctld ends at the last logout",
            f"loginctl enable-linger {user}, then kvctl daemon install",
        )
    else:
        yield Finding(
            Mark.NOTE, "survival", "no linger", f"to be sure: loginctl enable-linger {user}"
        )


def _kills_user_processes() -> bool:
    files = [Path("/etc/systemd/logind.conf"), *Path("/etc/systemd/logind.conf.d").glob("*.conf")]
    lines = [line.strip().lower() for file in files for line in _read(str(file)).splitlines()]
    set_to = [line.partition("=")[2] for line in lines if line.startswith("killuserprocesses=")]
    return bool(set_to) and set_to[-1] in ("yes", "true", "1", "on")


def _namespace(_: Session) -> Iterator[Finding]:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = _OWN_PID_NAMESPACE
    if namespace == _OWN_PID_NAMESPACE:
        yield Finding(Mark.FINE, "container", "no: the host's own pid namespace")
    else:
        yield Finding(
            Mark.NOTE,
            "container",
            "own pid namespace: pids that the driver lists may not be visible here",
            "start the container with --pid=host to see and end GPU processes",
        )


def _open_files(_: Session) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{_files(soft)} (hard limit {_files(hard)})"
    if hard == resource.RLIM_INFINITY or hard >= _ENOUGH_FILES:
        yield Finding(Mark.FINE, "open files", text)
    else:
        slots = max(0, (hard - 256) // 2)
        yield Finding(
            Mark.NOTE, "open files", f"{text}: about {slots} requests in flight", "raise ulimit -n"
        )


def _files(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _servers(_: Session) -> Iterator[Finding]:
    found = discover(HostProcesses())
    for server in found:
        yield Finding(
            Mark.FINE,
            "SGLang",
            f"pid {server.identity.pid} at {server.url}",
            f"watch it with: kvctl server adopt {server.url}",
        )
    if not found:
        yield Finding(Mark.FINE, "SGLang", "no server runs here")


def _config(session: Session) -> Iterator[Finding]:
    path = session.paths.config / "config.toml"
    try:
        rules = read_config(path).rules
        here = f"{path}, {len(rules)} rules" if path.exists() else f"{path} is absent: no rules"
        yield Finding(Mark.FINE, "config", here)
    except KvctlError as error:
        yield Finding(Mark.WRONG, "config", str(error))


def _presets(session: Session) -> Iterator[Finding]:
    listed = PresetStore(preset_folders(session.paths.config), session.environ).listed()
    broken = [preset for preset in listed if preset.preset is None]
    yield Finding(Mark.FINE, "presets", f"{len(listed) - len(broken)} readable")
    for preset in broken:
        yield Finding(Mark.WRONG, "presets", str(preset.problems[0]))


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


_CHECKS: tuple[Callable[[Session], Iterator[Finding]], ...] = (
    _python,
    _gpus,
    _state_folder,
    _daemon,
    _survival,
    _namespace,
    _open_files,
    _servers,
    _config,
    _presets,
)
