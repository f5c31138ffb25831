"""Unpacks a packed SGLang into a folder, one process an archive: `unpack_site.py FROM... INTO`.

FROM are folders that hold `*.tar.xz` (unpacked as they are), `flash_ops.abi3.so.xz` (goes to
sgl_kernel/) and `jit-cache.tgz` (goes to the home folder, where SGLang looks for it). Standard
library only: it runs before anything is installed.
"""

import lzma
import shutil
import sys
import tarfile
import time
from multiprocessing import Process
from pathlib import Path

CHUNK = 1 << 20
LIBRARY = "flash_ops.abi3.so"


def unpack_tar(archive: Path, into: Path) -> None:
    """Unpack one archive."""
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(into, filter="tar")


def unpack_library(packed: Path, into: Path) -> None:
    """Unpack a trimmed library; its blanked gigabyte stays a hole in the file."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(packed) as source, into.open("wb") as target:
        while chunk := source.read(CHUNK):
            if any(chunk):
                target.write(chunk)
            else:
                target.seek(len(chunk), 1)
        target.truncate(target.tell())
    into.chmod(0o755)


def jobs(folder: Path, into: Path) -> list[Process]:
    """Return one process for each thing to unpack."""
    made = [Process(target=unpack_tar, args=(tar, into)) for tar in sorted(folder.glob("*.tar.xz"))]
    library = folder / f"{LIBRARY}.xz"
    if library.exists():
        made.append(Process(target=unpack_library, args=(library, into / "sgl_kernel" / LIBRARY)))
    return made


def main(words: list[str]) -> None:
    """Unpack every folder that is there."""
    started = time.monotonic()
    *folders, into = map(Path, words)
    into.mkdir(parents=True, exist_ok=True)
    running = [job for folder in folders if folder.is_dir() for job in jobs(folder, into)]
    for job in running:
        job.start()
    for job in running:
        job.join()
    if any(job.exitcode for job in running):
        sys.exit("unpack_site: an archive could not be unpacked")
    for folder in folders:
        if (cache := folder / "jit-cache.tgz").exists():
            shutil.unpack_archive(cache, Path.home(), "gztar", filter="tar")
    print(f"unpacked {len(running)} archives in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
