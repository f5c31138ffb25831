"""From a command template to the commands that ask its SGLang for its help and its version.

Pure. Asking must never start, stop or disturb anything, so only a template that plainly runs
`-m sglang.launch_server` or `sglang serve` through programs which pass words on is turned into a
question; a script of the operator's own could do anything with `--help` and is never run.
"""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

ARGUMENTS = "{sglang_args}"
MODULE = "sglang.launch_server"
VERSION_MARK = "sglang-version"

_SAY_VERSION = f"import importlib.metadata as m;print('{VERSION_MARK}',m.version('sglang'))"
_CONTAINERS = ("docker", "podman", "nerdctl")
_PASSING_ON = (
    *_CONTAINERS,
    *("sudo", "env", "nice", "ionice", "numactl", "taskset", "ssh", "apptainer", "singularity"),
    *("bash", "sh", "zsh", "sglang"),
)
_PYTHON = re.compile(r"python[\d.]*$")
_ENTRY = re.compile(rf"-m\s+{re.escape(MODULE)}(?=\s|$)|(?:^|[\s/])sglang\s+serve(?=\s|$)")
_BEFORE = ("source", ".", "cd", "export", "ulimit", "umask", "set", "module")
_OURS_ALONE = ("--name", "-p", "--publish", "--restart", "--cidfile")
"""Options of `docker run` that would collide with the server's own container; each has a value."""
_ATTACHED = re.compile(r"-[dit]+$|--(detach|tty|interactive)(=\w+)?$")


@dataclass(frozen=True, slots=True)
class HelpCommand:
    """How to ask one SGLang about itself."""

    help: tuple[str, ...]
    """Prints argparse's help; imports torch, which takes 10 to 60 s."""
    version: tuple[str, ...] | None
    """Prints VERSION_MARK and the version in less than a second; None where that cannot be said."""


def of_interpreter(python: str) -> HelpCommand:
    """Return how to ask the SGLang of an interpreter."""
    return HelpCommand((python, "-m", MODULE, "--help"), (python, "-c", _SAY_VERSION))


def of_template(words: Sequence[str]) -> HelpCommand | None:
    """Return how to ask the SGLang that a command template runs; None where that is not safe.

    `words` still have ARGUMENTS in them.
    """
    if not words or not _passes_on(words[0]) or not any(ARGUMENTS in word for word in words):
        return None
    entry = _entry_of(words)
    if entry is None:
        return None
    quiet = _without_collisions(words, entry)
    asks_help = [word.replace(ARGUMENTS, "--help") for word in quiet]
    return HelpCommand(tuple(asks_help), _version_command(quiet))


def _passes_on(program: str) -> bool:
    name = os.path.basename(program)
    return name in _PASSING_ON or bool(_PYTHON.match(name))


def _entry_of(words: Sequence[str]) -> int | None:
    """Return the word at which SGLang itself begins, None if no word plainly is that."""
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if (word, following) == ("-m", MODULE) or _is_serve(word, following):
            return at
        if " " in word and _ENTRY.search(word):
            return at if _is_harmless(word) else None
    return None


def _is_serve(word: str, following: str) -> bool:
    return os.path.basename(word) == "sglang" and following == "serve"


def _is_harmless(script: str) -> bool:
    """Whether a line of shell only prepares its environment before SGLang's own command."""
    if re.search(r"[`|<>&]|\$\(", script.replace("&&", ";")):
        return False
    *before, last = [part.strip() for part in re.split(r"&&|;", script) if part.strip()]
    heads = [part.split()[0] for part in before]
    return all(head in _BEFORE or "=" in head for head in heads) and bool(_ENTRY.search(last))


def _without_collisions(words: Sequence[str], entry: int) -> list[str]:
    """Return a template without what ties `docker run` to the server's own container."""
    head, tail = list(words[:entry]), list(words[entry:])
    at = next((i for i, word in enumerate(head) if os.path.basename(word) in _CONTAINERS), None)
    if at is None:
        return [*head, *tail]
    kept, skips_value = head[: at + 1], False
    for word in head[at + 1 :]:
        name, equals, _ = word.partition("=")
        if skips_value:
            skips_value = False
        elif name in _OURS_ALONE:
            skips_value = not equals
        elif not _ATTACHED.match(word):
            kept.append(word)
    if "run" in kept and "--rm" not in kept:
        kept.insert(kept.index("run") + 1, "--rm")
    return [*kept, *tail]


def _version_command(words: Sequence[str]) -> tuple[str, ...] | None:
    said: list[str] = []
    at = 0
    has_asked = False
    while at < len(words):
        word = words[at]
        if tuple(words[at : at + 2]) == ("-m", MODULE):
            return (*said, "-c", _SAY_VERSION)
        if " " in word and f"-m {MODULE}" in word:
            before = word[: word.index(f"-m {MODULE}")]
            word, has_asked = f"{before}-c {shlex.quote(_SAY_VERSION)}", True
        said.append(word)
        at += 1
    return tuple(said) if has_asked else None


def names_flag_file(words: Sequence[str]) -> bool:
    """Return whether SGLang's own part of a command template has `--config`."""
    text = " ".join(words)
    entry = _ENTRY.search(text)
    after = text[entry.end() :].split() if entry else []
    return any(word.partition("=")[0] == "--config" for word in after)
