"""A preset and an environment to the exact command line of one launch.

Pure: variables come as a mapping, secrets are read elsewhere and passed in. `shown_argv` and
`shown_env` are what may be displayed, logged or kept; `argv` and `env` hold the secrets.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvctl.core.domain.presets.diff import text_of
from kvctl.core.domain.presets.help_command import ARGUMENTS, HelpCommand, of_template
from kvctl.core.domain.presets.preset import (
    InvalidPreset,
    Origin,
    Preset,
    PresetProblem,
    Setting,
    Value,
    canonical,
)
from kvctl.core.domain.presets.text import is_secret_flag, is_secret_variable
from kvctl.core.domain.servers.server import LaunchFlag

HIDDEN = "***"
DEFAULT_PORT = 30000
DEFAULT_HOST = "127.0.0.1"
QUICK_DEATH = (
    ("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "0"),
    ("SGLANG_CUDA_COREDUMP_BEFORE_CRASH", "0"),
)
"""With these a failing server is gone at once; without, it lingers 65 s with its memory.

Source: environ.py and the SIGQUIT path of 0.5.23, seen on a running server.
"""

_VARIABLE = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch, ready to be carried out."""

    preset: str
    argv: tuple[str, ...] = field(repr=False)
    """Empty for a server that is only observed."""
    shown_argv: tuple[str, ...]
    """The same with secrets hidden."""
    env: tuple[tuple[str, str], ...] = field(repr=False)
    """What is added to kvctl's own environment."""
    secret_variables: tuple[str, ...]
    """Names in `env` whose values are hidden."""
    url: str
    host: str
    port: int
    model_path: str | None
    gpus: tuple[str, ...]
    """Indices in PCI order, or UUIDs; empty: whatever the server sees."""
    log: str | None
    """Where a server that is not our child writes its log; None: kvctl's own file."""
    log_command: tuple[str, ...] | None
    """What prints its log and goes on doing so, where that is in no file; None: nothing."""
    stop: tuple[str, ...] | None
    """The command that stops a server which a signal does not reach; None: signals."""
    is_direct: bool
    """The first process is the server itself (an interpreter was named, no command template)."""
    settings: tuple[Setting, ...]
    """The flags with variables expanded and where each was written."""
    flags: tuple[LaunchFlag, ...]
    """Flags and environment for display; secrets hidden."""
    asking: HelpCommand | None = field(default=None, repr=False)
    """How to ask the SGLang of a command template about itself; None where that is not safe."""
    restarts_after_crash: bool | None = None
    """None: as config.toml says."""

    @property
    def shown_env(self) -> tuple[tuple[str, str], ...]:
        """Return the added environment with secrets hidden."""
        return tuple((n, HIDDEN if n in self.secret_variables else v) for n, v in self.env)

    @property
    def is_observed_only(self) -> bool:
        """Whether there is nothing to launch."""
        return not self.argv


def expand(text: str, environment: Mapping[str, str], key: str, origin: Origin) -> str:
    """Replace `${NAME}` and `${NAME:-default}`; `$${NAME}` stands for `${NAME}` itself.

    Raises:
        InvalidPreset: A variable is not set; key and file are named.
    """

    def value_of(found: re.Match[str]) -> str:
        escaped, name, default = found.groups()
        if escaped:
            return found[0][1:]
        value = environment.get(name) or default
        if value is None:
            advice = f"${{{name}}} is not set; set it in the environment of kvctl and its daemon"
            raise InvalidPreset([PresetProblem(str(origin), key, advice, name)])
        return value

    return _VARIABLE.sub(value_of, text)


