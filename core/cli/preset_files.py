"""The files that preset verbs read: the operator's presets and rules, and kept help texts."""

from kvctl.core.cli.session import Session
from kvctl.core.domain.presets.rules import Rule
from kvctl.core.servers.config import Config, read_config
from kvctl.core.servers.flags.asking import CatalogueCache
from kvctl.core.servers.presets.check import Findings, ask, findings_of
from kvctl.core.servers.presets.store import PresetStore, preset_folders


def config_of(session: Session) -> Config:
    """Read config.toml; raises ConfigError."""
    return read_config(session.paths.config / "config.toml")


def store_of(session: Session) -> PresetStore:
    """Return the presets of this operator; raises ConfigError."""
    folders = preset_folders(session.paths.config, config_of(session).preset_folders)
    return PresetStore(folders, session.environ)


def rules_of(session: Session) -> tuple[Rule, ...]:
    """Return the operator's rules; raises ConfigError."""
    return config_of(session).rules


def catalogues_of(session: Session) -> CatalogueCache:
    """Return where flags of installed SGLangs are kept."""
    return CatalogueCache(session.paths.state / "flags")


def checked(session: Session, store: PresetStore, name: str) -> Findings:
    """Return every problem of one preset."""
    cache = catalogues_of(session)
    return findings_of(store, name, rules_of(session), lambda plan: ask(plan, store, cache))
