"""Whether a process belongs to a launch that kvctl recorded, and what it is to us.

Pure. A process is ours when it belongs to a recorded launch (its main, its tree, its mark, its
own session, a descendant); it is a leftover when its server is gone, or when it is an SGLang
child of our user that has no server above it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kvctl.core.domain.gpus.devices import HolderKind, ProcessFacts, ProcessIdentity
from kvctl.core.domain.gpus.kinship import (
    ancestors,
    is_engine,
    is_engine_main,
    is_spawn_child,
    orphaned,
    parent_of,
    program,
    rank_of,
)

LAUNCH_MARK = "KVCTL_LAUNCH"
"""Environment variable that a launch sets to its id: children inherit it."""
_DEAD_STATES = frozenset("ZXx")


class LaunchState(StrEnum):
    """How far a recorded launch is."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class KnownServer:
    """A server that kvctl launched or adopted, as its record says."""

    name: str
    pid: int
    start_ticks: int
    session: int
    gpus: tuple[int | str, ...] = ()
    """Indices or UUIDs it was given; empty if not recorded."""
    state: LaunchState = LaunchState.RUNNING
    tree: tuple[ProcessIdentity, ...] = ()
    """Every process of it that was ever seen."""
    mark: str | None = None
    """Value of KVCTL_LAUNCH it was started with."""
    container: str | None = None
    """Id of the container it runs in, at least 12 hex digits; None if in none of its own."""
    is_found: bool = False
    """Somebody else started it: what stands above it may start it again."""

    @property
    def identity(self) -> ProcessIdentity:
        """Its main process."""
        return ProcessIdentity(self.pid, self.start_ticks)


@dataclass(frozen=True, slots=True)
class Me:
    """The kvctld that looks."""

    uid: int
    user: str
    pid: int
    is_container: bool = False
    """In a pid namespace of its own: the driver's pids can be the host's."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a process is, and why."""

    kind: HolderKind
    evidence: str
    server: str | None = None
    is_launched: bool = False
    """It belongs to a launch of ours, not to a server that was found running."""


def judge(
    process: ProcessFacts, facts: Mapping[int, ProcessFacts], known: Sequence[KnownServer], me: Me
) -> Judgement:
    """Return what a visible process is; the newest record that claims it wins."""
    for server in reversed(known):
        tie = tie_to(process, server, facts)
        if tie is not None:
            judged = replace(_member(process, server, tie, facts), is_launched=not server.is_found)
            return _with_state(process, judged)
    for server in known:
        for before in server.tree:
            if before.pid == process.identity.pid:
                note = f"pid {before.pid} was in {server.name}'s launch and is another process now"
                judged = _stranger(process, facts, me)
                return replace(judged, evidence=f"{note}; {judged.evidence}")
    return _with_state(process, _stranger(process, facts, me))


def tie_to(
    process: ProcessFacts, server: KnownServer, facts: Mapping[int, ProcessFacts]
) -> str | None:
    """Return what binds a process to a launch, None if nothing does."""
    if process.identity == server.identity:
        return f"main process of {server.name}"
    if process.identity in server.tree:
        return f"recorded in the launch of {server.name}"
    if server.mark is not None and process.launch_mark == server.mark:
        return f"carries the launch mark of {server.name}"
    if server.container is not None and server.container[:12] in process.cgroup:
        return f"in the container of {server.name}"
    if any(above.identity == server.identity for above in ancestors(process, facts)):
        return f"child of {server.name}"
    if _shares_own_session(process, server, facts):
        return f"in the session of {server.name}"
    return None


def _shares_own_session(
    process: ProcessFacts, server: KnownServer, facts: Mapping[int, ProcessFacts]
) -> bool:
    """Return whether it sits in the session the launch opened; a shell's session proves nothing.

    Without its leader a session's number can be another's by now: then the launch mark has to be
    there too, except on engine processes, whose titles overwrite it, and where it is unreadable.
    """
    if process.session != server.session or server.session != server.pid:
        return False
    leader = facts.get(server.session)
    is_unmarked = server.mark is not None and process.launch_mark != server.mark
    if leader is None and is_unmarked and not is_engine(process.title) and process.state != "D":
        return False
    is_reused = leader is not None and leader.identity != server.identity
    return not is_reused and process.identity.start_ticks >= server.start_ticks


def _member(
    process: ProcessFacts, server: KnownServer, tie: str, facts: Mapping[int, ProcessFacts]
) -> Judgement:
    main = facts.get(server.pid)
    is_main_alive = (
        main is not None and main.identity == server.identity and main.state not in _DEAD_STATES
    )
    gone = orphaned(process, facts)
    if server.state is LaunchState.ENDED:
        why = gone or "its launch has ended"
        return Judgement(HolderKind.LEFTOVER, f"ours, {why}; {tie}", server.name)
    if not is_main_alive:
        why = gone or f"its server (pid {server.pid}) is gone"
        return Judgement(HolderKind.LEFTOVER, f"ours, {why}; {tie}", server.name)
    is_main = process.identity == server.identity
    if gone and not is_main and is_engine(process.title):
        return Judgement(HolderKind.LEFTOVER, f"ours, {gone}; {tie}", server.name)
    if server.state is LaunchState.STARTING and rank_of(process.title) is None:
        return Judgement(HolderKind.LAUNCHING, f"{tie}, which is starting", server.name)
    return Judgement(HolderKind.RANK, tie, server.name)


def _stranger(process: ProcessFacts, facts: Mapping[int, ProcessFacts], me: Me) -> Judgement:
    is_sglang = is_engine(process.title)
    gone = orphaned(process, facts)
    if process.uid != me.uid:
        what = "SGLang" if is_sglang else "a program"
        tail = f", {gone}" if gone and is_sglang else ""
        return Judgement(HolderKind.FOREIGN, f"{what} of user {process.user}{tail}")
    if is_engine_main(process.title):
        return Judgement(HolderKind.OTHER_SGLANG, "an SGLang server that kvctl does not manage")
    if is_sglang and gone:
        return Judgement(HolderKind.LEFTOVER, f"SGLang of your user, {gone}")
    if is_sglang:
        parent = parent_of(process, facts)
        above = f"parent {_named(parent)} lives" if parent else "its parent is not visible here"
        return Judgement(HolderKind.OTHER_SGLANG, f"SGLang that kvctl does not manage, {above}")
    if is_spawn_child(process.title) and gone:
        return Judgement(
            HolderKind.FOREIGN, f"a Python child, {gone}; perhaps of an SGLang start, not certain"
        )
    return Judgement(HolderKind.FOREIGN, "another program")


def _with_state(process: ProcessFacts, judged: Judgement) -> Judgement:
    """Turn what no signal can end into EXITING; a rank that waits for a disk stays a rank."""
    note: str | None = None
    if process.state in _DEAD_STATES:
        note = f"zombie: ended, its parent {process.parent_pid} has not collected it"
    elif process.is_kill_pending:
        note = "KILL was sent, the kernel still tears it down"
    elif process.state == "D" and judged.kind is HolderKind.LEFTOVER:
        note = "uninterruptible (D): KILL cannot work until the kernel lets go"
    if note is None:
        return judged
    return replace(judged, kind=HolderKind.EXITING, evidence=f"{note}; {judged.evidence}")


def _named(process: ProcessFacts) -> str:
    return f"{process.identity.pid} {program(process.title)}"
