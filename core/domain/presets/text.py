"""The text of a preset file to a `PresetSource`; every mistake at once, with its line.

Format: DESIGN's preset TOML. `[flags]` has SGLang's own names; true is a bare flag, false leaves
it out, lists and inline tables (as JSON) are allowed; host, port and model-path are moved to
`[launch]`. Secrets are references, never literals.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, cast

from kvctl.core.domain.presets.help_command import names_flag_file
from kvctl.core.domain.presets.preset import (
    PLACES,
    InvalidPreset,
    Origin,
    PresetProblem,
    PresetSource,
    Secret,
    Setting,
    Value,
    canonical,
    dashed,
)

_TOP_KEYS = ("description", "extends", "launch", "flags", "env", "secrets")
_LAUNCH_KINDS = {
    "python": "text",
    "command": "words",
    "model-path": "text",
    "host": "text",
    "port": "port",
    "gpus": "gpus",
    "stop": "words",
    "log": "place",
    "url": "text",
    "restart-after-crash": "switch",
}
_FLAG_FILE_ADVICE = (
    "has --config: flags in a file of SGLang's own would be seen by no check; write "
    '[flags] config = "FILE.yaml" and kvctl reads, checks and shows them'
)
_SECRET_FLAG = re.compile(r"(^|-)(api-key|password|passwd|secret)$")
_SECRET_VARIABLE = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)$", re.I)
_WHOLE_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_ASSIGNMENT = re.compile(r"(?:--env=)?([A-Za-z_][A-Za-z0-9_]*)=(.+)")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"\s*\[\s*([\w\"'-]+)\s*\]\s*(#.*)?$")
_KEY = re.compile(r"\s*([\w-]+|\"[^\"]*\"|'[^']*')\s*(?:=|\.)")
_AT_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)")


def is_secret_flag(name: str) -> bool:
    """Return whether a flag's value must never be written in a preset or shown."""
    return bool(_SECRET_FLAG.search(dashed(name)))


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable's name says that its value is a secret."""
    return bool(_SECRET_VARIABLE.search(name))


def lines_of_keys(text: str) -> dict[tuple[str, str], int]:
    """Return (table, key as written) -> line number from 1; "" is the top of the file.

    tomllib gives no positions, so this reads the simple forms only: `[table]` and `key =`.
    """
    found: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = header[1].strip("\"'")
            found.setdefault(("", table), number)
        elif key := _KEY.match(line):
            found.setdefault((table, key[1].strip("\"'")), number)
    return found


