"""Asks an SGLang for its flags where its source cannot be read: containers, wheels without source.

`--help` goes through the same command template as the launch. It imports torch there (10 to 60 s),
so the text is kept on disk by version; only the version is asked again (under a second).
"""

import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvctl.core.domain.presets.flag_help import read_help
from kvctl.core.domain.presets.flags import FlagCatalogue
from kvctl.core.domain.presets.help_command import VERSION_MARK, HelpCommand, of_interpreter
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.servers.flags.catalogue import Installed, read_catalogue

UNKNOWN = "unknown"
_VERSION_S = 60.0
_HELP_S = 240.0
_NOT_ASKED = (
    "not checked: the command does not plainly run sglang.launch_server, so it is not asked; "
    "SGLang itself refuses a wrong flag at its start"
)
_FRESH_S = 24 * 3600.0
"""How long a help of an unknown version is believed."""


@dataclass(frozen=True, slots=True)
class Told:
    """The flags of the SGLang that a launch would run, or why they are not known."""

    catalogue: FlagCatalogue | None
    problem: str | None = None
    """In one line, with what to do; None where there is a catalogue."""


@dataclass(slots=True)
class CatalogueCache:
    """Finds the flags of a launch: from source, else from `--help`; each version once."""

    folder: Path | None = None
    """Where help texts are kept; None: only in memory."""
    _read: dict[tuple[Path, str], FlagCatalogue | None] = field(default_factory=dict)
    _told: dict[tuple[str, ...], Told] = field(default_factory=dict)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def of_plan(
        self, plan: LaunchPlan, environment: Mapping[str, str], installed: Installed | None
    ) -> Told:
        """Return the flags that a launch's SGLang accepts. Blocks: 0.5 s by source, 60 s by help.

        `environment` is kvctl's own; `installed` is what the preset's interpreter answered.
        """
        if plan.is_direct:
            merged = {**environment, **dict(plan.env)}
            return self.of_interpreter(plan.argv[0], merged, installed)
        if plan.asking is None:
            return Told(None, _NOT_ASKED)
        with self._one_at_a_time:
            return self._of_help(plan.asking, {**environment, **dict(plan.env)})

    def of_interpreter(
        self, python: str, environment: Mapping[str, str], installed: Installed | None
    ) -> Told:
        """Return the flags that an interpreter's SGLang accepts. Blocks as `of_plan` does."""
        if installed is None:
            return Told(None, f"not checked: {python} has no sglang")
        with self._one_at_a_time:
            from_source = self._of_source(installed)
            if from_source is not None:
                return Told(from_source)
            return self._of_help(of_interpreter(python), environment)

    def _of_source(self, installed: Installed) -> FlagCatalogue | None:
        key = (installed.folder, installed.version)
        if key not in self._read:
            self._read[key] = read_catalogue(installed)
        return self._read[key]

    def _of_help(self, asking: HelpCommand, environment: Mapping[str, str]) -> Told:
        version = _ask_version(asking, environment)
        key = (version, *asking.help)
        known = self._told.get(key)
        if known is not None and version != UNKNOWN:
            return known
        text, problem = self._help_text(key, asking, environment)
        flags = read_help(text)
        if problem is not None or not any(flag.name == "model-path" for flag in flags):
            said = problem or "printed no help of sglang.launch_server"
            return Told(None, f"not checked: {_shown(asking.help)} {said}")
        self._told[key] = Told(FlagCatalogue(version, flags, is_from_help=True))
        return self._told[key]

    def _help_text(
        self, key: Sequence[str], asking: HelpCommand, environment: Mapping[str, str]
    ) -> tuple[str, str | None]:
        """Return (text, why there is none); kept on disk once it was printed."""
        path = self._path(key)
        if path is not None and _is_usable(path, key[0]):
            return path.read_text(encoding="utf-8", errors="replace"), None
        text, problem = _run(asking.help, environment, _HELP_S)
        if path is not None and problem is None and "--model-path" in text:
            _keep(path, text)
        return text, problem

    def _path(self, key: Sequence[str]) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:12]
        version = "".join(c if c.isalnum() or c in "._-" else "_" for c in key[0])
        return self.folder / f"help-{version}-{digest}.txt"


def _ask_version(asking: HelpCommand, environment: Mapping[str, str]) -> str:
    if asking.version is None:
        return UNKNOWN
    text, _ = _run(asking.version, environment, _VERSION_S)
    lines = (line.split() for line in text.splitlines())
    return next((w[1] for w in lines if len(w) == 2 and w[0] == VERSION_MARK), UNKNOWN)


def _run(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> tuple[str, str | None]:
    """Return (standard output, why it is none). In its own session: it cannot ask the terminal."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Narrow terminals make argparse break words; the parser copes, but why let it.
            env={**environment, "COLUMNS": "120"},
            start_new_session=True,
        )
    except OSError as failed:
        return "", f"cannot be run: {failed.strerror or failed}"
    out, err = _read_within(child, limit_s)
    if out is None:
        return "", f"does not answer within {limit_s:.0f} s"
    if child.returncode:
        said = err.decode("utf-8", "replace").strip().splitlines() or ["no words"]
        return "", f"ended with status {child.returncode}: {said[-1][:200]}"
    return out.decode("utf-8", "replace"), None


def _read_within(child: "subprocess.Popen[bytes]", limit_s: float) -> tuple[bytes | None, bytes]:
    """Return what a child printed, (None, …) if it had to be ended with everything it started."""
    try:
        return child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return None, child.communicate()[1]


def _is_usable(path: Path, version: str) -> bool:
    try:
        age_s = time.time() - path.stat().st_mtime
    except OSError:
        return False
    return version != UNKNOWN or age_s < _FRESH_S


def _keep(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError:
        return  # asked again next time: nothing is lost but a minute


def _shown(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 60 else f"{text[:40]} … {text[-17:]}"
