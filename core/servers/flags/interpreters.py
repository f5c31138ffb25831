"""Which SGLang an interpreter has, asked once as long as nothing was installed there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvctl.core.servers.flags.catalogue import Installed, locate

_Stamp = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Interpreters:
    """Remembers answers; asking anew starts a Python, 0.1 s on an idle host."""

    _known: dict[tuple[object, ...], tuple[_Stamp, Installed]] = field(default_factory=dict)

    def installed(self, python: str, environment: Mapping[str, str]) -> Installed | None:
        """Return where an interpreter has sglang, None where it has none. Blocks up to 20 s.

        Raises:
            InterpreterProblem: It is missing, not executable, or does not answer.
        """
        key = (python, *sorted(environment.items()))
        stamp, found = self._known.get(key, (None, None))
        if found is not None and stamp == _stamp(python, found):
            return found
        found = locate(python, environment)
        now = _stamp(python, found) if found is not None else None
        if found is not None and now is not None:
            self._known[key] = (now, found)
        return found


def _stamp(python: str, installed: Installed) -> _Stamp | None:
    """Return what changes with an install: the program, the package, the folder it lies in."""
    places = (Path(python), installed.folder, installed.folder.parent)
    try:
        states = [os.stat(place) for place in places]
    except OSError:
        return None
    return tuple((state.st_ino, state.st_mtime_ns) for state in states)
