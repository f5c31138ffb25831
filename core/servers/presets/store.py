"""Preset files on disk: several folders, the first that has a name wins.

Order: the user's, those of `[presets] folders` in config.toml, the one shipped with kvctl. Also
reads what `[secrets]` refers to, at the moment of a launch only.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from kvctl.core.domain.errors import PresetError
from kvctl.core.domain.presets.launch_plan import LaunchPlan, expand, missing_variables, render
from kvctl.core.domain.presets.preset import (
    InvalidPreset,
    Preset,
    PresetProblem,
    PresetSource,
    Secret,
    Setting,
    over_flag_file,
    resolve,
)
from kvctl.core.domain.presets.text import parse_preset
from kvctl.core.servers.flags.file import read_flag_file

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class ListedPreset:
    """One preset as a list shows it, readable or not."""

    name: str
    path: str
    preset: Preset | None
    """None where it cannot be read."""
    problems: tuple[PresetProblem, ...] = ()
    """Why it cannot be read, or what is missing here to start it."""
    hides: tuple[str, ...] = ()
    """Files of the same name in folders further down, which do not count."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the environment variables that are all that is missing to start it."""
        variables = [problem.variable for problem in self.problems]
        known = [name for name in variables if name is not None]
        return tuple(dict.fromkeys(known)) if len(known) == len(variables) else ()


def shipped_folder() -> Path:
    """Return the folder of the presets that come with kvctl."""
    return Path(str(files("kvctl") / "presets"))


