"""Reads the flags of an installed SGLang from its source, importing neither it nor torch.

The interpreter that a preset names is asked where `sglang` lies (finding a top-level package does
not run it); then the files are parsed. Three layouts are known:

- 0.5.20 and later: annotated fields in `srt/arg_groups/fields/*.py`, choices in `choices.py`;
- 0.5.14 to 0.5.19: the same annotations in class `ServerArgs` of `srt/server_args.py`;
- up to 0.5.13: `add_argument` calls in `srt/server_args.py` (some remain in all later versions).

Where the source cannot be read the answer is None; `asking` then asks the SGLang itself.
"""

import ast
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvctl.core.domain.presets.flags import FlagCatalogue, FlagKind, FlagSpec
from kvctl.core.servers.flags.source import Constants, read_add_argument, read_field

_LOCATE = """
import importlib.metadata as m, importlib.util as u, json
spec = u.find_spec("sglang")
places = list(spec.submodule_search_locations or []) if spec else []
try: version = m.version("sglang")
except m.PackageNotFoundError: version = None
print(json.dumps({"folder": places[0] if places else None, "version": version}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """Where an interpreter has SGLang."""

    folder: Path
    """The package's folder."""
    version: str
    """As its metadata says; "unknown" without."""


class InterpreterProblem(Exception):
    """The interpreter cannot be asked; the message says why in one line."""


def locate(python: str, environment: Mapping[str, str] | None = None) -> Installed | None:
    """Ask an interpreter where its sglang is; None where it has none. Blocks up to 20 s.

    Raises:
        InterpreterProblem: It is missing, not executable, or does not answer.
    """
    # -P, not -I: a preset's PYTHONPATH must count as it will in the launch.
    command = [python, "-P", "-c", _LOCATE]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env=None if environment is None else dict(environment),
        )
    except FileNotFoundError as missing:
        raise InterpreterProblem(f"{python} does not exist") from missing
    except PermissionError as denied:
        raise InterpreterProblem(f"{python} may not be executed") from denied
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise InterpreterProblem(f"{python} does not answer: {failed}") from failed
    return _answer_of(python, done)


def _answer_of(python: str, done: "subprocess.CompletedProcess[str]") -> Installed | None:
    try:
        found = json.loads(done.stdout)
    except ValueError as broken:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InterpreterProblem(f"{python} is no usable Python 3.11: {last}") from broken
    if not found.get("folder"):
        return None
    return Installed(Path(found["folder"]), found.get("version") or "unknown")


def read_catalogue(installed: Installed) -> FlagCatalogue | None:
    """Parse the flags of an installed SGLang; None where no known layout is found."""
    flags = {flag.name: flag for flag in _read_flags(installed.folder)}
    if "model-path" not in flags:
        return None
    return FlagCatalogue(installed.version, tuple(flags.values()))


def _read_flags(package: Path) -> Iterator[FlagSpec]:
    srt = package / "srt"
    modules = [tree for path in _sources(srt) if (tree := _parsed(path)) is not None]
    constants = Constants.of(modules)
    for tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield from _fields(node, constants)
    for tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                flag = read_add_argument(node, constants)
                if flag is not None:
                    yield flag


def _sources(srt: Path) -> Iterable[Path]:
    fields = sorted((srt / "arg_groups" / "fields").glob("*.py"))
    return [srt / "arg_groups" / "choices.py", *fields, srt / "server_args.py"]


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _fields(node: ast.ClassDef, constants: Constants) -> Iterator[FlagSpec]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            yield from read_field(statement, constants)


def to_document(catalogue: FlagCatalogue) -> dict[str, Any]:
    """Return a catalogue as a JSON document of facts: everything but the words of the help."""
    flags = [_flag_document(flag) for flag in sorted(catalogue.flags, key=lambda f: f.name)]
    document: dict[str, Any] = {"version": catalogue.version, "flags": flags}
    return document | ({"is_from_help": True} if catalogue.is_from_help else {})


def _flag_document(flag: FlagSpec) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": flag.name, "type": flag.kind.value}
    facts |= {"aliases": list(flag.aliases)} if flag.aliases else {}
    facts |= {"default": flag.default} if flag.default is not None else {}
    facts |= {"choices": list(flag.choices)} if flag.choices else {}
    for name in ("takes_many", "may_be_bare", "is_required", "is_removed"):
        facts |= {name: True} if getattr(flag, name) else {}
    return facts | ({"successor": flag.successor} if flag.successor is not None else {})


def from_document(document: Mapping[str, Any]) -> FlagCatalogue:
    """Return the catalogue of a JSON document that `to_document` made."""
    flags = tuple(map(_flag_of, document["flags"]))
    return FlagCatalogue(str(document["version"]), flags, bool(document.get("is_from_help")))


def _flag_of(facts: Mapping[str, Any]) -> FlagSpec:
    default = facts.get("default")
    return FlagSpec(
        name=str(facts["name"]),
        kind=FlagKind(facts.get("type", "str")),
        aliases=tuple(facts.get("aliases", ())),
        default=None if default is None else str(default),
        choices=tuple(str(choice) for choice in facts.get("choices", ())),
        takes_many=bool(facts.get("takes_many")),
        may_be_bare=bool(facts.get("may_be_bare")),
        is_required=bool(facts.get("is_required") or facts.get("required")),
        successor=facts.get("successor"),
        is_removed=bool(facts.get("is_removed")),
    )
