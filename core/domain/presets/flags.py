"""What flags one version of SGLang accepts, and whether a preset's flags fit them.

Facts only: name, aliases, type, default, choices, deprecation. Reading them from an installed
SGLang is `servers.flag_catalogue`'s work; here nothing is read.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum

from kvctl.core.domain.presets.diff import text_of
from kvctl.core.domain.presets.flag_history import what_became_of
from kvctl.core.domain.presets.flag_relations import refused_together, without_effect
from kvctl.core.domain.presets.preset import Setting, Value, canonical, dashed


class FlagKind(StrEnum):
    """What a flag takes."""

    SWITCH = "bool"
    """Nothing: it is there or not."""
    INTEGER = "int"
    QUANTITY = "quantity"
    """A plain integer or one with a suffix: 400k, 1Mi."""
    NUMBER = "float"
    TEXT = "str"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class FlagSpec:
    """One flag of one SGLang version."""

    name: str
    """With dashes, without the leading two."""
    kind: FlagKind
    aliases: tuple[str, ...] = ()
    default: str | None = None
    """As written in the source; None: none, or chosen at start."""
    choices: tuple[str, ...] = ()
    """Empty: anything."""
    takes_many: bool = False
    """A list of values may follow."""
    may_be_bare: bool = False
    """It takes a value or none."""
    is_required: bool = False
    successor: str | None = None
    """For a deprecated flag: what to write instead, "" if nothing."""
    is_removed: bool = False
    """Deprecated so far that SGLang refuses to start with it."""
    help: str = field(default="", compare=False)
    """SGLang's own words about it, in one line; "" where they are not known."""


@dataclass(frozen=True, slots=True)
class FlagCatalogue:
    """Every flag of one installed version."""

    version: str
    """"unknown" where nothing tells it."""
    flags: tuple[FlagSpec, ...]
    is_from_help: bool = False
    """Read from `--help`: fewer types are known, and flags that SGLang hides there are absent."""

    def find(self, name: str) -> FlagSpec | None:
        """Return the flag of this very name or alias, None if there is none.

        `tp` and its like are found too: kvctl always writes them out (`tp-size`).
        """
        names = (dashed(name), canonical(name))
        return next((f for f in self.flags if not {f.name, *f.aliases}.isdisjoint(names)), None)

    def names(self) -> tuple[str, ...]:
        """Return every name and alias."""
        return tuple(name for flag in self.flags for name in (flag.name, *flag.aliases))


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class FlagFinding:
    """Something about one flag of a preset."""

    severity: Severity
    flag: str
    where: str
    """FILE:LINE."""
    message: str

    def __str__(self) -> str:
        """Return the finding in one line."""
        return f"{self.where}: [flags] {self.flag}: {self.message}"


_DEAD = {"num-continuous-decode-steps": "SGLang accepts it and reads it nowhere"}
"""Source: no reader of the field in 0.4.0, 0.4.6.post5, 0.5.2, 0.5.23."""

_UNPRINTED = (
    "forward-pass-metrics-worker-id",
    "forward-pass-metrics-ipc-name",
    "speculative-dflash-draft-window-size",
)
"""Flags that `--help` leaves out although they are accepted. Source: argparse.SUPPRESS, 0.5.15+."""

_QUANTITY = re.compile(r"[+-]?\d+|\d+(\.\d+)?[kMGT]|\d+[KMGT]i")
"""Case counts. Source: human_readable_int, 0.5.10 to 0.5.23."""


def check_flags(flags: Sequence[Setting], catalogue: FlagCatalogue) -> tuple[FlagFinding, ...]:
    """Return everything that is wrong or doubtful about flags, all at once, errors first.

    `flags` are those of a `LaunchPlan` (variables expanded) or of a preset.
    """
    given = [s for s in flags if s.value is not False]
    findings = [finding for s in given for finding in _check_one(s, catalogue)]
    findings += _check_twice(given, catalogue)
    findings += [_error(s, message) for s, message in refused_together(given)]
    findings += [_warning(s, message) for s, message in without_effect(given)]
    return tuple(sorted(findings, key=lambda f: f.severity is Severity.WARNING))


