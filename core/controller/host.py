"""The outside as the composition root hands it to the controller."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvctl.core.clock import Clock
from kvctl.core.domain.gpus.membership import Me
from kvctl.core.domain.presets.rules import Rule
from kvctl.core.ports import Engine, Generator, GpuSource, LogTail, Processes
from kvctl.core.servers.config import Config, read_config
from kvctl.core.servers.flags.interpreters import Interpreters
from kvctl.core.servers.presets.store import PresetStore
from kvctl.core.servers.processes.launch import Launcher


@dataclass(frozen=True, slots=True)
class Host:
    """Everything the controller reads from and acts on."""

    name: str
    """The host's name, as shown."""
    version: str
    """kvctl's version."""
    clock: Clock
    me: Me
    gpus: GpuSource
    processes: Processes
    launcher: Launcher
    presets: PresetStore
    config: Config
    state_folder: Path
    open_engine: Callable[[str, str | None], Engine]
    """URL and API key to an engine."""
    open_generator: Callable[[str, str | None], Generator]
    """URL and API key to a transport for the run's requests."""
    open_tail: Callable[[str], LogTail]
    finds_servers: bool = True
    """Watch SGLang servers that run here although nobody named them."""
    publish_every_s: float = 0.25
    """Seconds of the clock between two snapshots at most."""
    pace: float = 1.0
    """Seconds of the clock in a real second: what real devices need does not run faster."""
    interpreters: Interpreters = field(default_factory=Interpreters)

    config_path: Path | None = None
    """config.toml, read again for its rules at every check; None: the rules of `config`."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules as they are written now: one that was just added must hold at once.

        Raises:
            ConfigError: config.toml cannot be used any more; nothing is started then.
        """
        return (
            self.config.rules if self.config_path is None else read_config(self.config_path).rules
        )

    @property
    def log_folder(self) -> Path:
        """Where launches write their logs."""
        return self.state_folder / "logs"
