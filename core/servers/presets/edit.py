"""Changes single keys of a preset file and keeps its comments, order and spacing (tomlkit).

A preset that comes with kvctl or from a shared folder is copied to the operator's own first.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AbstractTable

from kvctl.core.domain.errors import PresetError, UsageError
from kvctl.core.domain.presets.preset import PLACES, canonical, dashed, resolve
from kvctl.core.domain.presets.text import parse_preset
from kvctl.core.servers.presets.store import PresetStore, write_preset

_SECTIONS = ("launch", "flags", "env", "secrets")


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a preset."""

    section: str
    """launch, flags, env, secrets; "" for description and extends."""
    name: str

    def __str__(self) -> str:
        """Return it as messages show it."""
        return f"[{self.section}] {self.name}" if self.section else self.name


@dataclass(frozen=True, slots=True)
class Edited:
    """What an edit did."""

    path: Path
    changes: tuple[str, ...]
    """One line each."""
    copied_from: Path | None = None
    """The file that was copied to the operator's own folder first."""


def key_of(text: str) -> Key:
    """Return the key that words such as `tp-size`, `launch.port` or `NCCL_DEBUG` mean.

    Without a section it is a flag; host, port and model-path belong to [launch], names in
    capitals to [env].

    Raises:
        UsageError: There is no such section.
    """
    section, dot, name = text.partition(".")
    if dot and section in _SECTIONS:
        return Key(section, name if section in ("env", "secrets") else dashed(name))
    if dot:
        raise UsageError(f"'{text}': there is no [{section}]; sections: {', '.join(_SECTIONS)}")
    if text in ("description", "extends"):
        return Key("", text)
    if text.isupper():
        return Key("env", text)
    name = canonical(text)
    return Key("launch", name) if name in PLACES else Key("flags", dashed(text))


def value_of(text: str) -> Any:  # noqa: ANN401 - a TOML value
    """Return the TOML value that words mean: 8, 0.9, true, [1, 2], {a = 1}; else they are text."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = document["value"] if len(document) == 1 else None  # more is text with a line break
    return value if isinstance(value, str | int | float | bool | list | dict) else text


def own(store: PresetStore, name: str) -> Edited:
    """Make sure that a preset lies in the operator's own folder; raises PresetError."""
    path = store.path_of(name)
    target = store.own_folder / path.name
    if path == target:
        return Edited(path, ())
    write_preset(target, _text_of(path))
    return Edited(target, (), path)


def set_keys(store: PresetStore, name: str, wanted: Sequence[tuple[Key, Any]]) -> Edited:
    """Set keys in the preset's own file.

    Raises:
        PresetError: The file, or what it would become, is no valid preset; nothing is written.
    """
    document = _document(store.path_of(name))
    changes = tuple(_set(document, key, value) for key, value in wanted)
    return _written(store, name, document, changes)


def unset_keys(store: PresetStore, name: str, unwanted: Sequence[Key]) -> Edited:
    """Take keys away; an inherited flag is set to false, which leaves it out.

    Raises:
        PresetError: A key is not set, or is inherited and no flag; nothing is written.
    """
    document = _document(store.path_of(name))
    changes = tuple(_unset(store, name, document, key) for key in unwanted)
    return _written(store, name, document, changes)


def _set(document: TOMLDocument, key: Key, value: Any) -> str:  # noqa: ANN401
    table = _table(document, key.section, create=True)
    spelled = _spelling(table, key) or key.name
    before = table.get(spelled)
    table[spelled] = value
    shown = tomlkit.item(value).as_string()
    if before is None:
        return f"+ {key} = {shown}"
    if tomlkit.item(before).as_string() == shown:
        return f"= {key} is {shown} already"
    return f"~ {key}: {tomlkit.item(before).as_string()} -> {shown}"


def _unset(store: PresetStore, name: str, document: TOMLDocument, key: Key) -> str:
    table = _table(document, key.section, create=False)
    spelled = _spelling(table, key) if table is not None else None
    if table is not None and spelled is not None:
        before = tomlkit.item(table[spelled]).as_string()
        del table[spelled]
        return f"- {key} = {before}"
    preset = store.read(name)
    inherited = preset.flag(key.name) if key.section == "flags" else None
    if inherited is None:
        raise PresetError(f"{name}: {key} is not set in {store.path_of(name)}; nothing was changed")
    return f"{_set(document, key, False)} (it is inherited from {inherited.origin})"


def _spelling(table: Any, key: Key) -> str | None:  # noqa: ANN401 - a tomlkit table
    """Return how a table spells a key already, None where it has it not."""
    if key.section in ("", "env", "secrets"):
        return key.name if key.name in table else None
    wanted = canonical(key.name)
    return next((str(name) for name in table if canonical(str(name)) == wanted), None)


def _table(document: TOMLDocument, section: str, *, create: bool) -> Any:  # noqa: ANN401
    if not section:
        return document
    found = document.get(section)
    if found is None and create:
        document[section] = tomlkit.table()
        return document[section]
    if found is not None and not isinstance(found, AbstractTable | dict):
        raise PresetError(f"[{section}] must be a table; nothing was changed")
    return found


def _written(
    store: PresetStore, name: str, document: TOMLDocument, changes: tuple[str, ...]
) -> Edited:
    """Write the document into the operator's own folder, if it is a preset."""
    path = store.path_of(name)
    target = store.own_folder / path.name
    text = tomlkit.dumps(document)
    source = parse_preset(name, str(target), text)
    resolve(name, lambda wanted: source if wanted == name else store.source(wanted))
    write_preset(target, text)
    return Edited(target, changes, path if path != target else None)


def _document(path: Path) -> TOMLDocument:
    try:
        return tomlkit.parse(_text_of(path))
    except TOMLKitError as broken:
        raise PresetError(f"{path}: not TOML: {broken}; nothing was changed") from broken


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failed:
        raise PresetError(f"{path} cannot be read: {failed}") from failed
