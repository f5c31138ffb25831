"""The text of `python -m sglang.launch_server --help` to flags; for installs without source.

Format: argparse's, of any Python (before 3.13 each spelling repeats the value's name, since then
only the last one). The text may stand between other output, such as warnings. It tells names,
aliases, choices, whether a value follows and the help; types are those of `flag_kinds`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvctl.core.domain.presets.flag_kinds import kind_of
from kvctl.core.domain.presets.flags import FlagKind, FlagSpec

_SECTION = re.compile(r"(optional arguments|options|[A-Za-z][\w /-]*):\s*$")
_ENTRY = re.compile(r" {1,4}(-\S.*)$")
_SPELLING = re.compile(r"(--[A-Za-z0-9][\w-]*)(?:[ =](.+))?$")
_CHOICES = re.compile(r"\{([^{}]*)\}")
_DEFAULT = re.compile(r"\(default: ([^()]*)\)")
_DEPRECATED = re.compile(r"\(?deprecated\b", re.I)
_SUCCESSOR = re.compile(r"\b[Uu]se (--[\w-]+(?:\{[\w,-]+\}[\w-]*)?(?:=[\w-]+)?)")


def read_help(text: str) -> tuple[FlagSpec, ...]:
    """Return the flags that a help text tells, in its order; empty where it is none."""
    required = _required(text)
    flags: dict[str, FlagSpec] = {}
    for head, words in _entries(text.splitlines()):
        spec = _flag(head, words)
        if spec is not None and spec.name != "help":
            flags.setdefault(spec.name, replace(spec, is_required=spec.name in required))
    return tuple(flags.values())


def _required(text: str) -> frozenset[str]:
    """Return the flags that the usage shows without brackets."""
    usage = text[text.find("usage:") :].split("\n\n", 1)[0] if "usage:" in text else ""
    open_ = re.sub(r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]", " ", usage)
    return frozenset(name.removeprefix("--") for name in re.findall(r"--[\w-]+", open_))


def _entries(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (spellings, help) of each option; lines outside a section of options are skipped."""
    head, is_inside = "", False
    words: list[str] = []
    for line in lines:
        if _SECTION.match(line):
            is_inside = True
        elif line and not line[0].isspace():
            is_inside = False
        entry = _ENTRY.match(line) if is_inside else None
        if entry or not is_inside:
            if head:
                yield head, " ".join(words)
            head, words = "", []
        if entry:
            head, _, beside = re.sub(r" {2,}", "\0", entry[1]).partition("\0")
            words = beside.replace("\0", " ").split()
        elif head:
            words += line.split()
    if head:
        yield head, " ".join(words)


def _flag(head: str, words: str) -> FlagSpec | None:
    found = [_SPELLING.match(part) for part in re.split(r", (?=-)", head.strip())]
    spellings = [match for match in found if match]
    if not spellings:
        return None
    names = [match[1].removeprefix("--").replace("_", "-") for match in spellings]
    value = max((match[2] or "" for match in spellings), key=len)
    listed = _CHOICES.search(value)
    is_listed = "..." in value or len(re.sub(r"\{[^{}]*\}", "X", value).split()) > 1
    default = _DEFAULT.search(words)
    return FlagSpec(
        name=names[0],
        kind=kind_of(*names) if value else FlagKind.SWITCH,
        aliases=tuple(dict.fromkeys(names[1:])),
        default=default[1].strip() if default and default[1] != "None" else None,
        choices=tuple(listed[1].split(",")) if listed else (),
        takes_many=is_listed,
        may_be_bare=value.startswith("["),
        successor=_successor(words),
        help=words,
    )


def _successor(words: str) -> str | None:
    """Return what a deprecated flag's help says to write instead, "" if nothing, None if it is."""
    if not _DEPRECATED.match(words):
        return None
    # argparse breaks long words at dashes: "--cuda-graph- backend-decode".
    whole = re.sub(r"(?<=\w)- (?=\w)", "-", words)
    found = _SUCCESSOR.search(whole)
    return found[1] if found else ""
