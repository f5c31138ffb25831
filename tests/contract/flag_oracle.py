"""SGLang's own argument parser, built from its source where nothing that it imports is installed.

    python tests/contract/flag_oracle.py FOLDER < argvs.json

FOLDER holds the unpacked package. Only `server_args` and `arg_groups` are loaded for real; every
other module is an empty stand-in whose attributes are stand-ins too, so neither torch nor SGLang's
own packages are needed. Prints {"flags": {option: facts}, "accepted": [bool, one per argv]}.
"""

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REAL = (
    "sglang.srt.server_args",
    "sglang.srt.arg_groups",
    "sglang.srt.utils.server_args_config_parser",
)
INSTALLED = ("msgspec", "typing_extensions", "yaml")


class Open(list[Any]):
    """A list of choices of which only a part is known here: it contains everything."""

    def __contains__(self, item: object) -> bool:
        return True

    def __add__(self, other: Any) -> "Open":
        return Open([*self, *other])


class StandInClass(type):
    """A class that is callable, iterable and has every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *args: Any, **named: Any) -> Any:
        # As a decorator it leaves what it decorates alone.
        is_decorating = len(args) == 1 and isinstance(args[0], types.FunctionType | type)
        return args[0] if is_decorating and not named else stand_in("result")

    def __iter__(cls) -> Any:
        return iter(Open())

    def __contains__(cls, item: object) -> bool:
        return True

    def __add__(cls, other: Any) -> Open:
        return Open(other)

    __radd__ = __add__

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def stand_in(name: str) -> Any:
    return StandInClass(name, (), {})


class StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module but the standard library's and the REAL ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if name.startswith(REAL) or top in INSTALLED or top in sys.stdlib_module_names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        top, _, rest = module.__name__.partition(".")
        is_package = top == "sglang" and rest in ("", "srt", "srt.utils")
        place = self.folder / rest.replace(".", "/")
        module.__path__ = [str(place)] if is_package else []


def parser_of(folder: Path) -> argparse.ArgumentParser:
    """Return the parser of the package in a folder; its modules stay loaded."""
    sys.meta_path.insert(0, Finder(folder))
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def accepts(parser: argparse.ArgumentParser, argv: Sequence[str]) -> bool:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            _, unknown = parser.parse_known_args(argv)
        except (SystemExit, argparse.ArgumentError, AssertionError, ValueError):
            return False
    return not unknown


def facts_of(action: argparse.Action) -> dict[str, Any]:
    is_open = action.choices is None or not isinstance(action.choices, list | tuple | set)
    is_open = is_open or isinstance(action.choices, Open)
    return {
        "choices": None if is_open else [str(choice) for choice in action.choices or ()],
        "nargs": action.nargs,
        "is_hidden": action.help == argparse.SUPPRESS,
        "action": type(action).__name__,
    }


def main() -> None:
    parser = parser_of(Path(sys.argv[1]))
    options = {
        name.removeprefix("--"): facts_of(action)
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--") and name != "--help"
    }
    accepted = [accepts(parser, argv) for argv in json.load(sys.stdin)]
    json.dump({"flags": options, "accepted": accepted}, sys.stdout)


if __name__ == "__main__":
    main()
