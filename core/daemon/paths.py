"""Where kvctld keeps its lock, socket, state and log, and whether those places can be trusted.

All of it lies in one state folder (0700). Only where that folder cannot carry a Unix socket
(path too long, or a network file system) do socket and lock move to a folder under /tmp that is
named by uid and checked for its owner. Not $XDG_RUNTIME_DIR: systemd removes it at the last logout.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvctl.core.domain.errors import DaemonUnreachable

SOCKET_NAME = "kvctld.sock"
LONGEST_SOCKET_PATH = 100
"""Bytes; the kernel's limit is 108, and a suffix must still fit."""
_NETWORK_FILE_SYSTEMS = (
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "gfs2", "glusterfs", "gpfs", "lustre",
    "nfs", "ocfs2", "orangefs", "panfs", "smb", "virtiofs", "wekafs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DaemonPaths:
    """Every place that kvctld and its clients agree on."""

    state: Path
    """The state folder: journal of commands, server records, logs."""
    runtime: Path
    """The folder of socket and lock: `state`, or one under /tmp."""
    config: Path
    """config.toml and the operator's own presets/."""

    @property
    def socket(self) -> Path:
        """The Unix socket."""
        return self.runtime / SOCKET_NAME

    @property
    def lock(self) -> Path:
        """The lock file: who holds it runs."""
        return self.runtime / "kvctld.lock"

    @property
    def log(self) -> Path:
        """Where kvctld's standard output and error go."""
        return self.state / "kvctld.log"

    @property
    def name_hash(self) -> str:
        """Eight hex digits that differ between state folders."""
        return _short_hash(self.state)


def find_paths(
    environ: Mapping[str, str],
    *,
    state_dir: Path | None,
    host: str,
    uid: int,
    is_local: Callable[[Path], bool] | None = None,
) -> DaemonPaths:
    """Work out the paths; creates nothing.

    Args:
        environ: Environment variables of the operator.
        state_dir: The folder given with --state-dir, None for the usual place.
        host: Host name, one folder each on a shared home.
        uid: The operator's user id.
        is_local: Tells whether a path is on a local file system; None asks the kernel.
    """
    state = (
        state_dir or _xdg(environ, "XDG_STATE_HOME", ".local/state") / "kvctl" / host
    ).absolute()
    fits = len(os.fsencode(state / SOCKET_NAME)) <= LONGEST_SOCKET_PATH
    local = (is_local or is_local_file_system)(state)
    runtime = state if fits and local else Path(f"/tmp/kvctl-{uid}-{_short_hash(state)}")
    own_config = state_dir is not None and not environ.get("XDG_CONFIG_HOME")
    config = (
        state / "config" if own_config else _xdg(environ, "XDG_CONFIG_HOME", ".config") / "kvctl"
    )
    return DaemonPaths(state, runtime, config)


def prepare_folders(paths: DaemonPaths, uid: int) -> None:
    """Create the state and runtime folders, private to this user.

    Raises:
        DaemonUnreachable: A folder cannot be made, or belongs to someone else.
    """
    for folder in dict.fromkeys((paths.state, paths.runtime)):
        _make_private(folder, uid)


def check_socket_folder(paths: DaemonPaths, uid: int) -> None:
    """Refuse to talk through a socket folder that another user could have placed.

    Raises:
        DaemonUnreachable: The folder exists and is not this user's own.
    """
    if paths.runtime.is_symlink() or paths.runtime.exists():
        _check_owner(paths.runtime, uid)


def is_local_file_system(path: Path) -> bool:
    """Return whether the nearest existing folder of `path` is on a local file system."""
    kind = file_system_kind(path)
    return kind is None or not kind.startswith(_NETWORK_FILE_SYSTEMS)


def file_system_kind(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the kernel's name of the file system that holds `path`, None if unknown."""
    try:
        device = os.stat(_nearest_existing(path)).st_dev
        lines = mountinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [wanted]:
            return after.split()[0]
    return None


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _xdg(environ: Mapping[str, str], name: str, fallback: str) -> Path:
    # The XDG specification says that a relative value is invalid and must be ignored.
    value = environ.get(name, "")
    if value.startswith("/"):
        return Path(value)
    home = environ.get("HOME", "")
    return (Path(home) if home.startswith("/") else Path.home()) / fallback


def _short_hash(path: Path) -> str:
    return hashlib.blake2s(os.fsencode(path), digest_size=4).hexdigest()


def _make_private(folder: Path, uid: int) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DaemonUnreachable(
            f"the state folder {folder} cannot be made ({error.strerror}); "
            "choose a writable one with --state-dir"
        ) from error
    _check_owner(folder, uid)
    if stat.S_IMODE(folder.stat().st_mode) != 0o700:
        folder.chmod(0o700)


def _check_owner(folder: Path, uid: int) -> None:
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != uid:
        raise DaemonUnreachable(
            f"{folder} is not a folder of this user (owner uid {facts.st_uid}); "
            "move it away or choose another with --state-dir"
        )