def _check_one(setting: Setting, catalogue: FlagCatalogue) -> Iterator[FlagFinding]:
    name = dashed(setting.name)
    spec = catalogue.find(name)
    if spec is None and catalogue.is_from_help and name in _UNPRINTED:
        yield _warning(setting, "not checked: --help does not tell this flag")
        return
    if spec is None:
        yield _error(setting, _unknown(name, catalogue))
        return
    if spec.is_removed:
        yield _error(setting, f"removed in SGLang {catalogue.version}{_instead(spec.successor)}")
    elif spec.successor is not None:
        yield _warning(setting, f"deprecated{_instead(spec.successor)}")
    if problem := value_problem(spec, setting.value):
        yield _error(setting, problem)
    if name in _DEAD:
        yield _warning(setting, f"has no effect: {_DEAD[name]}")
    if name == "kv-cache-dtype" and str(setting.value).startswith("fp8"):
        yield _warning(setting, "fp8 KV without scales of the model can cost quality")


def _check_twice(given: Sequence[Setting], catalogue: FlagCatalogue) -> Iterator[FlagFinding]:
    """Find flags that are one and the same under two of the version's aliases."""
    first: dict[str, Setting] = {}
    for setting in given:
        spec = catalogue.find(setting.name)
        other = first.setdefault(spec.name, setting) if spec else setting
        if other is not setting:
            message = f"given twice: the same flag as '{other.name}' in {other.origin}"
            yield _error(setting, message)


def _unknown(name: str, catalogue: FlagCatalogue) -> str:
    known = catalogue.names()
    head = f"unknown to SGLang {catalogue.version}"
    if told := what_became_of(name, known):
        return f"{head}: {told}"
    longer = sorted(other for other in known if other.startswith(name))
    if len(longer) == 1:
        return f"an abbreviation: write it in full, '{longer[0]}'"
    if longer:
        return f"ambiguous: it could be {', '.join(longer[:4])}"
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"{head}; did you mean '{near[0]}'?" if near else head


def value_problem(spec: FlagSpec, value: Value) -> str | None:
    """Say why a value does not fit a flag, None where it does."""
    if spec.kind is FlagKind.SWITCH:
        return None if value is True else f"is a switch: true or false, not {_quoted(value)}"
    if value is True:
        return None if spec.may_be_bare else f"wants {_wanted(spec)}, not true"
    if isinstance(value, tuple):
        if not spec.takes_many:
            return f"wants {_wanted(spec)}, not a list"
        problems = (value_problem(spec, item) for item in value)
        return next((problem for problem in problems if problem), None)
    if not _fits(spec.kind, value):
        return f"wants {_wanted(spec)}, not {_quoted(value)}"
    if spec.choices and text_of(value) not in spec.choices:
        return f"{_quoted(value)} is no choice; {_wanted(spec)}"
    return None


def _fits(kind: FlagKind, value: Value) -> bool:
    text = str(value)
    try:
        match kind:
            case FlagKind.INTEGER:
                int(text)
            case FlagKind.QUANTITY:
                return bool(_QUANTITY.fullmatch(text.strip()))
            case FlagKind.NUMBER:
                float(text)
    except ValueError:
        return False
    return True


def _wanted(spec: FlagSpec) -> str:
    words = {
        FlagKind.INTEGER: "a whole number",
        FlagKind.QUANTITY: "a whole number (400k is allowed)",
        FlagKind.NUMBER: "a number",
        FlagKind.TEXT: "text",
        FlagKind.JSON: "a table or a text of JSON",
    }
    if spec.choices:
        near = ", ".join(spec.choices[:8])
        return f"one of {near}" + (", …" if len(spec.choices) > 8 else "")
    return words.get(spec.kind, "nothing")


def _quoted(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else text_of(value)


def _instead(successor: str | None) -> str:
    return f"; write {successor}" if successor else ""


def _error(setting: Setting, message: str) -> FlagFinding:
    return FlagFinding(Severity.ERROR, setting.name, str(setting.origin), message)


def _warning(setting: Setting, message: str) -> FlagFinding:
    return FlagFinding(Severity.WARNING, setting.name, str(setting.origin), message)
