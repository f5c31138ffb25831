"""An operator's place: a state folder, run files over real prompts, kvctl's verbs, counts.

What kvctl says is checked against what is read here without kvctl: output files by json alone,
processes by their session. Nothing of kvctl is imported.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from tests.e2e.terminal import KVCTL, Terminal
from tests.engine.launch import engine_home
from tests.engine.server import free_port, wait_for

PROMPTS = Path(__file__).parents[1] / "data" / "prompts"
INPUTS = {"B2": "B2-code.prompts.jsonl", "B3": "B3-math.messages.jsonl"}
VERB_WITHIN_S = 300.0
PATIENCE_S = 120.0
POLL_S = 0.2

Document = dict[str, Any]
Key = tuple[str, str]
"""Partition and id."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one call of kvctl printed, and its exit status."""

    status: int
    out: str
    err: str


@dataclass(slots=True)
class Place:
    """One operator's folder on this host, with a server's port and a kvctld of its own."""

    folder: Path
    port: int = field(default_factory=free_port)
    sessions: set[int] = field(default_factory=set)
    """Session ids of kvctld and of the servers that were seen."""
    runtimes: set[Path] = field(default_factory=set)
    """The folders of kvctld's socket, outside `folder`."""

    @property
    def state(self) -> Path:
        """Too long for a Unix socket: the runtime folder is another one, under /tmp."""
        return self.folder / ("state-" + "x" * 90)

    @property
    def environ(self) -> dict[str, str]:
        """A home of its own; servers that others run here are not looked for."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "KVCTL_", "SSH_"))}
        own = {
            "HOME": str(self.folder),
            "KVCTL_FIND": "0",
            "KVCTL_ENGINE_PORT": str(self.port),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
        }
        return {**kept, **engine_home().variables(), **own}

    # -- verbs --------------------------------------------------------------------------------

    def kvctl(self, *words: str | Path) -> Said:
        """Carry out one verb of the installed kvctl."""
        done = subprocess.run(
            [KVCTL, "--state-dir", self.state, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environ,
            cwd=self.folder,
            timeout=VERB_WITHIN_S,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr, done
        return Said(done.returncode, done.stdout, done.stderr)

    def do(self, *words: str | Path) -> str:
        """Carry out a verb that must succeed; what it printed."""
        said = self.kvctl(*words)
        assert (said.status, said.err) == (0, ""), (words, said)
        return said.out

    def ask(self, *words: str | Path) -> Document:
        """The one JSON document of a reading verb."""
        document: Document = json.loads(self.do(*words, "--json"))
        return document

    def run(self) -> Document:
        """The run as `kvctl run status` tells it."""
        return self.ask("run", "status")

    def until(
        self, holds: Callable[[Document], bool], what: str, within_s: float = PATIENCE_S
    ) -> Document:
        """Ask for the run until it is as wanted."""
        deadline = time.monotonic() + within_s
        while not holds(run := self.run()):
            assert time.monotonic() < deadline, f"not seen: {what}; the run: {run}"
            time.sleep(POLL_S)
        return run

    def server(self) -> Document:
        """The one server."""
        found: Document
        (found,) = self.ask("status")["servers"]
        if (session := _session_of(found["pid"])) is not None:
            self.sessions.add(session)
        return found

    def kvctld(self) -> Document:
        """Pid, socket and version of the kvctld that answers."""
        info = self.ask("daemon", "status")
        self.sessions.add(info["pid"])
        self.runtimes.add(Path(info["socket"]).parent)
        return info

    def panel(self) -> Terminal:
        """`kvctl` in a terminal of 120 columns and 40 rows."""
        command: list[str | Path] = [KVCTL, "--state-dir", self.state]
        return Terminal(command, environ=self.environ, cwd=self.folder)

    # -- runs ---------------------------------------------------------------------------------

    def write_run(self, name: str, rows: int, tokens: int, copies: int = 1) -> Path:
        """A run over the first prompts of B2 and B3 that ends at `tokens` each, the same always.

        Every prompt comes `copies` times, each under an id of its own.
        """
        for file in INPUTS.values():
            with (PROMPTS / file).open() as lines:
                prompts = [json.loads(line) for line in islice(lines, rows)]
            named = (
                p | {"id": f"{p['id']}~{n}" if n else p["id"]}
                for n in range(copies)
                for p in prompts
            )
            (self.folder / file).write_text("".join(json.dumps(row) + "\n" for row in named))
        parts = (f'[[partition]]\nname = "{n}"\ninput = "{f}"\n' for n, f in INPUTS.items())
        path = self.folder / f"{name}.toml"
        path.write_text(
            f'[run]\nname = "{name}"\noutput = "{name}"\nconcurrency = "auto"\nscout = 2\n'
            f'server = "http://127.0.0.1:{self.port}"\ntokenizer = "{engine_home().model}"\n'
            f"[sampling]\nmax_new_tokens = {tokens}\ntemperature = 0.0\n" + "".join(parts)
        )
        return path

    def wanted(self) -> Counter[Key]:
        """Every partition and id of the inputs, by json alone."""
        found: Counter[Key] = Counter()
        for partition, file in INPUTS.items():
            lines = (self.folder / file).read_text().splitlines()
            found.update((partition, json.loads(line)["id"]) for line in lines)
        return found

    def answers(self, name: str) -> list[Document]:
        """Every answer of a run that lies on disk, by json alone."""
        files = sorted((self.folder / name).glob("raw_responses*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def check_output(self, name: str, tokens: int) -> None:
        """`kvctl run verify` and a count of one's own agree: every id once and whole."""
        verdict = self.ask("run", "verify", self.folder / f"{name}.toml")
        answers = self.answers(name)
        assert Counter((a["partition"], a["id"]) for a in answers) == self.wanted()
        assert {len(a["output_ids"]) for a in answers} == {tokens}
        assert verdict["exact"] is True
        assert (verdict["total"], verdict["done"]) == (len(answers), len(answers))

    # -- processes ----------------------------------------------------------------------------

    def kill_kvctld(self) -> int:
        """kill -9, and wait until it is gone; the pid it had."""
        pid = int(self.kvctld()["pid"])
        kill_and_wait(pid)
        return pid

    def clear(self) -> None:
        """End whatever is left of kvctld and servers, and remove what lies outside the folder."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, KeyError, ValueError):
            self.kvctld()
            self.server()
        for session in self.sessions:
            for process in in_session(session):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        for runtime in self.runtimes:
            shutil.rmtree(runtime, ignore_errors=True)


def kill_and_wait(pid: int) -> None:
    """kill -9 of one process, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not _lives(pid), f"the end of {pid}", PATIENCE_S)


def in_session(session: int) -> list[psutil.Process]:
    """The living processes of a session."""
    return [p for p in psutil.process_iter() if _session_of(p.pid) == session and _lives(p.pid)]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def place_in(folder: Path) -> Iterator[Place]:
    """A place whose processes are ended with the test."""
    place = Place(folder)
    try:
        yield place
    finally:
        place.clear()
