"""Lets packages be imported that SGLang imports and never runs on the CPU.

A package `serve`d from here answers every attribute with an `Inert` class and every submodule
import with an `InertModule`. Decorating with them works; launching what they decorated raises.
No operator is reimplemented: a test engine that silently computed something else would be worse
than one that does not start.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_served_roots: set[str] = set()


class NeverRun:
    """A GPU kernel or operator that can be defined and passed on, not called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.arg_names: list[str] = []
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def __getitem__(self, grid: object) -> "NeverRun":
        return self

    def __call__(self, *_args: object, **_kwargs: object) -> Any:
        raise RuntimeError(f"import-only stand-in was called: {self.__module__}.{self.__name__}")


def _decorated(name: str, *args: Any, **kwargs: Any) -> Any:
    """Answer `@name` with the decorated object and `@name(...)` with a decorator.

    Raises:
        RuntimeError: Called without arguments, so as no decorator: a question to a GPU driver,
            which SGLang expects to fail on a host without one.
    """
    if not args and not kwargs:
        raise RuntimeError(f"import-only stand-in was called: {name}")
    if len(args) == 1 and not kwargs and callable(args[0]):
        target = args[0]
        return target if isinstance(target, NeverRun | type) else NeverRun(target)
    return Inert


class _InertType(type):
    """Class of every stand-in attribute: it can be subclassed, iterated (empty) and called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _inert(f"{cls.__module__}.{cls.__qualname__}", name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_is_stand_in" in cls.__dict__:
            return _decorated(f"{cls.__module__}.{cls.__qualname__}", *args, **kwargs)
        return super().__call__(*args, **kwargs)

    def __contains__(cls, _item: object) -> bool:
        return False

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class Inert(metaclass=_InertType):
    """Stands for any attribute of a served package."""

    _is_stand_in = True

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        """Accept whatever a subclass's caller passes."""

    def __init_subclass__(cls, **_kwargs: object) -> None:
        """Accept whatever keywords a class statement passes."""


def _inert(parent: str, name: str) -> _InertType:
    return _InertType(name, (Inert,), {"__module__": parent, "_is_stand_in": True})


class InertModule(types.ModuleType):
    """A submodule of a served package."""

    def __getattr__(self, name: str) -> Any:
        return attribute_of(self.__name__, name)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `root.anything` for each served root."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, dot, _ = fullname.partition(".")
        if not dot or root not in _served_roots:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return InertModule(spec.name)

    def exec_module(self, _module: types.ModuleType) -> None:
        """Nothing to run: attributes appear when they are asked for."""


_finder = _Submodules()


def attribute_of(module_name: str, name: str) -> Any:
    """The stand-in for `module_name.name`, the same object each time it is asked for."""
    if name.startswith("__"):
        raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
    value = _inert(module_name, name)
    setattr(sys.modules[module_name], name, value)
    return value


def serve(root: str) -> Callable[[str], Any]:
    """Serve every submodule of `root`; the result is to be its module-level `__getattr__`."""
    _served_roots.add(root)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return lambda name: attribute_of(root, name)
