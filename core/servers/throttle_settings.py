"""`[throttle]` of config.toml: what the throttle law goes by, where the operator knows better."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvctl.core.domain.errors import ConfigError
from kvctl.core.domain.throttle.parameters import ThrottleParameters

_SHARES = ("_usage", "usage_goal", "fill_seen", "probe_cut")
"""How the names end whose values are shares of a whole: nothing above 1 means anything."""


def read_throttle(path: Path, table: object) -> ThrottleParameters:
    """Return `[throttle]` of the config file at `path`: any of the law's parameters by its name.

    Raises:
        ConfigError: An unknown name, a value of the wrong kind or outside its range, or bounds of
            N in the wrong order.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: throttle must be a table: [throttle]")
    parameters = ThrottleParameters(**_values(path, table))
    if not parameters.least <= parameters.start <= parameters.most:
        raise ConfigError(
            f"{path}: [throttle] needs least <= start <= most;"
            f" they are {parameters.least}, {parameters.start} and {parameters.most}"
        )
    if parameters.release_usage >= parameters.hold_usage:
        raise ConfigError(
            f"{path}: [throttle] release_usage {parameters.release_usage:g} must be below"
            f" hold_usage {parameters.hold_usage:g}, or a HOLD never lasts"
        )
    return parameters


def _values(path: Path, table: Mapping[str, object]) -> dict[str, Any]:
    usual = {field.name: field.default for field in fields(ThrottleParameters)}
    if unknown := sorted(set(table) - set(usual)):
        raise ConfigError(
            f"{path}: [throttle] unknown key '{unknown[0]}'; there are {', '.join(usual)}"
        )
    return {
        name: _value(f"{path}: [throttle] {name}", name, value, isinstance(usual[name], int))
        for name, value in table.items()
    }


def _value(where: str, name: str, value: object, is_whole: bool) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_whole and not (is_number and isinstance(value, int) and value >= 1):
        raise ConfigError(f"{where} must be a whole number from 1 up")
    most = 1.0 if name.endswith(_SHARES) else 1e6
    if not isinstance(value, int | float) or not is_number or not 0 < value <= most:
        raise ConfigError(f"{where} must be above 0 and at most {most:,.0f}")
    return value if is_whole else float(value)
