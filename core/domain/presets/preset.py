"""A preset: how one server is launched, merged from its own file and those that it extends.

Pure: the text arrives from elsewhere (`text` parses it), variables are expanded only when
a launch is rendered (`launch_plan`), so a preset whose variables are unset can still be listed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvctl.core.domain.errors import PresetError

Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar, ...]

_SAME_FLAG = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "model": "model-path",
}

PLACES = ("host", "port", "model-path")
"""Flags that kvctl keeps in `[launch]`."""

_EXCLUDES = {"python": ("command",), "command": ("python",)}
"""Setting one of these in a file drops the other where it was inherited."""


def dashed(name: str) -> str:
    """Return a flag's name as SGLang prints it: no leading dashes, dashes inside."""
    return name.removeprefix("--").replace("_", "-")


def canonical(name: str) -> str:
    """Return one spelling for the flags that SGLang has always known under several.

    Source: aliases of `tp_size`, `dp_size`, `pp_size`, `ep_size` and `model_path`, 0.4.6 to 0.5.23.
    """
    plain = dashed(name)
    return _SAME_FLAG.get(plain, plain)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a setting was written."""

    preset: str
    """Name of the preset whose file has it."""
    path: str
    """That file."""
    line: int | None = None
    """From 1; None where it could not be found (inline tables)."""

    def __str__(self) -> str:
        """Return "FILE:LINE"."""
        return self.path if self.line is None else f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of `[launch]`, `[flags]` or `[env]`, unexpanded, with where it comes from."""

    name: str
    value: Value
    """`False` in `[flags]`: absent, also where a preset below sets it."""
    origin: Origin


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that is read when the server is launched and shown nowhere."""

    name: str
    """A flag, or an environment variable where it is written in capitals."""
    env: str | None
    """The variable of kvctl's environment that holds it."""
    file: str | None
    """The file that holds it; exactly one of `env` and `file` is set."""
    origin: Origin

    @property
    def is_variable(self) -> bool:
        """Whether it goes into the server's environment rather than onto its command line."""
        return self.name.isupper()


@dataclass(frozen=True, slots=True)
class PresetSource:
    """One preset file, before what it extends is merged in."""

    name: str
    path: str
    description: str | None = None
    extends: str | None = None
    launch: tuple[Setting, ...] = ()
    flags: tuple[Setting, ...] = ()
    env: tuple[Setting, ...] = ()
    secrets: tuple[Secret, ...] = ()


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset with everything that it inherits."""

    name: str
    path: str
    """Its own file."""
    description: str
    chain: tuple[str, ...]
    """Its own name, then what it extends, nearest first."""
    launch: tuple[Setting, ...]
    flags: tuple[Setting, ...]
    env: tuple[Setting, ...]
    secrets: tuple[Secret, ...]

    def launch_setting(self, name: str) -> Setting | None:
        """Return a key of `[launch]` (dashed), None where no file of the chain sets it."""
        return next((s for s in self.launch if s.name == name), None)

    def flag(self, name: str) -> Setting | None:
        """Return a flag that reaches the server, by any of its spellings; None if absent."""
        wanted = canonical(name)
        found = (s for s in self.flags if canonical(s.name) == wanted and s.value is not False)
        return next(found, None)

    @property
    def is_observed_only(self) -> bool:
        """Whether it names a server to watch (`url`) and no way to launch one."""
        return not (self.launch_setting("python") or self.launch_setting("command"))


@dataclass(frozen=True, slots=True)
class PresetProblem:
    """One thing that is wrong in a preset."""

    where: str
    """FILE:LINE, or FILE."""
    key: str
    """"[flags] mem-fraction-static", or "" for the file as a whole."""
    message: str
    """What is wrong and what to write instead."""
    variable: str | None = None
    """The environment variable that is all that is missing; None where something else is wrong."""

    def __str__(self) -> str:
        """Return the problem in one line."""
        return ": ".join(part for part in (self.where, self.key, self.message) if part)


class InvalidPreset(PresetError):
    """A preset cannot be used; `problems` has every reason, the message the first."""

    def __init__(self, problems: Sequence[PresetProblem]) -> None:
        """Keep all problems; at least one."""
        more = len(problems) - 1
        tail = f" (and {more} more: kvctl presets validate tells all)" if more else ""
        super().__init__(f"{problems[0]}{tail}")
        self.problems = tuple(problems)


def resolve(name: str, find: Callable[[str], PresetSource]) -> Preset:
    """Merge a preset with everything it extends.

    Raises:
        InvalidPreset: It extends itself (the circle is named), or `find` refuses one of the chain.
    """
    chain: list[PresetSource] = []
    wanted: str | None = name
    while wanted is not None:
        names = [source.name for source in chain]
        if wanted in names:
            raise InvalidPreset([_circle(chain, wanted)])
        chain.append(_find_parent(chain, wanted, find))
        wanted = chain[-1].extends
    return merge(chain)


def _find_parent(
    chain: Sequence[PresetSource], wanted: str, find: Callable[[str], PresetSource]
) -> PresetSource:
    try:
        return find(wanted)
    except InvalidPreset as refused:
        if not chain:
            raise
        child = chain[-1]
        prefix = f"extends '{wanted}', which cannot be used: "
        raise InvalidPreset(
            [PresetProblem(child.path, "extends", f"{prefix}{p}") for p in refused.problems]
        ) from refused


def _circle(chain: Sequence[PresetSource], wanted: str) -> PresetProblem:
    names = [source.name for source in chain]
    circle = " -> ".join([*names[names.index(wanted) :], wanted])
    return PresetProblem(
        chain[-1].path, "extends", f"a preset cannot extend itself: {circle}; remove one `extends`"
    )


def merge(chain: Sequence[PresetSource]) -> Preset:
    """Lay the files of a chain over each other, the nearest (first) on top."""
    launch: dict[str, Setting] = {}
    flags: dict[str, Setting] = {}
    env: dict[str, Setting] = {}
    secrets: dict[str, Secret] = {}
    for source in reversed(chain):
        for setting in source.launch:
            for other in _EXCLUDES.get(setting.name, ()):
                launch.pop(other, None)
            launch[setting.name] = setting
        flags.update({canonical(s.name): s for s in source.flags})
        env.update({s.name: s for s in source.env})
        secrets.update({s.name: s for s in source.secrets})
    top = chain[0]
    return Preset(
        name=top.name,
        path=top.path,
        description=top.description or "",
        chain=tuple(source.name for source in chain),
        launch=tuple(launch.values()),
        flags=tuple(flags.values()),
        env=tuple(env.values()),
        secrets=tuple(secrets.values()),
    )


def over_flag_file(preset: Preset, below: Sequence[Setting]) -> Preset:
    """Lay a preset over the flags of the file that its `config` flag names, as SGLang does.

    The `config` flag itself goes: everything it would bring is on the command line then.
    """
    own = {canonical(s.name): s for s in preset.flags if canonical(s.name) != "config"}
    named = {s.name for s in preset.launch}
    places = [s for s in below if canonical(s.name) in PLACES and canonical(s.name) not in named]
    flags = {canonical(s.name): s for s in below if canonical(s.name) not in PLACES}
    return replace(
        preset,
        launch=(*preset.launch, *(replace(s, name=canonical(s.name)) for s in places)),
        flags=tuple({**flags, **own}.values()),
    )
