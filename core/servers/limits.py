"""How long the stages of a start and a stop may take, and what follows a crash: config.toml.

`[limits]` and `[crash]`; unknown keys are errors. Slow is not dead: a limit of a stage counts from
the last progress that the log told of it, and passing it is only told unless `end_start` is set.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvctl.core.domain.errors import ConfigError
from kvctl.core.domain.logs.stages import GRAPHS, KV_POOL, PROCESS, WEIGHTS


@dataclass(frozen=True, slots=True)
class StageLimits:
    """`[limits]`: seconds, at least 1."""

    process_s: float = 900.0
    """Without progress while the process imports and joins its ranks."""
    weights_s: float = 3600.0
    """Without one more shard loaded; from slow storage one can take long."""
    kv_pool_s: float = 900.0
    graphs_s: float = 3600.0
    """Without one more graph captured; the first one may compile kernels."""
    warmup_s: float = 900.0
    """From the last graph to the ready line."""
    first_token_s: float = 300.0
    """From the ready line; a server that says nothing for so long has failed its proof."""
    stop_s: float = 45.0
    """From TERM to KILL: an idle server needs 3 to 9 s (0.5.17, 0.5.23)."""
    clean_s: float = 60.0
    """For the GPUs to come back to their idle level."""
    end_start: bool = False
    """Whether a stage that passes its limit ends the start, not only tells it."""

    def of_step(self, key: str) -> float:
        """Return the limit of a step of a start by its key (`domain.startup.STEPS`)."""
        return {
            PROCESS: self.process_s,
            WEIGHTS: self.weights_s,
            KV_POOL: self.kv_pool_s,
            GRAPHS: self.graphs_s,
        }.get(key, self.warmup_s)


@dataclass(frozen=True, slots=True)
class CrashRestart:
    """`[crash]`: whether a server that served and died is started again by itself."""

    restart: bool = False
    """A preset's `[launch] restart-after-crash` stands above it."""
    most_restarts: int = 3
    """Within `within_s`; then it stays down until the operator starts it."""
    within_s: float = 3600.0
    wait_s: float = 10.0
    """Before the first one; each later one waits twice as long."""


def read_limits(path: Path, table: object) -> StageLimits:
    """Return `[limits]` of the config file at `path`. Raises ConfigError."""
    return StageLimits(**_settings(path, "limits", table, StageLimits()))


def read_crash(path: Path, table: object) -> CrashRestart:
    """Return `[crash]` of the config file at `path`. Raises ConfigError."""
    return CrashRestart(**_settings(path, "crash", table, CrashRestart()))


def _settings(
    path: Path, name: str, table: object, usual: StageLimits | CrashRestart
) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} must be a table: [{name}]")
    known = {field.name: getattr(usual, field.name) for field in fields(usual)}
    if unknown := sorted(set(table) - set(known)):
        raise ConfigError(
            f"{path}: [{name}] unknown key '{unknown[0]}'; there are {', '.join(known)}"
        )
    return {
        key: _value(f"{path}: [{name}] {key}", value, known[key]) for key, value in table.items()
    }


def _value(where: str, value: object, usual: bool | int | float) -> bool | int | float:
    """Return a value of the kind of the usual one."""
    if isinstance(usual, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"{where} must be true or false")
        return value
    kinds = (int,) if isinstance(usual, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 1 <= value < float("inf"):
        what = "a whole number" if isinstance(usual, int) else "seconds"
        raise ConfigError(f"{where} must be {what} from 1 up")
    return value if isinstance(usual, int) else float(value)