def render(
    preset: Preset, environment: Mapping[str, str], secrets: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the launch of a preset in an environment.

    `secrets` maps the names of `[secrets]` to their values; None renders them hidden, which is
    enough to check or to show a preset.

    Raises:
        InvalidPreset: With every variable that is missing and every contradiction.
    """
    return _Renderer(preset, environment, secrets).plan()


def missing_variables(preset: Preset, environment: Mapping[str, str]) -> tuple[PresetProblem, ...]:
    """Return what keeps a preset from being rendered here; empty if nothing does."""
    try:
        render(preset, environment)
    except InvalidPreset as refused:
        return refused.problems
    return ()


def redact(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line (of any process) with the values of secret flags hidden."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        head, equals, _ = word.partition("=")
        is_secret = word.startswith("--") and is_secret_flag(head)
        if hide_next and not word.startswith("--"):
            shown.append(HIDDEN)
        else:
            shown.append(f"{head}={HIDDEN}" if is_secret and equals else word)
        hide_next = is_secret and not equals
    return tuple(shown)


class _Renderer:
    """Expands one preset, collecting problems instead of stopping at the first."""

    def __init__(
        self, preset: Preset, environment: Mapping[str, str], secrets: Mapping[str, str] | None
    ) -> None:
        self.preset = preset
        self.environment = environment
        self.secrets = secrets
        self.problems: list[PresetProblem] = []
        self.flags = tuple((s, self._expanded("flags", s)) for s in preset.flags)

    def plan(self) -> LaunchPlan:
        launch = {s.name: self._expanded("launch", s) for s in self.preset.launch}
        port = self._port(launch.get("port", DEFAULT_PORT))
        host = str(launch.get("host", DEFAULT_HOST))
        model = launch.get("model-path")
        places = {"{port}": str(port), "{host}": host, "{model_path}": str(model or "")}
        argv = self._argv(launch, self._arguments(launch, self.secrets), places)
        shown = self._argv(launch, self._arguments(launch, None), places)
        env = self._env(launch)
        plan = LaunchPlan(
            preset=self.preset.name,
            argv=argv,
            shown_argv=redact(shown),
            env=env,
            secret_variables=self._secret_variables(),
            url=str(launch.get("url") or f"http://{_reachable(host)}:{port}"),
            host=host,
            port=port,
            model_path=None if model is None else str(model),
            gpus=tuple(str(gpu) for gpu in _items(launch.get("gpus"))),
            log=_text(launch.get("log"), places),
            log_command=_words(launch.get("log"), places),
            stop=_words(launch.get("stop"), places),
            is_direct="python" in launch,
            settings=tuple(replace(s, value=value) for s, value in self.flags),
            flags=self._shown_flags(env),
            asking=of_template([_fill(str(w), places) for w in _items(launch.get("command"))]),
            restarts_after_crash=_switch(launch.get("restart-after-crash")),
        )
        if self.problems:
            raise InvalidPreset(tuple(dict.fromkeys(self.problems)))
        return plan

    def _expanded(self, table: str, setting: Setting) -> Value:
        key = f"[{table}] {setting.name}"

        def one(value: Value) -> Value:
            if not isinstance(value, str):
                return value
            try:
                return expand(value, self.environment, key, setting.origin)
            except InvalidPreset as refused:
                self.problems.extend(refused.problems)
                return value

        if isinstance(setting.value, tuple):
            return tuple(str(w) if isinstance(w := one(v), tuple) else w for v in setting.value)
        return one(setting.value)

    def _wrong(self, name: str, message: str) -> None:
        setting = self.preset.launch_setting(name)
        where = str(setting.origin) if setting else self.preset.path
        self.problems.append(PresetProblem(where, f"[launch] {name}", message))

    def _port(self, value: Value) -> int:
        try:
            port = int(str(value))
        except ValueError:
            port = 0
        if not 0 < port < 65536 and "${" not in str(value):
            self._wrong("port", f"must be a port number, 1 to 65535, not {value!r}")
        return port

    def _arguments(
        self, launch: Mapping[str, Value], secrets: Mapping[str, str] | None
    ) -> list[str]:
        """Return SGLang's own arguments: model, host and port first, secrets last."""
        words: list[str] = []
        for name in ("model-path", "host", "port"):
            if name in launch:
                words += flag_words(name, launch[name])
        for setting, value in self.flags:
            words += flag_words(setting.name, value)
        for secret in self.preset.secrets:
            if not secret.is_variable:
                words += flag_words(
                    secret.name, HIDDEN if secrets is None else secrets[secret.name]
                )
        return words

    def _argv(
        self, launch: Mapping[str, Value], arguments: Sequence[str], places: Mapping[str, str]
    ) -> tuple[str, ...]:
        if "python" in launch:
            return (str(launch["python"]), "-m", "sglang.launch_server", *arguments)
        words = [str(word) for word in _items(launch.get("command"))]
        if words and not any(ARGUMENTS in word for word in words):
            if self.preset.flags or self.preset.secrets:
                advice = f"has no {ARGUMENTS}, so the flags would not reach the server; add it"
                self._wrong("command", advice)
        elif not words and "url" not in launch:
            advice = (
                "is missing: name the interpreter that has SGLang, a command, or a url to watch"
            )
            self._wrong("python", advice)
        return tuple(filled for word in words for filled in _spliced(word, arguments, places))

    def _env(self, launch: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
        given = {s.name: str(self._expanded("env", s)) for s in self.preset.env}
        named = [s.name for s in self.preset.secrets if s.is_variable]
        given |= {n: HIDDEN if self.secrets is None else self.secrets[n] for n in named}
        gpus = _items(launch.get("gpus"))
        if gpus and "CUDA_VISIBLE_DEVICES" in given:
            self._wrong("gpus", "contradicts [env] CUDA_VISIBLE_DEVICES; give one of them")
        if gpus:
            given["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            given["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in gpus)
        quick = [(n, v) for n, v in QUICK_DEATH if n not in given and n not in self.environment]
        return (*quick, *given.items())

    def _secret_variables(self) -> tuple[str, ...]:
        named = {s.name for s in self.preset.secrets if s.is_variable}
        return tuple(
            sorted(named | {s.name for s in self.preset.env if is_secret_variable(s.name)})
        )

    def _shown_flags(self, env: Sequence[tuple[str, str]]) -> tuple[LaunchFlag, ...]:
        flags = [
            LaunchFlag(s.name, text_of(value), f"preset {s.origin.preset}")
            for s, value in self.flags
            if value is not False
        ]
        hidden, own = self._secret_variables(), {name for name, _ in QUICK_DEATH}
        given = {setting.name for setting in self.preset.env}
        return (
            *flags,
            *(
                LaunchFlag(n, HIDDEN if n in hidden else v, "kvctl" if n in own - given else "env")
                for n, v in env
            ),
        )


def flag_words(name: str, value: Value) -> list[str]:
    """Return the words of one flag on a command line; none where it is absent (false)."""
    # Written out: SGLang knows `--tp` only as an abbreviation (argparse prefix), 0.4.6 to 0.5.23.
    flag = f"--{canonical(name)}"
    if value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, tuple):
        return [flag, *(str(item) for item in value)]
    # A value that begins with a dash would be read as another flag.
    return [f"{flag}={value}"] if str(value).startswith("-") else [flag, str(value)]


def _spliced(word: str, arguments: Sequence[str], places: Mapping[str, str]) -> Sequence[str]:
    if word == ARGUMENTS:
        return arguments
    return [_fill(word, places).replace(ARGUMENTS, shlex.join(arguments))]


def _switch(value: Value | None) -> bool | None:
    return value if isinstance(value, bool) else None


def _fill(text: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        text = text.replace(place, value)
    return text


def _text(value: Value | None, places: Mapping[str, str]) -> str | None:
    return _fill(value, places) if isinstance(value, str) else None


def _words(value: Value | None, places: Mapping[str, str]) -> tuple[str, ...] | None:
    return tuple(_fill(str(word), places) for word in _items(value)) or None


def _items(value: Value | None) -> tuple[str | int | float | bool, ...]:
    return value if isinstance(value, tuple) else ()


def _reachable(host: str) -> str:
    if host in ("0.0.0.0", ""):
        return DEFAULT_HOST
    return "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
