"""Hard constraints of the operator: a flag, the values it must not have, and why.

No rule is active by itself; they come from config.toml. A rule also catches the flag where it is
abbreviated or hidden in a command template, so that it cannot be broken by accident.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kvctl.core.domain.presets.diff import flags_of_argv
from kvctl.core.domain.presets.preset import Preset, Setting, Value, canonical

_KV_DTYPE_NAMES = {
    "bfloat16": ("bf16",),
    "bf16": ("bfloat16",),
    "float8_e4m3": ("fp8_e4m3",),
    "float8_e4m3fn": ("fp8_e4m3",),
    "float8_e5m2": ("fp8_e5m2",),
    "mxfp8": ("fp8_mx",),
    "nvfp4": ("fp4_nv",),
}
"""Other names under which a rule may mean a KV dtype: mxfp8 is an fp8 KV cache too."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One constraint."""

    flag: str
    """SGLang's name of the flag, with dashes."""
    deny: tuple[str, ...]
    """Values as shell patterns, e.g. "fp8*"; case does not matter."""
    reason: str
    """Why, as the operator wrote it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule that a preset breaks."""

    rule: Rule
    flag: str
    """As the preset spells it."""
    value: str
    where: str
    """FILE:LINE, or "command" where it stands in the command template."""

    def __str__(self) -> str:
        """Return the refusal in one line."""
        return (
            f"rule on {self.rule.flag}: {self.value} is denied: {self.rule.reason} ({self.where})"
        )


def refusals(preset: Preset, rules: Sequence[Rule]) -> tuple[Refusal, ...]:
    """Return every rule that a preset breaks, in the order of the rules."""
    written = [(s.name, s.value, str(s.origin)) for s in preset.flags if s.value is not False]
    command = preset.launch_setting("command")
    return tuple(_broken(rules, [*written, *_command_flags(command)]))


def refusals_of_argv(argv: Sequence[str], rules: Sequence[Rule]) -> tuple[Refusal, ...]:
    """Return every rule that a command line breaks."""
    given = [(name, value, "command") for name, value in flags_of_argv(argv)]
    return tuple(_broken(rules, given))


def _command_flags(command: Setting | None) -> list[tuple[str, Value, str]]:
    if command is None or not isinstance(command.value, tuple):
        return []
    words = " ".join(str(word) for word in command.value).split()
    return [(name, value, str(command.origin)) for name, value in flags_of_argv(words)]


def _broken(rules: Sequence[Rule], given: Iterable[tuple[str, Value, str]]) -> Iterable[Refusal]:
    flags = list(given)
    for rule in rules:
        for name, value, where in flags:
            if not _means(name, rule.flag):
                continue
            for text in _texts(value):
                if any(_matches(rule.flag, text, pattern) for pattern in rule.deny):
                    yield Refusal(rule, name, text, where)


def _means(name: str, flag: str) -> bool:
    """Whether SGLang would take `name` for `flag`: argparse accepts unambiguous prefixes."""
    plain, wanted = canonical(name), canonical(flag)
    return plain == wanted or (len(plain) >= 3 and wanted.startswith(plain))


def _texts(value: Value) -> tuple[str, ...]:
    if isinstance(value, tuple):
        return tuple(text for item in value for text in _texts(item))
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return (str(value),)


def _matches(flag: str, text: str, pattern: str) -> bool:
    names = [text.lower()]
    if canonical(flag).endswith("kv-cache-dtype"):
        names += _KV_DTYPE_NAMES.get(text.lower(), ())
    return any(fnmatchcase(name, pattern.lower()) for name in names)
