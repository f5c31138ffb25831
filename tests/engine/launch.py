"""Where the test engine lies, and the command line and environment that start a server from it.

    python tests/engine/launch.py --port 30000 [SGLang flags]   # becomes that server

Standard library only. The environment names here are the ones that the shipped preset `cpu-tiny`
reads: KVCTL_ENGINE_PYTHON, KVCTL_ENGINE_MODEL and KVCTL_ENGINE_STUBS.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Flag = str | int | float | bool | None

DEFAULT_FLAGS: Mapping[str, Flag] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    # In bfloat16 a continued response differs from the uninterrupted one as soon as its prefix is
    # recomputed by prefill (9 of 16 with a flushed cache); in float32 it does not (0 of 16).
    "dtype": "float32",
    "host": "127.0.0.1",
    # Small, so that a few dozen requests reach the KV ceiling within seconds.
    "max_total_tokens": 4096,
    "enable_metrics": True,
    # Without it an idle scheduler keeps one core busy.
    "sleep_on_idle": True,
}

SERVER_ENVIRONMENT: Mapping[str, str] = {
    # Without it SGLang looks for another project's rotary kernel.
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    # The model is far too small to share: with more threads it decodes 10 to 20 times slower.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class EngineHome:
    """The folder that install.py fills."""

    root: Path

    @property
    def python(self) -> Path:
        """The interpreter of the engine's own venv."""
        return self.root / "venv" / "bin" / "python"

    @property
    def model(self) -> Path:
        """The tiny model's folder."""
        return self.root / "tiny-llama"

    @property
    def standins(self) -> Path:
        """The import-only packages, for PYTHONPATH."""
        return self.root / "standins"

    def variables(self) -> dict[str, str]:
        """What the preset `cpu-tiny` takes from the environment."""
        return {
            "KVCTL_ENGINE_PYTHON": str(self.python),
            "KVCTL_ENGINE_MODEL": str(self.model),
            "KVCTL_ENGINE_STUBS": str(self.standins),
        }


def engine_home(environment: Mapping[str, str] = os.environ) -> EngineHome:
    """The engine's folder: $KVCTL_ENGINE_HOME, else kvctl-engine in the user's cache folder."""
    if chosen := environment.get("KVCTL_ENGINE_HOME"):
        return EngineHome(Path(chosen).expanduser().absolute())
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return EngineHome(Path(cache).expanduser().absolute() / "kvctl-engine")


def engine_env(
    home: EngineHome | None = None, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of a server: `base` plus what the CPU engine needs."""
    home = home or engine_home()
    return {**base, **SERVER_ENVIRONMENT, **home.variables(), "PYTHONPATH": str(home.standins)}


def engine_command(port: int, home: EngineHome | None = None, /, **flags: Flag) -> list[str]:
    """The argv of a server on `port`; flags are SGLang's, spelt with underscores.

    A flag given here replaces the default; True gives a bare switch, False or None leaves it out.
    """
    home = home or engine_home()
    chosen: dict[str, Flag] = {
        "model_path": str(home.model),
        "port": port,
        **DEFAULT_FLAGS,
        **flags,
    }
    argv = [str(home.python), "-m", "sglang.launch_server"]
    for name, value in chosen.items():
        argv += _flag_words(name, value)
    return argv


def _flag_words(name: str, value: Flag) -> list[str]:
    if value is None or value is False:
        return []
    flag = "--" + name.replace("_", "-")
    return [flag] if value is True else [flag, str(value)]


def main(arguments: list[str]) -> None:
    """Replace this process by a server; flags that follow are appended and win."""
    home = engine_home()
    if not home.python.exists():
        sys.exit(f"no engine in {home.root}: run python tests/engine/install.py first")
    argv = engine_command(30000, home) + arguments
    os.execve(argv[0], argv, engine_env(home))


if __name__ == "__main__":
    main(sys.argv[1:])
