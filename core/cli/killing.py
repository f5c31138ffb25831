"""`kvctl kill`: ends processes that are identified by pid and start time, and shows the proof."""

from collections.abc import Sequence

from kvctl.core.cli.progress import carry_out
from kvctl.core.cli.render import one_line
from kvctl.core.cli.session import Session
from kvctl.core.controller.commands import ClearGpus, Command, KillProcesses
from kvctl.core.domain.errors import KvctlError, UsageError
from kvctl.core.domain.gpus.devices import Holder, ProcessIdentity
from kvctl.core.domain.gpus.holding import identity_of, shown_holders
from kvctl.core.domain.gpus.supervisors import find_owner
from kvctl.core.domain.snapshot import Snapshot
from kvctl.core.domain.units import mib

_TITLE = 60


def kill(session: Session) -> int:
    """End what was named, after naming it."""
    words = session.words
    if bool(words.pids) + words.leftovers + (words.gpu is not None) != 1:
        raise UsageError("say what to end: PID…, --leftovers or --gpu N (one of them)")
    if words.group and not words.pids:
        raise UsageError("--group needs a PID: the whole launch of that process is ended")
    with session.kvctld() as client:
        snapshot = session.picture(client)
        command = _kill_pids(session, snapshot) if words.pids else _clear(session, snapshot)
        return carry_out(session, client, command)


def _kill_pids(session: Session, snapshot: Snapshot) -> Command:
    words = session.words
    found = [_identify(pid, snapshot) for pid in words.pids]
    signal = words.signal or "TERM"
    what = "the whole launch of " if words.group else ""
    session.confirm(f"send {signal} to {what}{'; '.join(text for _, text in found)}")
    return KillProcesses(
        targets=tuple(identity for identity, _ in found),
        signal=signal,
        wait_s=words.wait,
        confirmed=True,
        group=words.group,
    )


def _identify(pid: int, snapshot: Snapshot) -> tuple[ProcessIdentity, str]:
    """Return the very process that has this pid now, and how it is named to the operator."""
    from kvctl.core.probes.gpu_view import with_ancestors
    from kvctl.core.probes.processes import HostProcesses

    holders = [h for h in (*snapshot.gpus.holders, *snapshot.gpus.strays) if h.pid == pid]
    if holders and holders[0].start_ticks is not None:
        return ProcessIdentity(pid, holders[0].start_ticks), describe(holders)
    if holders:
        raise KvctlError(
            f"pid {pid} is the driver's number of a process that is not visible here "
            "(another pid namespace?); end it where it runs"
        )
    around = with_ancestors(HostProcesses(), [pid])
    facts = around.get(pid)
    if facts is None:
        raise KvctlError(f"there is no process {pid}; `kvctl gpus` lists those on the GPUs")
    owner = find_owner(facts, around)
    above = f", run by {one_line(owner.text, _TITLE)}" if owner is not None else ""
    title = one_line(facts.title, _TITLE)
    return facts.identity, f"{pid} {title} (user {facts.user}, no GPU{above})"


def _clear(session: Session, snapshot: Snapshot) -> Command:
    words = session.words
    if words.gpu is None:
        view = snapshot.gpus
        server = getattr(words, "server", None)
        found = (*view.leftovers, *view.strays)
        holders = tuple(h for h in found if server in (None, h.server))
        what = f"every leftover of {server}" if server else "every leftover"
    else:
        if words.gpu not in [device.index for device in snapshot.gpus.devices]:
            known = ", ".join(str(d.index) for d in snapshot.gpus.devices) or "none"
            raise UsageError(f"there is no GPU {words.gpu}; there are: {known}")
        what = f"every holder of GPU {words.gpu}"
        device = next(d for d in snapshot.gpus.devices if d.index == words.gpu)
        holders = shown_holders(snapshot.gpus, device)
    named = "; ".join(describe([holder]) for holder in holders) or "none is seen now"
    session.confirm(f"end {what} ({named})")
    return ClearGpus(
        gpu=words.gpu,
        server=getattr(words, "server", None),
        every_holder=words.gpu is not None,
        wait_s=words.wait,
        signal=words.signal,
        # --yes did not see the names: what is not ours then needs its pid on the command line.
        confirmed=not words.yes,
        named=tuple(i for holder in holders if (i := identity_of(holder)) is not None),
    )


def describe(holders: Sequence[Holder]) -> str:
    """Return a process with its memory, user and supervisor, so that it can be recognised."""
    first = holders[0]
    memory = sum(h.memory_bytes or 0 for h in holders)
    indices = [str(h.gpu_index) for h in holders if h.gpu_index is not None]
    where = f"GPU {', '.join(indices)}, {mib(memory or None)}" if indices else "no GPU"
    owner = f", run by {first.owner}" if first.owner else ""
    boxed = f", container {first.container}" if first.container else ""
    return one_line(
        f"{first.pid} {one_line(first.title, _TITLE)} ({first.kind.value}, {where}, "
        f"user {first.user or 'unknown'}{owner}{boxed})"
    )
