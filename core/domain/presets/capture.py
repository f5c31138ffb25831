"""A launch that was seen (a process, a container, a unit) to the document of a preset like it.

Pure. Secrets are never taken over: they become references to be filled in.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvctl.core.domain.errors import PresetError
from kvctl.core.domain.presets.diff import flags_of_argv
from kvctl.core.domain.presets.help_command import ARGUMENTS, MODULE
from kvctl.core.domain.presets.preset import PLACES, Value, canonical
from kvctl.core.domain.presets.text import is_secret_flag, is_secret_variable

_PYTHON = re.compile(r"python[\d.]*$")
_OF_A_LAUNCH = re.compile(r"(SGLANG|SGL|NCCL|CUDA|HF|TORCH|PYTORCH|OMP|MKL|TRITON)_|PYTHONPATH$")
_IN_SHELL = re.compile(rf"(?:-m\s+{re.escape(MODULE)}|(?:^|[\s/])sglang\s+serve)(?=\s|$)")
_ASSIGNED = re.compile(r"(--env=|)([A-Za-z_]\w*)=(.*)", re.S)
_IN_TEXT = re.compile(r"(?<!\S)([A-Za-z_]\w*)=(?:'[^']*'|\"[^\"]*\"|\S+)\s+")


@dataclass(frozen=True, slots=True)
class Captured:
    """A preset made from something that was seen."""

    document: dict[str, Any]
    """The TOML document."""
    notes: tuple[str, ...] = ()
    """What could not be taken over and what to do, one line each."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A command line, cut where SGLang's own arguments begin."""

    head: tuple[str, ...]
    """Up to and with `sglang.launch_server` or `serve`; for a shell, with its text up to there."""
    flags: tuple[tuple[str, Value], ...]
    """SGLang's flags by canonical name."""

    @property
    def interpreter(self) -> str | None:
        """Return the Python that is all there is before SGLang, None for any other command."""
        head = self.head
        is_plain = bool(_PYTHON.match(os.path.basename(head[0]))) and head[-1] == MODULE
        options = head[1:-2]
        return head[0] if is_plain and all(word.startswith("-") for word in options) else None

    @property
    def template(self) -> list[str]:
        """Return the command with ARGUMENTS where SGLang's own come."""
        *words, last = self.head
        return [*words, f"{last} {ARGUMENTS}"] if " " in last else [*self.head, ARGUMENTS]


def entry_of(argv: Sequence[str]) -> Entry:
    """Cut a command line where SGLang's own arguments begin.

    Raises:
        PresetError: It does not run SGLang in a way that is known.
    """
    for at, word in enumerate(argv):
        following = argv[at + 1] if at + 1 < len(argv) else ""
        is_serve = os.path.basename(word) == "sglang" and following == "serve"
        if is_serve or (word, following) == ("-m", MODULE):
            return _entry(argv[: at + 2], argv[at + 2 :])
        if " " in word and (found := _IN_SHELL.search(word)):
            return _entry((*argv[:at], word[: found.end()]), _split(word[found.end() :]))
    shown = " ".join(argv)[:80] or "nothing"
    raise PresetError(f"no `-m {MODULE}` or `sglang serve` in the command line: {shown}")


def _entry(head: Sequence[str], rest: Sequence[str]) -> Entry:
    words = list(rest)
    if words and not words[0].startswith("-"):
        words = ["--model-path", *words]  # `sglang serve MODEL …`
    named = {canonical(name): value for name, value in flags_of_argv(words)}
    return Entry(tuple(head), tuple(named.items()))


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as broken:
        raise PresetError(f"the shell line cannot be read: {broken}") from broken
    ends = [at for at, word in enumerate(words) if word in ("&&", "||", "|", ";", "&", ">", "2>&1")]
    return words[: ends[0]] if ends else words


def document_of(
    argv: Sequence[str], environment: Mapping[str, str], description: str
) -> dict[str, Any]:
    """Return the TOML document of a preset for this command line and environment.

    Of the environment only what belongs to a launch is kept (SGLANG_*, NCCL_*, CUDA_* …).

    Raises:
        PresetError: The command line does not run SGLang in a way that is known.
    """
    entry = entry_of(argv)
    return assembled(description, program_of(entry), entry, kept_of(environment))


def program_of(entry: Entry) -> dict[str, Any]:
    """Return `python` or `command` of a preset's [launch]."""
    if entry.interpreter is not None:
        return {"python": entry.interpreter}
    return {"command": entry.template}


def kept_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that belong to a launch, sorted by name."""
    return {n: v for n, v in sorted(environment.items()) if _OF_A_LAUNCH.match(n)}


def assembled(
    description: str, launch: Mapping[str, Any], entry: Entry, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the document of a preset; secrets among flags and environment become references."""
    if "command" in launch:
        words, in_command = without_secrets(launch["command"])
        launch = {**launch, "command": words}
        environment = {**environment, **dict.fromkeys(in_command, "")}
    places = {n: plain(v) for n, v in entry.flags if n in PLACES}
    taken = [(n, v) for n, v in entry.flags if n not in PLACES]
    document: dict[str, Any] = {
        "description": description,
        "launch": {**places, **launch},
        "flags": {n: plain(v) for n, v in taken if not is_secret_flag(n)},
    }
    if shown := {n: _literal(v) for n, v in environment.items() if not is_secret_variable(n)}:
        document["env"] = shown
    hidden = [n for n, _ in taken if is_secret_flag(n)]
    hidden += [n for n in environment if is_secret_variable(n)]
    if hidden:
        document["secrets"] = {n: {"env": _variable(n)} for n in hidden}
    return document


def without_secrets(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return a command without the values of secret variables, and the names of these.

    `-e NAME=VALUE` becomes `-e NAME`; `env NAME=VALUE …` loses the word: `[secrets]` sets it.
    """
    kept: list[str] = []
    names: list[str] = []
    for word in words:
        found = _ASSIGNED.fullmatch(word)
        if found is None or not is_secret_variable(found[2]):
            kept.append(_IN_TEXT.sub(lambda part: _dropped(part, names), word))
            continue
        names.append(found[2])
        if found[1] or (kept and kept[-1] in ("-e", "--env")):
            kept.append(f"{found[1]}{found[2]}")
    return kept, tuple(dict.fromkeys(names))


def _dropped(found: re.Match[str], names: list[str]) -> str:
    """Take an assignment out of a line of shell if it sets a secret."""
    if not is_secret_variable(found[1]):
        return found[0]
    names.append(found[1])
    return ""


def _variable(name: str) -> str:
    return name if name.isupper() else f"SGLANG_{name.upper().replace('-', '_')}"


def _literal(text: str) -> str:
    """Return a text that kvctl will not expand."""
    return text.replace("${", "$${")


def plain(value: Value) -> Any:  # noqa: ANN401 - a TOML value
    """Return a word of a command line as the number it is, where it reads back the same."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if str(number) == value:
            return number
    return value
