"""config.toml: the operator's rules and the panel's own settings; unknown keys are errors."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvctl.core.domain.errors import ConfigError
from kvctl.core.domain.presets.preset import dashed
from kvctl.core.domain.presets.rules import Rule
from kvctl.core.domain.servers.health import STALL_AFTER_S
from kvctl.core.domain.throttle.parameters import ThrottleParameters
from kvctl.core.servers.limits import CrashRestart, StageLimits, read_crash, read_limits
from kvctl.core.servers.throttle_settings import read_throttle

_RULE_KEYS = {"flag", "deny", "reason"}
_LEAST_STALL_S = 5.0
"""Shorter, the gap between two answers would already be a stall."""


@dataclass(frozen=True, slots=True)
class Config:
    """What config.toml says."""

    rules: tuple[Rule, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    """Action -> key, from `[panel.keys]`; the panel checks the names."""
    panel: Mapping[str, Any] = field(default_factory=dict)
    """The rest of `[panel]`, for the panel to check."""
    stall_after_s: float = STALL_AFTER_S
    """`[watch] stall_after_s`: seconds without a token while requests run or wait."""
    limits: StageLimits = field(default_factory=StageLimits)
    crash: CrashRestart = field(default_factory=CrashRestart)
    throttle: ThrottleParameters = field(default_factory=ThrottleParameters)
    preset_folders: tuple[Path, ...] = ()
    """`[presets] folders`: looked in after the operator's own folder, before the shipped one."""


def read_config(path: Path) -> Config:
    """Read config.toml; an absent file is an empty one.

    Raises:
        ConfigError: It is broken; file, key and, where known, line are named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError) as failed:
        raise ConfigError(f"{path}: cannot be read: {failed}") from failed
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise ConfigError(f"{path}: not TOML: {broken}") from broken
    return _config(path, document)


def _config(path: Path, document: Mapping[str, Any]) -> Config:
    for key in document:
        if key not in ("rule", "panel", "watch", "presets", "limits", "crash", "throttle"):
            raise ConfigError(
                f"{path}: unknown key '{key}'; there are [[rule]], [panel], [watch], [presets], "
                "[limits], [crash] and [throttle]"
            )
    rules = document.get("rule", [])
    if not isinstance(rules, list):
        raise ConfigError(f"{path}: write [[rule]] with two brackets: there can be several")
    panel = document.get("panel", {})
    if not isinstance(panel, dict):
        raise ConfigError(f"{path}: panel must be a table: [panel]")
    keys = panel.get("keys", {})
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise ConfigError(f"{path}: [panel.keys] maps the name of an action to a key")
    return Config(
        rules=tuple(_rule(path, number, rule) for number, rule in enumerate(rules, start=1)),
        keys=keys,
        panel={name: value for name, value in panel.items() if name != "keys"},
        stall_after_s=_stall_after_s(path, document.get("watch", {})),
        limits=read_limits(path, document.get("limits", {})),
        crash=read_crash(path, document.get("crash", {})),
        throttle=read_throttle(path, document.get("throttle", {})),
        preset_folders=_preset_folders(path, document.get("presets", {})),
    )


def _preset_folders(path: Path, presets: object) -> tuple[Path, ...]:
    """Return the folders, relative ones taken from where config.toml lies."""
    if not isinstance(presets, dict):
        raise ConfigError(f"{path}: presets must be a table: [presets]")
    if unknown := sorted(set(presets) - {"folders"}):
        raise ConfigError(f"{path}: [presets] unknown key '{unknown[0]}'; there is folders")
    folders = presets.get("folders", [])
    if not (isinstance(folders, list) and all(isinstance(f, str) and f for f in folders)):
        raise ConfigError(f'{path}: [presets] folders must be a list of folders: ["/etc/kvctl"]')
    return tuple(path.parent / Path(folder).expanduser() for folder in folders)


def _stall_after_s(path: Path, watch: object) -> float:
    if not isinstance(watch, dict):
        raise ConfigError(f"{path}: watch must be a table: [watch]")
    if unknown := sorted(set(watch) - {"stall_after_s"}):
        raise ConfigError(f"{path}: [watch] unknown key '{unknown[0]}'; there is stall_after_s")
    value = watch.get("stall_after_s", STALL_AFTER_S)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not _LEAST_STALL_S <= value < float("inf"):
        raise ConfigError(
            f"{path}: [watch] stall_after_s must be seconds from {_LEAST_STALL_S:g} up"
        )
    return float(value)


def _rule(path: Path, number: int, rule: object) -> Rule:
    where = f"{path}: [[rule]] {number}"
    if not isinstance(rule, dict):
        raise ConfigError(f"{where}: must be a table")
    if unknown := sorted(set(rule) - _RULE_KEYS):
        raise ConfigError(f"{where}: unknown key '{unknown[0]}'; a rule has flag, deny and reason")
    if missing := sorted(_RULE_KEYS - set(rule)):
        raise ConfigError(f"{where}: '{missing[0]}' is missing; a rule has flag, deny and reason")
    flag, deny, reason = rule["flag"], rule["deny"], rule["reason"]
    if not (isinstance(flag, str) and flag and isinstance(reason, str) and reason):
        raise ConfigError(f"{where}: flag and reason must be text")
    if not (isinstance(deny, list) and deny and all(isinstance(p, str) and p for p in deny)):
        raise ConfigError(f'{where}: deny must be a list of patterns, such as ["fp8*"]')
    return Rule(dashed(flag), tuple(deny), reason)
