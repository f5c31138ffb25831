"""Where kvctld lives, whom it trusts, and that only one runs."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvctl.core.daemon.lock import AlreadyRunning, DaemonLock, holder_pid, is_locked
from kvctl.core.daemon.logfile import last_line
from kvctl.core.daemon.paths import (
    LONGEST_SOCKET_PATH,
    DaemonPaths,
    check_socket_folder,
    file_system_kind,
    find_paths,
    is_local_file_system,
    prepare_folders,
)
from kvctl.core.domain.errors import DaemonUnreachable

ME = os.getuid()


def found(
    environ: dict[str, str], state_dir: Path | None = None, local: bool = True
) -> DaemonPaths:
    return find_paths(environ, state_dir=state_dir, host="gpu-07", uid=ME, is_local=lambda _: local)


def test_state_lies_by_host_so_a_shared_home_serves_several() -> None:
    assert found({"HOME": "/home/ada"}).state == Path("/home/ada/.local/state/kvctl/gpu-07")
    assert found({"HOME": "/h", "XDG_STATE_HOME": "/s"}).state == Path("/s/kvctl/gpu-07")


def test_a_relative_xdg_value_is_ignored() -> None:
    paths = found({"HOME": "/h", "XDG_STATE_HOME": "s", "XDG_CONFIG_HOME": "c"})
    assert (paths.state, paths.config) == (
        Path("/h/.local/state/kvctl/gpu-07"),
        Path("/h/.config/kvctl"),
    )


def test_a_state_folder_that_is_given_holds_all_of_it(tmp_path: Path) -> None:
    paths = found({"HOME": "/h"}, tmp_path)
    assert {paths.state, paths.socket.parent, paths.lock.parent, paths.config.parent} == {tmp_path}


def test_a_config_home_that_is_set_counts_with_a_given_state_folder(tmp_path: Path) -> None:
    assert found({"XDG_CONFIG_HOME": "/c"}, tmp_path).config == Path("/c/kvctl")


@pytest.mark.parametrize(("length", "moves"), [(90, False), (200, True)])
def test_a_path_too_long_for_a_socket_moves_it_to_tmp(length: int, moves: bool) -> None:
    state = Path("/" + "x" * (length - len("/kvctld.sock")))
    paths = found({}, state)
    assert (paths.runtime != state) is moves
    assert len(os.fsencode(paths.socket)) <= LONGEST_SOCKET_PATH
    if moves:
        assert paths.runtime.name.startswith(f"kvctl-{ME}-") and paths.runtime.parent == Path(
            "/tmp"
        )
        assert paths.state == state


def test_a_network_file_system_moves_socket_and_lock_to_tmp(tmp_path: Path) -> None:
    paths = found({}, tmp_path, local=False)
    assert paths.socket.parent == paths.lock.parent == paths.runtime
    assert paths.runtime.parent == Path("/tmp")


def test_two_state_folders_never_share_a_folder_under_tmp() -> None:
    long = "/" + "x" * 150
    assert found({}, Path(long + "a")).runtime != found({}, Path(long + "b")).runtime


def test_the_file_system_is_read_from_the_mount_table(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    table = tmp_path / "mountinfo"
    line = "36 35 {}:{} / /x rw - {} server:/x rw\n"
    table.write_text(line.format(os.major(device), os.minor(device), "nfs4"))
    assert file_system_kind(tmp_path / "not" / "there", table) == "nfs4"
    assert file_system_kind(tmp_path, tmp_path / "missing") is None
    assert is_local_file_system(Path("/proc"))


def test_folders_are_made_private_and_made_private_again(tmp_path: Path) -> None:
    paths = DaemonPaths(tmp_path / "a" / "s", tmp_path / "r", tmp_path / "c")
    (tmp_path / "r").mkdir(mode=0o755)
    prepare_folders(paths, ME)
    assert stat.S_IMODE(paths.state.stat().st_mode) == 0o700
    assert stat.S_IMODE(paths.runtime.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["link", "file", "other owner"])
def test_a_socket_folder_somebody_else_could_have_placed_is_refused(
    tmp_path: Path, kind: str
) -> None:
    runtime = tmp_path / "r"
    if kind == "link":
        (tmp_path / "real").mkdir()
        runtime.symlink_to(tmp_path / "real")
    elif kind == "file":
        runtime.write_text("")
    else:
        runtime.mkdir()
    paths = DaemonPaths(tmp_path, runtime, tmp_path)
    uid = ME + 1 if kind == "other owner" else ME
    with pytest.raises(DaemonUnreachable, match="not a folder of this user"):
        check_socket_folder(paths, uid)


@pytest.fixture
def second(paths: DaemonPaths, lock: DaemonLock) -> Iterator[DaemonLock]:
    second = DaemonLock(paths.lock, paths.name_hash)
    yield second
    second.release()


def test_the_lock_names_who_holds_it(paths: DaemonPaths, lock: DaemonLock) -> None:
    assert holder_pid(paths.lock) == os.getpid()
    assert is_locked(paths.lock)
    lock.release()
    assert not is_locked(paths.lock)


def test_a_second_kvctld_is_refused(second: DaemonLock) -> None:
    with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
        second.acquire()


def test_a_deleted_lock_file_lets_no_second_kvctld_in(
    paths: DaemonPaths, lock: DaemonLock, second: DaemonLock
) -> None:
    paths.lock.unlink()
    with pytest.raises(AlreadyRunning):
        second.acquire()
    assert lock.renew_if_lost()
    assert not lock.renew_if_lost()
    assert holder_pid(paths.lock) == os.getpid()


def test_a_lock_file_that_another_took_meanwhile_is_seen(
    paths: DaemonPaths, lock: DaemonLock
) -> None:
    paths.lock.unlink()
    other = DaemonLock(paths.lock, "another-network-namespace")
    other.acquire()
    with pytest.raises(AlreadyRunning):
        lock.renew_if_lost()
    other.release()


def test_the_last_line_with_text_of_a_log_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 10_000 + b"\nfirst\nlast \xff\n\n")
    assert last_line(log) == "last \ufffd"
    assert last_line(tmp_path / "missing") == ""
