"""Which processes belong to one launch, so that all of it can be ended at once.

Pure. For a recorded launch: its ties and all their children. For an unrecorded SGLang server:
the topmost engine process, everything below it, and its own session, also without its leader.
"""

from collections.abc import Mapping, Sequence

from kvctl.core.domain.gpus.devices import ProcessFacts, ProcessIdentity
from kvctl.core.domain.gpus.kinship import ancestors, is_engine, is_spawn_child
from kvctl.core.domain.gpus.membership import KnownServer, tie_to

Facts = Mapping[int, ProcessFacts]


def members_of(server: KnownServer, facts: Facts) -> tuple[ProcessFacts, ...]:
    """Return every process of a recorded launch, its main first."""
    tied = [process for process in facts.values() if tie_to(process, server, facts) is not None]
    return _with_children(tied, facts, server.identity)


def group_of(
    process: ProcessFacts, facts: Facts, known: Sequence[KnownServer]
) -> tuple[ProcessFacts, ...]:
    """Return the launch that a process belongs to, that one always among them."""
    for server in reversed(known):
        if tie_to(process, server, facts) is not None:
            return members_of(server, facts)
    if not (is_engine(process.title) or is_spawn_child(process.title)):
        return _with_children([process], facts, process.identity)
    top = process
    for above in ancestors(process, facts):
        if not (is_engine(above.title) or is_spawn_child(above.title)):
            break
        top = above
    mates = [mate for mate in facts.values() if _is_mate(mate, top, facts)]
    return _with_children([top, *mates], facts, top.identity)


def _is_mate(mate: ProcessFacts, top: ProcessFacts, facts: Facts) -> bool:
    """Return whether it sits in the launch's own session; a shell's session proves nothing."""
    if mate.session != top.session or mate.uid != top.uid:
        return False
    leader = facts.get(top.session)
    if leader is None:
        return is_engine(mate.title) or is_spawn_child(mate.title)
    return leader.identity == top.identity


def _with_children(
    members: Sequence[ProcessFacts], facts: Facts, main: ProcessIdentity
) -> tuple[ProcessFacts, ...]:
    found = {process.identity: process for process in members}
    while added := _children(found, facts):
        found.update(added)
    return tuple(sorted(found.values(), key=lambda p: (p.identity != main, p.identity.pid)))


def _children(
    members: Mapping[ProcessIdentity, ProcessFacts], facts: Facts
) -> dict[ProcessIdentity, ProcessFacts]:
    found: dict[ProcessIdentity, ProcessFacts] = {}
    for process in facts.values():
        parent = facts.get(process.parent_pid)
        if process.identity in members or parent is None or parent.identity not in members:
            continue
        found[process.identity] = process
    return found
