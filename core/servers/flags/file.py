"""SGLang's own flag file (`--config FILE.yaml`, 0.5.3 and later) to the flags that it sets.

kvctl reads the file itself and writes its flags onto the command line, so that they are checked
like all others, fall under the rules, and show where they were written. What SGLang does with a
value (`ConfigArgumentMerger`, 0.5.23): true is a bare flag, false none, a list several words, a
mapping JSON; the command line wins over the file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kvctl.core.domain.presets.preset import (
    InvalidPreset,
    Origin,
    PresetProblem,
    Setting,
    Value,
    dashed,
)
from kvctl.core.domain.presets.text import is_secret_flag, secret_advice

_SUFFIXES = (".yaml", ".yml")


def read_flag_file(path: Path, preset: str, asked: Setting) -> tuple[Setting, ...]:
    """Return the flags of a YAML file with its lines.

    `asked` is the `config` flag that names the file.

    Raises:
        InvalidPreset: It cannot be read, is no mapping of flags, or one of its values is no
            flag's; every problem at once.
    """
    label = f"[flags] {asked.name}"
    if path.suffix.lower() not in _SUFFIXES:
        raise _refused(asked, label, f"{path} must end in .yaml or .yml: SGLang takes no other")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failed:
        reason = failed.strerror if isinstance(failed, OSError) else "no UTF-8 text"
        advice = f"{path} cannot be read here ({reason}); write its flags into [flags] instead"
        raise InvalidPreset([PresetProblem(str(asked.origin), label, advice)]) from failed
    reader = _Reader(preset, str(path))
    settings = tuple(reader.read(text))
    if reader.problems:
        raise InvalidPreset(reader.problems)
    return settings


def _refused(asked: Setting, label: str, message: str) -> InvalidPreset:
    return InvalidPreset([PresetProblem(str(asked.origin), label, message)])


class _Reader:
    """Turns one YAML text into settings, collecting problems."""

    def __init__(self, preset: str, path: str) -> None:
        self.preset = preset
        self.path = path
        self.problems: list[PresetProblem] = []

    def read(self, text: str) -> Iterator[Setting]:
        try:
            loader = yaml.SafeLoader(text)
            pairs = list(self._pairs(loader, loader.get_single_node()))
        except yaml.YAMLError as broken:
            mark = getattr(broken, "problem_mark", None)
            said = getattr(broken, "problem", None) or str(broken).splitlines()[0]
            self._wrong(mark.line + 1 if mark else None, "", f"not YAML: {said}")
            return
        first: dict[str, int] = {}
        for line, key, value in pairs:
            name = dashed(key)
            if name in first:
                self._wrong(line, key, f"given twice: also in line {first[name]}")
                continue
            first[name] = line
            yield from self._setting(line, key, value)

    def _pairs(self, loader: yaml.SafeLoader, node: Any) -> Iterator[tuple[int, str, Any]]:  # noqa: ANN401 - a YAML node
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node.start_mark.line + 1, "", "must be a mapping: one `flag: value` a line")
            return
        loader.flatten_mapping(node)
        for key, value in node.value:
            line = key.start_mark.line + 1
            yield line, str(loader.construct_object(key)), loader.construct_object(value, deep=True)

    def _setting(self, line: int, key: str, value: object) -> Iterator[Setting]:
        name = dashed(key)
        frozen = _frozen(value)
        if name == "config":
            self._wrong(line, key, "a flag file cannot name another one")
        elif is_secret_flag(name) and value is not False:
            self._wrong(line, key, secret_advice(name))
        elif frozen is None:
            self._wrong(line, key, "must be text, a number, true, false, a list of these or a map")
        else:
            # An empty list adds nothing to SGLang's command line.
            setting = False if frozen == () else frozen
            yield Setting(name, setting, Origin(self.preset, self.path, line))

    def _wrong(self, line: int | None, key: str, message: str) -> None:
        where = self.path if line is None else f"{self.path}:{line}"
        self.problems.append(PresetProblem(where, key, message))


def _frozen(value: object) -> Value | None:
    """Return a YAML value as a flag's, None where it is none."""
    match value:
        case str():
            return value.replace("${", "$${")  # SGLang takes it literally: kvctl must not expand it
        case bool() | int() | float():
            return value
        case list():
            is_flat = all(isinstance(v, str | int | float) for v in value)
            return tuple(value) if is_flat else None
        case dict():
            try:
                return json.dumps(value)
            except (TypeError, ValueError):
                return None
    return None
