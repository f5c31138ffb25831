"""A living kvctld is known by a name that no deleted folder takes away."""

from pathlib import Path

from kvctl.core.daemon.lock import DaemonLock, lives_by_name


def test_the_name_lives_as_long_as_the_lock_is_held_however_often_it_is_asked(
    tmp_path: Path,
) -> None:
    name = f"test-{tmp_path.name}"
    lock = DaemonLock(tmp_path / "lock", name)
    assert not lives_by_name(name)
    lock.acquire()
    (tmp_path / "lock").unlink()
    for _ in range(5):
        assert lives_by_name(name)
        lock.renew_if_lost()
    lock.release()
    assert not lives_by_name(name)