def preset_folders(config_folder: Path, shared: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return the folders to look in, most preferred first; `config_folder` is …/kvctl.

    `shared` are those of `[presets] folders`: a team's or a site's, below the user's own.
    """
    return (config_folder / "presets", *shared, shipped_folder())


class PresetStore:
    """Reads and writes presets; keeps nothing, so an edited file counts at once."""

    def __init__(self, folders: Sequence[Path], environment: Mapping[str, str]) -> None:
        """Look in `folders` in that order; variables come from `environment`.

        `${KVCTL_PYTHON}` is kvctl's own interpreter unless the environment says otherwise.
        """
        self.folders = tuple(folders)
        self.environment = {"KVCTL_PYTHON": sys.executable, **environment}

    @property
    def own_folder(self) -> Path:
        """Return the folder of the operator's own presets, the only one that is written to."""
        return self.folders[0]

    def missing_folders(self) -> tuple[Path, ...]:
        """Return the shared folders that are not there; the own one may be."""
        return tuple(folder for folder in self.folders[1:] if not folder.is_dir())

    def names(self) -> tuple[str, ...]:
        """Return the names of all presets, sorted."""
        found = {path.stem for folder in self.folders for path in _toml_files(folder)}
        return tuple(sorted(name for name in found if _NAME.fullmatch(name)))

    def path_of(self, name: str) -> Path:
        """Return the file of a preset.

        Raises:
            InvalidPreset: No folder has it; the names there are are told.
        """
        if paths := self.paths_of(name):
            return paths[0]
        known = ", ".join(self.names()) or "none"
        raise InvalidPreset(
            [PresetProblem("", "", f"there is no preset '{name}'; there are: {known}")]
        )

    def paths_of(self, name: str) -> tuple[Path, ...]:
        """Return every file of that name, the one that counts first; empty if there is none."""
        if not _NAME.fullmatch(name):
            return ()
        named = (folder / f"{name}.toml" for folder in self.folders)
        return tuple(path for path in named if path.is_file())

    def read(self, name: str) -> Preset:
        """Read a preset with everything that it extends.

        Raises:
            InvalidPreset: With every problem of the first file that has one.
        """
        preset = resolve(name, self.source)
        asked = preset.flag("config")
        if asked is None:
            return preset
        return over_flag_file(preset, self._flag_file(name, asked))

    def _flag_file(self, name: str, asked: Setting) -> tuple[Setting, ...]:
        """Read the YAML file that a `config` flag names, relative to the preset's own folder."""
        text = expand(str(asked.value), self.environment, f"[flags] {asked.name}", asked.origin)
        path = Path(asked.origin.path).parent / Path(text).expanduser()
        return read_flag_file(path, name, asked)

    def listed(self) -> tuple[ListedPreset, ...]:
        """Return every preset, each with what is wrong with it."""
        return tuple(self._listed(name) for name in self.names())

    def _listed(self, name: str) -> ListedPreset:
        path, *hidden = (str(path) for path in self.paths_of(name))
        hides = tuple(hidden)
        try:
            preset = self.read(name)
        except InvalidPreset as refused:
            return ListedPreset(name, path, None, refused.problems, hides)
        missing = missing_variables(preset, self.environment)
        return ListedPreset(name, path, preset, missing, hides)

    def shown_plan(self, preset: Preset) -> LaunchPlan:
        """Render a preset with its secrets hidden, to check or show it. Raises InvalidPreset."""
        return render(preset, self.environment)

    def launch_plan(self, preset: Preset) -> LaunchPlan:
        """Render a preset with its secrets, to launch it. Raises InvalidPreset."""
        return render(preset, self.environment, read_secrets(preset, self.environment))

    def save(self, name: str, document: Mapping[str, Any], *, replace: bool = False) -> Path:
        """Write a new preset into the operator's own folder.

        Raises:
            PresetError: The document is no valid preset, the name is taken, or the disk refuses.
        """
        path = self.own_folder / f"{name}.toml"
        if not _NAME.fullmatch(name):
            raise PresetError(f"'{name}' is no name for a preset: letters, digits, . _ -")
        if path.exists() and not replace:
            raise PresetError(f"{path} exists; choose another name or replace it")
        text = tomli_w.dumps(document)
        parse_preset(name, str(path), text)
        write_preset(path, text)
        return path

    def source(self, name: str) -> PresetSource:
        """Read the file of a preset without what it extends. Raises InvalidPreset."""
        path = self.path_of(name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as failed:
            raise InvalidPreset(
                [PresetProblem(str(path), "", f"cannot be read: {failed}")]
            ) from failed
        return parse_preset(name, str(path), text)


def read_secrets(preset: Preset, environment: Mapping[str, str]) -> dict[str, str]:
    """Read what `[secrets]` refers to.

    Raises:
        InvalidPreset: With every variable that is not set and every file that cannot be read.
    """
    values: dict[str, str] = {}
    problems: list[PresetProblem] = []
    for secret in preset.secrets:
        try:
            values[secret.name] = _secret_value(secret, environment)
        except InvalidPreset as refused:
            problems.extend(refused.problems)
    if problems:
        raise InvalidPreset(problems)
    return values


def _secret_value(secret: Secret, environment: Mapping[str, str]) -> str:
    key = f"[secrets] {secret.name}"
    if secret.env is not None:
        value = environment.get(secret.env, "")
        problem = f"{secret.env} is not set in the environment of kvctl and its daemon"
    else:
        path = Path(expand(secret.file or "", environment, key, secret.origin)).expanduser()
        try:
            value = path.read_text(encoding="utf-8").strip()
            problem = f"{path} is empty"
        except (OSError, UnicodeDecodeError) as failed:
            value, problem = "", f"{path} cannot be read: {failed.__class__.__name__}"
    if value:
        return value
    raise InvalidPreset([PresetProblem(str(secret.origin), key, problem)])


def _toml_files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix == ".toml" and path.is_file()]
    except OSError:
        return []


def write_preset(path: Path, text: str) -> None:
    """Write a preset's file whole or not at all; a link stays a link. Raises PresetError."""
    path = path.resolve()
    unfinished = path.with_suffix(".toml.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as failed:
        raise PresetError(f"{path} cannot be written: {failed.strerror or failed}") from failed