def parse_preset(name: str, path: str, text: str) -> PresetSource:
    """Read one preset file.

    Raises:
        InvalidPreset: With every problem of the file.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise InvalidPreset([_broken(path, str(broken))]) from broken
    reader = _Reader(name, path, lines_of_keys(text))
    source = reader.read(document)
    if reader.problems:
        raise InvalidPreset(reader.problems)
    return source


def _broken(path: str, message: str) -> PresetProblem:
    line = _AT_LINE.search(message)
    where = f"{path}:{line[1]}" if line else path
    return PresetProblem(where, "", f"not TOML: {_AT_LINE.sub('', message)}")


class _Reader:
    """Turns one parsed document into a `PresetSource`, collecting problems."""

    def __init__(self, name: str, path: str, lines: Mapping[tuple[str, str], int]) -> None:
        self.name = name
        self.path = path
        self.lines = lines
        self.problems: list[PresetProblem] = []

    def read(self, document: Mapping[str, Any]) -> PresetSource:
        for key in document:
            if key not in _TOP_KEYS:
                self.wrong("", key, f"unknown key; a preset has {', '.join(_TOP_KEYS)}")
        launch = list(self._launch(self._table(document, "launch")))
        flags = []
        for setting in self._flags(self._table(document, "flags")):
            if setting.name in PLACES:
                self._move(launch, setting)
            else:
                flags.append(setting)
        return PresetSource(
            name=self.name,
            path=self.path,
            description=self._text(document, "description"),
            extends=self._text(document, "extends"),
            launch=tuple(launch),
            flags=tuple(flags),
            env=tuple(self._env(self._table(document, "env"))),
            secrets=tuple(self._secrets(self._table(document, "secrets"))),
        )

    def origin(self, table: str, key: str) -> Origin:
        return Origin(self.name, self.path, self.lines.get((table, key)))

    def wrong(self, table: str, key: str, message: str) -> None:
        label = f"[{table}] {key}" if table else key
        self.problems.append(PresetProblem(str(self.origin(table, key)), label, message))

    def _table(self, document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        table = document.get(key, {})
        if isinstance(table, dict):
            return table
        self.wrong("", key, f"must be a table: [{key}]")
        return {}

    def _text(self, document: Mapping[str, Any], key: str) -> str | None:
        value = document.get(key)
        if value is None or isinstance(value, str):
            return value
        self.wrong("", key, f"must be text, not {_kind_of(value)}")
        return None

    def _launch(self, table: Mapping[str, Any]) -> Iterator[Setting]:
        seen: set[str] = set()
        for key, value in table.items():
            name = dashed(key)
            if name not in _LAUNCH_KINDS:
                known = ", ".join(_LAUNCH_KINDS)
                self.wrong("launch", key, f"unknown key; [launch] has {known}")
            elif name in seen:
                self.wrong("launch", key, f"'{name}' is given twice")
            elif problem := _launch_problem(_LAUNCH_KINDS[name], value):
                self.wrong("launch", key, problem)
            elif name == "command" and names_flag_file(value):
                self.wrong("launch", key, _FLAG_FILE_ADVICE)
            elif secret := _literal_secret(value):
                self.wrong("launch", key, _command_advice(secret))
            else:
                seen.add(name)
                yield Setting(name, _frozen(value), self.origin("launch", key))
        if {"python", "command"} <= seen:
            self.wrong("launch", "command", "give either python or command, not both")

    def _flags(self, table: Mapping[str, Any]) -> Iterator[Setting]:
        first: dict[str, str] = {}
        for key, value in table.items():
            name = canonical(key)
            if key.startswith("-"):
                self.wrong("flags", key, f"write the name without leading dashes: {dashed(key)}")
            elif name in first:
                self.wrong("flags", key, f"given twice: the same flag as '{first[name]}'")
            elif is_secret_flag(name) and value is not False:
                self.wrong("flags", key, secret_advice(name))
            elif problem := _flag_problem(value):
                self.wrong("flags", key, problem)
            else:
                first[name] = key
                spelled = name if name in PLACES else dashed(key)
                yield Setting(spelled, _frozen(value), self.origin("flags", key))

    def _move(self, launch: list[Setting], setting: Setting) -> None:
        problem = _launch_problem(_LAUNCH_KINDS[setting.name], setting.value)
        if any(other.name == setting.name for other in launch):
            problem = "is given in [launch] too; remove one"
        if problem is None:
            launch.append(setting)
        else:
            label = f"[flags] {setting.name}"
            self.problems.append(PresetProblem(str(setting.origin), label, problem))

    def _env(self, table: Mapping[str, Any]) -> Iterator[Setting]:
        for key, value in table.items():
            if not _VARIABLE_NAME.fullmatch(key):
                self.wrong("env", key, "is not the name of an environment variable")
            elif isinstance(value, bool) or not isinstance(value, str | int | float):
                self.wrong("env", key, f'must be text such as "1", not {_kind_of(value)}')
            elif is_secret_variable(key) and not _WHOLE_VARIABLE.fullmatch(str(value)):
                self.wrong("env", key, secret_advice(key))
            else:
                yield Setting(key, str(value), self.origin("env", key))

    def _secrets(self, table: Mapping[str, Any]) -> Iterator[Secret]:
        for key, value in table.items():
            name = key if key.isupper() else canonical(key)
            if not (isinstance(value, dict) and _is_reference(value)):
                self.wrong("secrets", key, secret_advice(key))
                continue
            yield Secret(name, value.get("env"), value.get("file"), self.origin("secrets", key))


def _is_reference(value: Mapping[str, Any]) -> bool:
    """Whether a `[secrets]` entry is exactly one of { env = NAME } and { file = PATH }."""
    return len(value) == 1 and all(
        key in ("env", "file") and isinstance(text, str) and text for key, text in value.items()
    )


def secret_advice(name: str) -> str:
    """Say how to refer to a secret instead of writing it."""
    variable = name.upper().replace("-", "_")
    return (
        "a secret is never written in a preset; refer to it: "
        f'[secrets] {name} = {{ env = "{variable}" }} or {{ file = "…" }}'
    )


def _literal_secret(value: object) -> str | None:
    """Return the secret variable that a list of words sets to a literal, None if none is."""
    words = " ".join(map(str, value)).split() if isinstance(value, list) else []
    for found in filter(None, map(_ASSIGNMENT.fullmatch, words)):
        if is_secret_variable(found[1]) and not _WHOLE_VARIABLE.fullmatch(found[2].strip("\"'")):
            return found[1]
    return None


def _command_advice(variable: str) -> str:
    return (
        f"a secret is never written in a preset: {variable}; for docker write -e {variable} "
        f'without a value, and [secrets] {variable} = {{ env = "{variable}" }} sets it'
    )


def _kind_of(value: object) -> str:
    names = {bool: "true/false", str: "text", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "a table" if isinstance(value, dict) else type(value).__name__)


def _launch_problem(kind: str, value: object) -> str | None:
    """Say why a value does not fit a `[launch]` key of this kind, None where it does."""
    match kind, value:
        case "text" | "place", str() if value:
            return None
        case "words" | "place", list() if value and all(isinstance(word, str) for word in value):
            return None
        case "gpus", list() if value and all(type(gpu) in (int, str) for gpu in value):
            return None
        case "switch", bool():
            return None
        case "port", bool():
            pass
        case "port", int() if 0 < value < 65536:
            return None
        case "port", str() if "${" in value:
            return None
    wanted = {
        "text": 'must be text, such as "…"',
        "words": 'must be a list of words: ["docker", "run", …]',
        "place": 'must be a path, or a command that prints it: ["journalctl", "-fu", …]',
        "gpus": "must be a list of indices or UUIDs: [0, 1]",
        "port": "must be a port number, 1 to 65535",
        "switch": "must be true or false",
    }
    return f"{wanted[kind]}, not {_shown(value)}"


def _flag_problem(value: object) -> str | None:
    """Say why a value cannot be a flag's, None where it can."""
    if isinstance(value, str | int | float):
        return None
    if isinstance(value, list) and value and all(type(v) in (str, int, float) for v in value):
        return None
    if isinstance(value, dict) and value:
        return None
    return f"must be text, a number, true, false, a list of these or a table, not {_shown(value)}"


def _shown(value: object) -> str:
    return f"{_kind_of(value)} ({value!r})"[:80]


def _frozen(value: object) -> Value:
    """Make a TOML value immutable; a table becomes the JSON that SGLang wants for it."""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, list):
        return tuple(value)
    return cast(Value, value)
