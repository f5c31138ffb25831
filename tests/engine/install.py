"""Installs a real SGLang server for the tests: on the CPU, in its own venv, with a tiny model.

    python tests/engine/install.py           # installs what is missing; last line: the folder
    python tests/engine/install.py --env     # the same, then shell lines for `eval`
    python tests/engine/install.py --check   # installs nothing; exit 1 and one line if not current

Standard library only. Packages come from wherever pip is configured to look; torch must be a
`+cpu` build there (for x86-64 Linux the common index has only CUDA builds). Each step leaves a
stamp with a hash of what it was made from, so a second call does nothing.
"""

import argparse
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.engine.launch import EngineHome, engine_home  # noqa: E402
from tests.engine.tiny_model import write_tiny_model  # noqa: E402

PYTHON = (3, 11)
REQUIREMENTS = HERE / "requirements.txt"
WITHOUT_DEPENDENCIES = HERE / "requirements-nodeps.txt"
STANDINS = HERE / "standins"
ADVICE = "run: python tests/engine/install.py"


class InstallStopped(Exception):
    """The engine cannot be installed; the message is the one line the user sees."""


def tell(text: str) -> None:
    """Report progress on stderr; stdout carries only the result."""
    print(f"engine: {text}", file=sys.stderr, flush=True)


# --- stamps -----------------------------------------------------------------------------------


