"""A systemd unit, as `systemctl cat` or `systemctl show` prints it, to a preset that runs it.

Pure. Source: systemd.service(5), systemd.exec(5), systemd.unit(5): later files of a `cat` override
earlier ones, an empty assignment empties a list, `%i` and its like are specifiers. kvctl then
starts the command itself, in the operator's name: a unit that stays enabled would start it too.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvctl.core.domain.errors import PresetError
from kvctl.core.domain.presets.capture import Captured, assembled, entry_of, kept_of, program_of
from kvctl.core.domain.presets.text import is_secret_variable

_SHOWN_ARGV = re.compile(r"argv\[\]=(.*?) ; (?:ignore_errors|flags)=")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_FILE_HEAD = re.compile(r"# (/\S+\.(?:service|conf))\s*$")


@dataclass(slots=True)
class Unit:
    """What of a unit matters for a launch; later assignments have won."""

    name: str = ""
    starts: list[str] = field(default_factory=list)
    """Its ExecStart lines, without the prefix characters; one, once it is parsed."""
    stop: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    environment_files: list[str] = field(default_factory=list)
    user: str = ""
    folder: str = ""
    """WorkingDirectory."""
    restart: str = "no"


def parse_unit(text: str, name: str = "") -> Unit:
    """Read the text of a unit.

    `name` is the unit's, where the text does not tell it (`systemctl show` does, as Id=).

    Raises:
        PresetError: It has no ExecStart, several, or a line that cannot be read.
    """
    unit = Unit(name)
    for key, value in _assignments(text):
        if key.startswith("Environment"):
            _take_environment(unit, key, value)
        else:
            _take(unit, key, value)
    if len(unit.starts) != 1:
        number = len(unit.starts)
        found = "no ExecStart" if not number else f"{number} ExecStart lines; one is wanted"
        raise PresetError(f"{unit.name or 'the unit'} has {found}")
    unit.name = unit.name or _name_in(text)
    unit.environment_files = [_with_specifiers(p, unit.name) for p in unit.environment_files]
    return unit


def _take(unit: Unit, key: str, value: str) -> None:
    match key:
        case "Id":
            unit.name = value
        case "ExecStart":
            unit.starts = [*unit.starts, *_commands(value)] if value else []
        case "ExecStop":
            unit.stop = next(iter(_commands(value)), "") if value else ""
        case "User":
            unit.user = value
        case "WorkingDirectory":
            unit.folder = value.lstrip("-!")
        case "Restart":
            unit.restart = value


def _take_environment(unit: Unit, key: str, value: str) -> None:
    if key == "Environment":
        unit.environment = unit.environment | _variables(value) if value else {}
    elif key in ("EnvironmentFile", "EnvironmentFiles"):
        path = re.sub(r" \(ignore_errors=\w+\)$", "", value).removeprefix("-")
        unit.environment_files = [*unit.environment_files, path] if value else []


def preset_of_unit(unit: Unit, files: Mapping[str, str]) -> Captured:
    """Return the preset of a unit; `files` are the texts of its environment files, by path.

    Raises:
        PresetError: Its command runs no SGLang, or cannot be read.
    """
    environment = dict(unit.environment)
    for path in unit.environment_files:
        environment |= _file_variables(files.get(path, ""))
    argv = list(_expanded(_with_specifiers(unit.starts[0], unit.name), environment))
    entry = entry_of(argv)
    passed = kept_of(environment) | {n: v for n, v in environment.items() if is_secret_variable(n)}
    program = program_of(entry)
    if unit.stop:
        program["stop"] = list(_expanded(_with_specifiers(unit.stop, unit.name), environment))
    description = f"as unit {unit.name} ran" if unit.name else "as a systemd unit ran"
    document = assembled(description, program, entry, passed)
    missing = [path for path in unit.environment_files if path not in files]
    left = sorted(name for name in environment if name not in passed)
    return Captured(document, tuple(_notes(unit, missing, left, document)))


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    """Yield (key, value) of the [Service] part, or of every line where there are no sections."""
    joined = re.sub(r"\\\n(?:[ \t]*[#;][^\n]*\n)*", " ", text)
    section = "Service"
    for raw in joined.splitlines():
        line = raw.strip()
        if _FILE_HEAD.match(line):
            section = ""
        elif line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif line and line[0] not in "#;" and section == "Service" and "=" in line:
            key, _, value = line.partition("=")
            yield key.strip(), value.strip()


def _commands(value: str) -> list[str]:
    """Return the command lines of an ExecStart: as written, or as `systemctl show` prints it."""
    if value.startswith("{"):
        return [found.strip() for found in _SHOWN_ARGV.findall(value)]
    return [value.lstrip("@-:+!").strip()]


def _words(text: str, what: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as broken:
        raise PresetError(f"{what} cannot be read: {broken}: {text[:60]}") from broken


def _variables(value: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in _words(value, "Environment"))
    return {name: text for name, equals, text in pairs if equals}


def _file_variables(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#;")
    return {n.strip(): v.strip().strip("\"'") for n, equals, v in pairs if equals}


def _with_specifiers(text: str, name: str) -> str:
    """Replace %i, %I, %n, %p and %%; %h becomes `${HOME}`, which kvctl expands."""
    stem = name.removesuffix(".service")
    prefix, _, instance = stem.partition("@")
    known = {"%%": "%", "%n": name, "%p": prefix, "%i": instance, "%I": instance, "%h": "${HOME}"}
    return re.sub(r"%[%nNpiIh]", lambda found: known.get(found[0], found[0]), text)


def _expanded(text: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the words of a command line with the unit's variables; others stay for kvctl's own.

    As systemd does: a variable that is a whole word splits at spaces.
    """
    for word in _words(text, "ExecStart"):
        whole = re.fullmatch(r"\$([A-Za-z_]\w*)", word)
        if whole and whole[1] in environment:
            yield from environment[whole[1]].split()
        else:
            yield _VARIABLE.sub(lambda found: _value(found, environment), word).replace("$$", "$")


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    name = found[1] or found[2]
    is_shown = name in environment and not is_secret_variable(name)
    return environment[name] if is_shown else f"${{{name}}}"


def _name_in(text: str) -> str:
    heads = (_FILE_HEAD.match(line) for line in text.splitlines())
    found = next((head[1] for head in heads if head), "")
    return os.path.basename(found)


def _notes(
    unit: Unit, missing: Sequence[str], left: Sequence[str], document: Mapping[str, Any]
) -> Iterator[str]:
    name = unit.name or "the unit"
    again = f"; its Restart={unit.restart} would bring it back" if unit.restart != "no" else ""
    yield f"before the first start: systemctl disable --now {name} (kvctl starts it itself{again})"
    if unit.user:
        yield f"the unit ran as {unit.user}; kvctl starts it as whoever runs kvctld"
    if left:
        yield f"not taken over, as no name of a launch: {', '.join(left)}; [env] takes what matters"
    for path in missing:
        yield f"{path} could not be read: write what it sets into [env] and [secrets]"
    model = str(document["launch"].get("model-path", ""))
    if unit.folder and model.startswith("."):
        yield f"model-path is relative to {unit.folder}: write it whole"
