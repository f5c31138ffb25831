"""Builds the stand-in libnvidia-ml.so.1 with the host's C compiler, else with the ziglang wheel."""

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("standin.c")
LIBRARY = "libnvidia-ml.so.1"


def compiler() -> list[str]:
    """Return the words that start a C compiler."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    return [sys.executable, "-m", "ziglang", "cc"]


def build_standin(folder: Path, words: list[str] | None = None) -> Path:
    """Compile the library into `folder` and return that, for LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / LIBRARY
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Wno-format-truncation", "-std=gnu11"]
    done = subprocess.run(
        [*(words or compiler()), *flags, "-o", str(target), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the stand-in NVML does not compile: {done.stderr}")
    return folder


if __name__ == "__main__":
    print(build_standin(Path(sys.argv[1])))
