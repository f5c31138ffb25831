"""The stop of one server: its requests, its processes, its memory, each with proof."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvctl.core.controller.commands import WaitHow
from kvctl.core.controller.gpus.desk import GpuDesk, require_clean
from kvctl.core.controller.host import Host
from kvctl.core.controller.sequences.detached import found_at
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.domain.errors import CommandRefused, KvctlError
from kvctl.core.domain.gpus.devices import GpuView, HolderKind, ProcessFacts, ProcessIdentity
from kvctl.core.domain.gpus.holding import describe
from kvctl.core.domain.gpus.membership import KnownServer
from kvctl.core.domain.runs.run import Run
from kvctl.core.ports import ProbeFailed
from kvctl.core.servers.processes.ending import EndReport, end_group, end_processes, launch_group

REST_WAIT_S = 15.0
LOOK_S = 0.25
RESPAWN_S = 2.0
"""How long a stop command's server is watched for a supervisor that starts it again."""
STOP_COMMAND_S = 120.0
CUT_WAIT_S = 10.0
"""From TERM to KILL where others' requests are cut: SGLang drains for ever while clients ask on,
and ends within 9 s where they do not."""
COUNTS_FRESH_S = 15.0
"""Older counts say nothing about whose requests run now."""


class RunInterplay(Protocol):
    """What a stop needs of the run."""

    def hold(self, url: str, reason: str) -> None:
        """Send nothing to a server until it is released."""

    def release(self, url: str) -> None:
        """Send to a server again, as far as its state allows."""

    def sends_to(self, url: str) -> bool:
        """Return whether the open run uses a server."""

    async def settle_in_flight(self, url: str, how: WaitHow) -> str:
        """Drain, harvest or abandon what is in flight at a server; say what was done."""

    def view(self) -> Run | None:
        """Return the open run, None without one."""


@dataclass(frozen=True, slots=True)
class Stop:
    """What a stop is to do."""

    watch: ServerWatch
    how: WaitHow
    cut_foreign: bool
    known: KnownServer | None
    is_dying: bool = False
    """It has failed and only its main process has not ended yet."""


async def stop_server(host: Host, desk: GpuDesk, run: RunInterplay, stop: Stop) -> None:
    """Carry out the five steps of a stop; each leaves its proof in the stages."""
    watch, stages = stop.watch, stop.watch.stages
    guard_stop(run, stop)
    foreign = foreign_requests(watch) or 0
    uuids = gpus_of(desk.view, watch)
    beside = _beside(desk.view, watch.record.name)
    with stages.step("hold run") as proof:
        run.hold(watch.record.url, f"server {watch.record.name} is being stopped")
        proof.append("nothing is sent any more")
    with stages.step("harvest", stop.how.value) as proof:
        await _wake(watch)  # behind a pause nothing ends and not every abort is heard
        proof.append(await run.settle_in_flight(watch.record.url, stop.how))
    watch.is_stop_asked = True
    with stages.step("stop") as proof:
        cut = await _cut_foreign(stop, foreign)
        proof += [cut] if cut else []
        proof.append(await _end_main(host, stop, is_cutting=cut is not None))
    with stages.step("free GPUs") as proof:
        proof.append(await _end_rest(host, desk, stop))
    with stages.step("prove clean") as proof:
        clean_s = host.config.limits.clean_s
        proof.append(require_clean(await desk.prove_clean(uuids, beside, clean_s)))


def guard_stop(run: RunInterplay, stop: Stop) -> None:
    """Refuse what must not be stopped from here. Raises CommandRefused."""
    watch = stop.watch
    if owner := watch.record.owner:
        by = owner if owner.startswith("started by ") else f"kept by {owner}"
        raise CommandRefused(
            f"{watch.record.name} is {by}, which may start it again: "
            f"stop it there{f': {told}' if (told := watch.record.owner_command) else ''}"
        )
    if watch.identity is None and not watch.record.stop_command:
        raise CommandRefused(f"{watch.record.url} is not on this host: stop it there")
    foreign = foreign_requests(watch)
    if foreign and not stop.cut_foreign:
        raise CommandRefused(
            f"{foreign} requests on {watch.record.name} are not this run's and would be cut: "
            "agree with --cut-foreign, or wait until they have ended"
        )


def foreign_requests(watch: ServerWatch) -> int | None:
    """Return running and queued requests that are not the run's; None if not known (now)."""
    figure = watch.view().foreign_requests
    age_s = figure.age_s(watch.host.clock.monotonic())
    if figure.value is None or age_s is None or age_s > COUNTS_FRESH_S:
        return None
    return int(figure.value)


def gpus_of(view: GpuView, watch: ServerWatch) -> tuple[str, ...] | None:
    """Return the GPUs a server uses: those it was given or holds; None for all."""
    if watch.record.gpu_uuids:
        return watch.record.gpu_uuids
    held = {h.gpu_uuid for h in view.holders if h.server == watch.record.name}
    return tuple(sorted(held)) or None


