"""Which process is SGLang's, and whether the one that started it still lives.

Pure: reads `ProcessFacts` only. Titles as SGLang 0.4.3 to 0.5.23 sets them.
Source: sglang `managers/scheduler.py`, `managers/data_parallel_controller.py` (setproctitle).
"""

import re
from collections.abc import Iterator, Mapping

from kvctl.core.domain.gpus.devices import ProcessFacts

_ENGINE_WORDS = re.compile(r"sglang\.launch_server|sglang serve|sglang\.srt")
_INTERPRETER = re.compile(r"^(python[\d.]*t?|pypy[\d.]*|sglang)$")
_RANKS = re.compile(r"^sglang::scheduler((?:_[A-Z]+\d+)*)")
_VITAL = ("sglang::scheduler", "sglang::detokenizer", "sglang::data_parallel_controller")
_OLD_MAIN = "sglang::http_server"
_REAPERS = re.compile(
    r"^(systemd|init|tini|dumb-init|docker-init|catatonit|conmon|containerd-shim\S*|s6-svscan|runsvdir"
    r"|slurmstepd|launchd|sshd|login|-?(ba|da|z|fi)?sh|tmux|screen|SCREEN)$"
)
_MOST_ANCESTORS = 64


def program(title: str) -> str:
    """Return the name of the program at the start of a command line: "python3.12"."""
    first = title.split(" ", 1)[0].rstrip(":")
    return first.rsplit("/", 1)[-1]


def is_interpreter(title: str) -> bool:
    """Return whether it is Python, or the `sglang` command, by its first word."""
    return _INTERPRETER.match(program(title)) is not None


def is_engine_main(title: str) -> bool:
    """Return whether it is the front process of a server (HTTP and tokenizer)."""
    if title.startswith(_OLD_MAIN):
        return True
    return is_interpreter(title) and _ENGINE_WORDS.search(title) is not None


def is_engine(title: str) -> bool:
    """Return whether the title says that the process is SGLang's."""
    return title.startswith("sglang::") or is_engine_main(title)


def is_vital(title: str) -> bool:
    """Return whether a server cannot serve without a process of this title."""
    return title.startswith(_VITAL)


def is_spawn_child(title: str) -> bool:
    """Return whether it is a Python child that has not set its title yet."""
    return is_interpreter(title) and "multiprocessing" in title


def rank_of(title: str) -> str | None:
    """Return the rank that a scheduler's title names: "DP0 TP4"; None if no scheduler.

    A server on one GPU sets no rank in the title: that is TP0.
    """
    match = _RANKS.match(title)
    if match is None:
        return None
    return match[1].strip("_").replace("_", " ") or "TP0"


def parent_of(process: ProcessFacts, facts: Mapping[int, ProcessFacts]) -> ProcessFacts | None:
    """Return its parent, None if that is not visible here or younger (another process by now)."""
    parent = facts.get(process.parent_pid)
    if parent is None or parent.identity.start_ticks > process.identity.start_ticks:
        return None
    return parent


def ancestors(process: ProcessFacts, facts: Mapping[int, ProcessFacts]) -> Iterator[ProcessFacts]:
    """Yield parent, grandparent …, as far as they are visible."""
    current = parent_of(process, facts)
    for _ in range(_MOST_ANCESTORS):
        if current is None:
            return
        yield current
        current = parent_of(current, facts)


def parent_gone(process: ProcessFacts, facts: Mapping[int, ProcessFacts]) -> str | None:
    """Return the evidence that its first parent has ended, None where it may live.

    Init or another reaper is parent now; or the parent sits in another session, which a
    child that did not open its own inherits. Python as process 1 is a container's server.
    """
    parent = facts.get(process.parent_pid)
    if parent is None:
        return "parent gone (now 1)" if process.parent_pid == 1 else None
    if parent.identity.pid == 1:
        return None if is_interpreter(parent.title) else "parent gone (now 1)"
    name = program(parent.title)
    is_moved = process.session not in (parent.session, process.identity.pid)
    if _REAPERS.match(name) or is_moved:
        return f"parent gone (now {parent.identity.pid} {name})"
    return None


def orphaned(process: ProcessFacts, facts: Mapping[int, ProcessFacts]) -> str | None:
    """Return the evidence that no server stands above it, None where one may live.

    Climbs through SGLang's own children: schedulers sit below a data-parallel controller,
    which can itself be an orphan.
    """
    current = process
    for _ in range(_MOST_ANCESTORS):
        if is_engine_main(current.title):
            return None
        if gone := parent_gone(current, facts):
            return gone if current is process else f"{gone}, of {_named(current)} above it"
        parent = parent_of(current, facts)
        if parent is None or not (is_engine(parent.title) or is_spawn_child(parent.title)):
            return None
        current = parent
    return None


def _named(process: ProcessFacts) -> str:
    return f"{process.identity.pid} {program(process.title)}"
