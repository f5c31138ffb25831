"""Finds run files in a folder and says in a line what each holds; reads only, in a thread."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from kvctl.tui.present.box import Option

MOST = 12
_LARGEST = 256 * 1024


@dataclass(frozen=True, slots=True)
class RunFile:
    """What a run file says at a glance; kvctld checks it wholly before it starts."""

    path: str
    summary: str
    problem: str = ""


def describe(path: Path) -> RunFile:
    """Return a run file's name and partitions, or why it is none."""
    try:
        if path.stat().st_size > _LARGEST:
            return RunFile(str(path), "", "too large for a run file")
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        return RunFile(str(path), "", error.strerror or str(error))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return RunFile(str(path), "", f"not valid TOML: {error}")
    run = content.get("run")
    if not isinstance(run, dict):
        return RunFile(str(path), "", "has no [run] table")
    parts = content.get("partition", [])
    names = [str(p.get("name", "?")) for p in parts if isinstance(p, dict)]
    slots = run.get("concurrency", "auto")
    shown = " ".join(names) or "no partition"
    return RunFile(str(path), f"run {run.get('name', '?')}: {shown}, slots {slots}")


def found_in(folder: Path) -> list[Option]:
    """Return the run files of a folder and of the folders in it, newest first."""
    paths = [*folder.glob("*.toml"), *folder.glob("*/*.toml")]
    files = [describe(path) for path in sorted(paths, key=_age)[: MOST * 4]]
    good = [f for f in files if not f.problem][:MOST]
    return [Option(str(Path(f.path).relative_to(folder)), f.summary) for f in good]


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0