def _beside(view: GpuView, name: str) -> tuple[ProcessIdentity, ...]:
    """Return the holders that were there and are nobody's business here."""
    stay = (HolderKind.FOREIGN, HolderKind.OTHER_SGLANG, HolderKind.RANK)
    return tuple(
        ProcessIdentity(h.pid, h.start_ticks)
        for h in view.holders
        if h.server != name and h.kind in stay and h.start_ticks is not None
    )


async def _cut_foreign(stop: Stop, foreign: int) -> str | None:
    """Abort what others have at the server, as was agreed to; None where nobody has anything."""
    count = max(foreign, foreign_requests(stop.watch) or 0)
    if not count or not stop.cut_foreign or stop.is_dying:
        return None
    try:
        await stop.watch.engine.abort_all()  # our own are dealt with by now
    except ProbeFailed as failed:
        return f"{count} requests of others not aborted: {failed}"
    return f"{count} requests of others cut"


async def _end_main(host: Host, stop: Stop, *, is_cutting: bool) -> str:
    """Ask the main process to end and wait until it has."""
    watch = stop.watch
    if watch.record.stop_command:
        said = await _run_stop_command(watch.record.stop_command)
        return await _until_gone(host, watch, said)
    assert watch.identity is not None  # the guard has seen to it
    stop_s = host.config.limits.stop_s
    report = await end_processes(
        host.processes,
        host.clock,
        [watch.identity],
        # What is dying waits for its crash dumps only, and its port answers nobody.
        first=signal.SIGKILL if stop.is_dying else signal.SIGTERM,
        wait_s=min(CUT_WAIT_S, stop_s) if is_cutting else stop_s,
        escalate=is_cutting,
    )
    host.launcher.reap()
    return report.lines()[0]


async def _wake(watch: ServerWatch) -> None:
    """Continue an engine that is paused, by whomever: a paused server never finishes draining."""
    is_paused_by_another = watch.is_frozen and watch.is_ready is not True
    if watch.record.paused_mode is None and not is_paused_by_another:
        return
    try:
        await watch.engine.unpause()
    except ProbeFailed:
        return  # a stalled engine cannot be woken; it is killed below
    watch.record.paused_mode = None


async def _until_gone(host: Host, watch: ServerWatch, said: str) -> str:
    """Wait until what a stop command stopped has ended and nothing started it again."""
    clock, limit_s = host.clock, host.config.limits.stop_s
    deadline = clock.monotonic() + limit_s
    while watch.is_alive():
        if clock.monotonic() > deadline:
            raise KvctlError(f"{said}, but pid {watch.record.pid} still runs {limit_s:.0f} s later")
        await clock.sleep(LOOK_S)
    watched_until = clock.monotonic() + RESPAWN_S
    while clock.monotonic() < watched_until:
        if (again := found_at(host, watch.record.url)) is not None:
            raise KvctlError(
                f"{said}, but pid {again.identity.pid} serves {watch.record.url} again: its "
                "supervisor starts it anew; correct [launch] stop of its preset"
            )
        await clock.sleep(LOOK_S)
    return f"{said}; it has ended and did not come back"


async def _run_stop_command(command: Sequence[str]) -> str:
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=STOP_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KvctlError(f"the stop command {command[0]} failed: {error}") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [""]
        raise KvctlError(f"{command[0]} ended with {done.returncode}: {said[0]}")
    return f"{command[0]} ended with 0"


async def _end_rest(host: Host, desk: GpuDesk, stop: Stop) -> str:
    """End what the launch left behind: ranks, detokenizer, what lost its parent."""
    known = stop.known
    if known is None:
        return "not launched here: nothing else to end"
    view = await desk.read(fresh=True)
    held = [describe(h) for h in view.holders if h.server == stop.watch.record.name]
    left = launch_group(host.processes, known)
    if not left:
        return "no process of the launch is left"
    report = await _end_group(host, known)
    if not report.are_all_gone:
        raise KvctlError("; ".join(line for line in report.lines()))
    return "; ".join((*held[:3], f"{len(report.targets)} left behind, all gone now"))


async def _end_group(host: Host, known: KnownServer) -> EndReport:
    def collect() -> Sequence[ProcessFacts]:
        return launch_group(host.processes, known)

    return await end_group(
        host.processes,
        host.clock,
        collect,
        first=signal.SIGTERM,
        wait_s=REST_WAIT_S,
        escalate=True,
    )


async def clean_up(
    host: Host, desk: GpuDesk, watch: ServerWatch, known: KnownServer | None
) -> tuple[bool, str]:
    """End everything of a failed or cancelled start; return whether its GPUs are proven clean."""
    uuids = gpus_of(desk.view, watch)
    beside = _beside(desk.view, watch.record.name)
    if watch.record.stop_command:  # whoever keeps it would start it again after a signal
        with contextlib.suppress(KvctlError):  # what is left of it is told below
            await _run_stop_command(watch.record.stop_command)
    report = await _end_group(host, known) if known is not None else None
    host.launcher.reap()
    proof = await desk.prove_clean(uuids, beside, host.config.limits.clean_s)
    left = () if report is None or report.are_all_gone else report.lines()
    gone = "; ".join(left) or "all processes gone"
    return proof.is_satisfied, f"{gone}; {proof.summary()}"
