"""An exported file is there whole or not at all, and replaces nothing unasked."""

import gzip
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.runs.export.outfile import whole_file


def write(target: Path, data: bytes = b"{}\n", *, force: bool = False) -> None:
    with whole_file(target, force=force) as sink:
        sink.write(data)


def test_the_file_appears_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    with whole_file(target) as sink:
        sink.write(b"{}\n")
        assert not target.exists()
    assert target.read_bytes() == b"{}\n"
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_nothing_is_left_of_a_file_whose_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "a.jsonl") as sink:
        sink.write(b"{}\n")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    target.write_text("old")
    with pytest.raises(CommandRefused, match="--force"):
        write(target)
    assert target.read_text() == "old"
    write(target, force=True)
    assert target.read_bytes() == b"{}\n"


def test_a_file_that_comes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    with pytest.raises(CommandRefused, match="--force"), whole_file(target) as sink:
        sink.write(b"{}\n")
        target.write_text("someone else's")
    assert target.read_text() == "someone else's"
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_a_forced_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(target, force=True) as sink:
        sink.write(b"{}\n")
        raise ZeroDivisionError
    assert target.read_text() == "old"


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "real.jsonl").write_text("old")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    write(tmp_path / "link.jsonl", force=True)
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "real.jsonl").read_bytes() == b"{}\n"


def test_gzip_holds_the_same_bytes_each_time(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.gz", b"line\n")
    write(tmp_path / "b.jsonl.gz", b"line\n")
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    assert packed == (tmp_path / "b.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == b"line\n"


def test_zstd_is_written_or_its_package_named(tmp_path: Path) -> None:
    try:
        write(tmp_path / "a.jsonl.zst", b"line\n")
    except UsageError as error:
        assert "kvctl[zstd]" in str(error) and os.listdir(tmp_path) == []
    else:
        assert (tmp_path / "a.jsonl.zst").read_bytes().startswith(b"\x28\xb5\x2f\xfd")


def test_a_device_is_written_to_and_stays_a_device(tmp_path: Path) -> None:
    write(Path(os.devnull), force=True)
    assert not Path(os.devnull).is_file()


def test_a_folder_or_a_missing_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        write(tmp_path)
    with pytest.raises(UsageError, match="there is no such folder"):
        write(tmp_path / "none" / "a.jsonl")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(KvctlError, match=r"a\.jsonl: cannot be written: File too large"):
            write(tmp_path / "a.jsonl", b"x" * 10_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from kvctl.core.runs.export.outfile import whole_file
with whole_file(Path(sys.argv[1])) as sink:
    sink.write(b"x" * 3_000_000)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_export_leaves_no_file_under_its_name(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "a.jsonl")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "a.jsonl").exists()