def digest_of(paths: list[Path], extra: str = "") -> str:
    """A hash of the files' names and contents."""
    total = hashlib.sha256(extra.encode())
    for path in sorted(paths):
        total.update(f"{path.relative_to(HERE)}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def venv_digest() -> str:
    """What the venv is made from."""
    return digest_of([REQUIREMENTS, WITHOUT_DEPENDENCIES], extra=f"python {PYTHON}")


def model_digest() -> str:
    """What the model folder and the stand-ins are made from."""
    return digest_of([HERE / "tiny_model.py", *STANDINS.rglob("*.py")])


def is_stamped(home: EngineHome, step: str, digest: str) -> bool:
    """Whether the step was completed from exactly these inputs."""
    stamp = home.root / f"{step}.stamp"
    return stamp.is_file() and stamp.read_text() == digest


def stamp(home: EngineHome, step: str, digest: str) -> None:
    """Mark the step complete; written last and whole, so a broken step leaves none."""
    unfinished = home.root / f"{step}.stamp.new"
    unfinished.write_text(digest)
    unfinished.replace(home.root / f"{step}.stamp")


def why_not_current(home: EngineHome) -> str | None:
    """One line saying what is missing and how to get it, or None when the engine is ready."""
    if not home.python.exists() or not is_stamped(home, "venv", venv_digest()):
        return f"no current test engine in {home.root}; {ADVICE}"
    if not is_stamped(home, "model", model_digest()):
        return f"the test engine's model in {home.root} is out of date; {ADVICE}"
    return None


# --- the venv ---------------------------------------------------------------------------------


def python_candidates() -> Iterator[str]:
    """This interpreter, then each python3.11 on PATH."""
    yield sys.executable
    for folder in os.get_exec_path():
        if found := shutil.which("python3.11", path=folder):
            yield found


def is_suitable(python: str) -> bool:
    """Whether the interpreter runs, has the right version and can make a venv."""
    question = f"import sys, ensurepip, venv; sys.exit(sys.version_info[:2] != {PYTHON})"
    try:
        asked = subprocess.run([python, "-c", question], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def suitable_python() -> str:
    """An interpreter the engine's wheels are built for.

    Raises:
        InstallStopped: There is none, or this is not Linux.
    """
    if sys.platform != "linux":
        raise InstallStopped(f"the test engine needs Linux; this is {sys.platform}")
    for python in python_candidates():
        if is_suitable(python):
            return python
    raise InstallStopped(
        "the test engine needs Python 3.11 with venv and ensurepip: neither this interpreter nor a"
        " python3.11 on PATH is one; install it and run again"
    )


def run_logged(argv: list[str], home: EngineHome, advice: str) -> None:
    """Run one command with its output in install.log.

    Raises:
        InstallStopped: It failed; the line quotes its last error.
    """
    log = home.root / "install.log"
    # A caller's PYTHONPATH must not shadow what pip sees in the new venv.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("ab") as output:
        output.write(f"$ {shlex.join(argv)}\n".encode())
        output.flush()
        start = output.tell()
        done = subprocess.run(argv, stdout=output, stderr=output, env=environment)
    if done.returncode != 0:
        said = log.read_bytes()[start:].decode(errors="replace").splitlines()
        errors = [line for line in said if line.startswith("ERROR")] or said or ["no output"]
        raise InstallStopped(f"{errors[-1].strip()} ({advice}; details in {log})")


def torch_requirement() -> str:
    """The pinned torch line of requirements.txt."""
    lines = REQUIREMENTS.read_text().splitlines()
    return next(line.strip() for line in lines if line.startswith("torch=="))


def check_torch(home: EngineHome) -> None:
    """Make sure that the installed torch really is a CPU build.

    Raises:
        InstallStopped: It is another build.
    """
    question = "import importlib.metadata as m; print(m.version('torch'))"
    asked = subprocess.run([str(home.python), "-I", "-c", question], capture_output=True, text=True)
    version = asked.stdout.strip() or "missing"
    if not version.endswith("+cpu"):
        raise InstallStopped(
            f"torch in {home.root / 'venv'} is {version}, not a +cpu build: point pip at a folder"
            " or index with CPU wheels (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL) and run again"
        )


def make_venv(home: EngineHome) -> None:
    """Create the venv anew and install the pinned packages, torch first."""
    python = suitable_python()
    tell(f"creating a venv with {python} (1 of 4)")
    run_logged([python, "-m", "venv", "--clear", str(home.root / "venv")], home, "venv failed")
    pip = [str(home.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    torch = torch_requirement()
    tell(f"installing {torch} (2 of 4)")
    no_torch = f"pip must find {torch}: set PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL to CPU wheels"
    run_logged([*pip, torch], home, no_torch)
    check_torch(home)
    tell("installing what SGLang imports (3 of 4)")
    run_logged([*pip, "-r", str(REQUIREMENTS)], home, "pip failed")
    tell("installing SGLang (4 of 4)")
    run_logged([*pip, "--no-deps", "-r", str(WITHOUT_DEPENDENCIES)], home, "pip failed")
    check_torch(home)


def make_model(home: EngineHome) -> None:
    """Write the model folder and copy the stand-ins."""
    for folder in (home.model, home.standins):
        shutil.rmtree(folder, ignore_errors=True)
    write_tiny_model(home.model)
    shutil.copytree(STANDINS, home.standins, ignore=shutil.ignore_patterns("__pycache__"))


# --- the whole --------------------------------------------------------------------------------


@contextmanager
def sole_installer(home: EngineHome) -> Iterator[None]:
    """Keep a second installer waiting until this one is done."""
    home.root.mkdir(parents=True, exist_ok=True)
    with (home.root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(home: EngineHome) -> None:
    """Bring the engine's folder up to date, doing only the steps whose inputs changed."""
    if why_not_current(home) is None:
        return
    with sole_installer(home):
        steps: list[tuple[str, str, Callable[[EngineHome], None]]] = [
            ("venv", venv_digest(), make_venv),
            ("model", model_digest(), make_model),
        ]
        for step, digest, make in steps:
            if not is_stamped(home, step, digest) or not home.python.exists():
                (home.root / f"{step}.stamp").unlink(missing_ok=True)
                make(home)
                stamp(home, step, digest)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Install the real engine for tests.")
    parser.add_argument("--env", action="store_true", help="print export lines for the shell")
    parser.add_argument("--check", action="store_true", help="only say whether it is current")
    return parser.parse_args()


def main() -> int:
    """Install (or check) and print one line, or the export lines."""
    arguments, home = parse_arguments(), engine_home()
    try:
        if arguments.check:
            if reason := why_not_current(home):
                raise InstallStopped(reason)
        else:
            install(home)
    except (InstallStopped, OSError) as stopped:
        print(f"engine: {stopped}", file=sys.stderr)
        return 1
    if arguments.env:
        pairs = (f"{name}={shlex.quote(text)}" for name, text in home.variables().items())
        print("export " + " ".join(pairs))
    else:
        print(home.root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
