"""What differs between two presets, or between a preset and a launch that runs.

Values are compared as SGLang would read them: 0.9 and "0.90" are the same, `tp` is `tp-size`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvctl.core.domain.presets.preset import Preset, Setting, Value, canonical, dashed

_NUMERICS = ("kv-cache-dtype", "dtype", "quantization", "model-path", "revision", "load-format")


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs."""

    section: str
    """"launch", "flags" or "env"."""
    name: str
    before: str | None
    """None: not set."""
    after: str | None


def text_of(value: Value) -> str:
    """Return a value as a person reads it: `on` for a bare flag, lists separated by spaces."""
    if value is True:
        return "on"
    if isinstance(value, tuple):
        return " ".join(text_of(item) for item in value)
    return str(value)


def diff(before: Preset, after: Preset) -> tuple[Change, ...]:
    """Return what changes from one preset to another, by section."""
    return (
        *_changes("launch", _of(before.launch), _of(after.launch)),
        *_changes("flags", flags_of(before), flags_of(after)),
        *_changes("env", _of(before.env), _of(after.env)),
    )


def diff_argv(before: Sequence[str], after: Sequence[str]) -> tuple[Change, ...]:
    """Return what flags change between two command lines, such as a running one and a plan's.

    Give it what may be shown (`LaunchPlan.shown_argv`): a hidden secret counts as the same.
    """
    old, new = (
        {canonical(name): value for name, value in flags_of_argv(argv)} for argv in (before, after)
    )
    return tuple(_changes("flags", old, new))


def flags_of(preset: Preset) -> dict[str, Value]:
    """Return the flags that reach the server, by canonical name."""
    return {canonical(s.name): s.value for s in preset.flags if s.value is not False}


def flags_of_argv(argv: Sequence[str]) -> tuple[tuple[str, Value], ...]:
    """Return (name, value) of the `--flags` of a command line; True for a bare one.

    >>> flags_of_argv(["python", "-m", "x", "--tp", "2", "--enable-metrics", "--port=1"])
    (('tp', '2'), ('enable-metrics', True), ('port', '1'))
    """
    return tuple(_scan(argv))


def _scan(argv: Sequence[str]) -> Iterator[tuple[str, Value]]:
    name: str | None = None
    values: list[str] = []
    for word in [*argv, "--"]:
        if not word.startswith("--"):
            values.append(word)
            continue
        if name:
            yield name, _collected(values)
        head, equals, tail = word.partition("=")
        name, values = dashed(head), [tail] if equals else []


def _collected(values: Sequence[str]) -> Value:
    if not values:
        return True
    return values[0] if len(values) == 1 else tuple(values)


def numerics_of(flags: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    """Return the flags that decide which tokens come out, so a partial fits only the same ones."""
    named = {canonical(name): text_of(value) for name, value in flags.items()}
    return tuple(
        (name, named[name])
        for name in sorted(named)
        if name in _NUMERICS or name.startswith("speculative-")
    )


def _of(settings: Sequence[Setting]) -> dict[str, Value]:
    return {s.name: s.value for s in settings}


def _changes(
    section: str, before: Mapping[str, Value], after: Mapping[str, Value]
) -> Iterator[Change]:
    for name in [*after, *(n for n in before if n not in after)]:
        old = text_of(before[name]) if name in before else None
        new = text_of(after[name]) if name in after else None
        if not _same(old, new):
            yield Change(section, name, old, new)


def _same(old: str | None, new: str | None) -> bool:
    if old is None or new is None or old == new:
        return old == new
    try:
        return float(old) == float(new)
    except ValueError:
        return False
