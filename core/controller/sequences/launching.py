"""The start of one server: preflight, spawn, stages until a first token, or the failure card."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from kvctl.core.clock import within
from kvctl.core.controller.host import Host
from kvctl.core.controller.sequences.detached import is_detached
from kvctl.core.controller.sequences.lateness import Lateness
from kvctl.core.controller.servers.keys import note_key
from kvctl.core.controller.servers.watch import ServerWatch
from kvctl.core.controller.state import ServerRecord
from kvctl.core.controller.store import EventFeed
from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.domain.gpus.devices import GpuView
from kvctl.core.domain.gpus.membership import LAUNCH_MARK
from kvctl.core.domain.presets.launch_plan import LaunchPlan
from kvctl.core.domain.presets.preset import Preset
from kvctl.core.domain.servers.server import Failure, StageState
from kvctl.core.domain.servers.startup import stages_of
from kvctl.core.domain.units import duration, thousands
from kvctl.core.ports import GenerateRequest, Generator, TransportFailed
from kvctl.core.servers.flags.asking import CatalogueCache
from kvctl.core.servers.ledger import LaunchRecord, Ledger
from kvctl.core.servers.preflight.checks import check, may_start
from kvctl.core.servers.preflight.facts import Surroundings, gather_facts
from kvctl.core.servers.preflight.types import Check, PreflightLine, Replaced
from kvctl.core.servers.processes.launch import Launched

POLL_S = 0.5
NEAR_POLL_S = 0.1
"""Once the KV pool is made: what follows the ready line waits for the next look."""
SILENT_S = 60.0
"""Of answers without a ready line: longer than a warm-up request takes; a token then tells."""
FIRST_TOKEN_TRIES = 20
FIRST_TOKEN_AGAIN_S = 1.0
_TOLD_BY_LOG = ("process", "weights", "KV pool", "graphs")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A preset that was checked, and what was found."""

    preset: Preset
    plan: LaunchPlan
    lines: tuple[PreflightLine, ...]

    @property
    def may_start(self) -> bool:
        """Whether no check failed."""
        return may_start(self.lines)


class StartFailed(KvctlError):
    """A launch ended before it served; `failure` is its card."""

    def __init__(self, failure: Failure) -> None:
        """Keep the card."""
        super().__init__("; ".join((failure.headline, *failure.advice[:1])))
        self.failure = failure


async def prepare(
    host: Host,
    name: str,
    gpus: GpuView,
    catalogues: CatalogueCache,
    replaced: Replaced | None,
    managed_ports: dict[int, str],
) -> Prepared:
    """Read, render and check a preset; touches nothing. Raises PresetError, UsageError."""
    preset = host.presets.read(name)
    plan = host.presets.launch_plan(preset)
    if plan.is_observed_only:
        raise UsageError(f"preset {name} only watches {plan.url}: kvctl server adopt {plan.url}")
    environment = host.presets.environment
    around = Surroundings(
        gpus, host.log_folder, environment, replaced, managed_ports, host.interpreters
    )
    facts = await gather_facts(plan, around, host.processes)
    told = await asyncio.to_thread(
        catalogues.of_plan, plan, host.presets.environment, facts.installed
    )
    facts = replace(facts, flags_problem=told.problem)
    return Prepared(preset, plan, check(preset, plan, host.rules, told.catalogue, facts))


def refuse_if_failed(prepared: Prepared) -> None:
    """Raise CommandRefused with every failed check; nothing was touched."""
    failed = [f"{line.name}: {line.text}" for line in prepared.lines if line.ok is Check.FAIL]
    if failed:
        raise CommandRefused(
            f"preset {prepared.preset.name} is not started, nothing was touched: "
            + "; ".join(failed)
        )


def spawn(
    host: Host, prepared: Prepared, name: str, gpu_uuids: tuple[str, ...], log_path: Path
) -> ServerRecord:
    """Start the process of a checked preset and return what must be remembered of it.

    The name of its log, without its ending, is the launch's id and the mark on its processes.
    """
    launch_id = log_path.stem
    marked = replace(prepared.plan, env=(*prepared.plan.env, (LAUNCH_MARK, launch_id)))
    launched = host.launcher.spawn(marked, log_path)
    record = _record(prepared.plan, launched, name, launch_id, gpu_uuids)
    note_key(record, prepared.preset, host.presets.environment)
    return record


def _record(
    plan: LaunchPlan, launched: Launched, name: str, launch_id: str, gpu_uuids: tuple[str, ...]
) -> ServerRecord:
    return ServerRecord(
        name=name,
        url=plan.url,
        is_managed=True,
        pid=launched.pid,
        start_ticks=launched.start_ticks,
        session=launched.session,
        preset=plan.preset,
        log_path=plan.log or launched.log_path,
        launched_wall=launched.wall,
        launch_id=launch_id,
        gpu_uuids=gpu_uuids,
        model_path=plan.model_path,
        stop_command=list(plan.stop or ()),
        restarts_after_crash=plan.restarts_after_crash,
    )


def begin_ledger(ledger: Ledger, plan: LaunchPlan, record: ServerRecord) -> None:
    """Write the launch into the ledger."""
    ledger.begin(
        LaunchRecord(
            id=record.launch_id or "",
            preset=plan.preset,
            wall=record.launched_wall or 0.0,
            argv=plan.shown_argv,
            env=plan.shown_env,
            url=plan.url,
            log_path=record.log_path or "",
            pid=record.pid,
            start_ticks=record.start_ticks,
        )
    )


async def until_ready(host: Host, feed: EventFeed, watch: ServerWatch) -> None:
    """Wait until the server serves a first token, showing each stage. Raises StartFailed."""
    lateness = Lateness(host.config.limits)
    while not watch.startup.is_ready:
        _raise_if_dead(host, watch)
        _show_stages(watch)
        _raise_if_another_answers(watch)
        _tell_lateness(host, feed, watch, lateness)
        if _serves_silently(watch, host.clock.monotonic()):
            break
        await host.clock.sleep(POLL_S if watch.startup.pool_tokens is None else NEAR_POLL_S)
        watch.read_log()
    _close_stages(watch)
    await _first_token(host, watch)
    while watch.last_answer_at is None:
        await watch.refresh()  # the loop's own next question may be far off by now
        if watch.last_answer_at is None:
            _raise_if_dead(host, watch)
            await host.clock.sleep(POLL_S)


def _serves_silently(watch: ServerWatch, now: float) -> bool:
    """Return whether it answers although its log does not say so: none, full disk, own format."""
    if watch.first_answer_at is None:
        return False
    return watch.tail is None or now - watch.first_answer_at >= SILENT_S


def _tell_lateness(host: Host, feed: EventFeed, watch: ServerWatch, lateness: Lateness) -> None:
    """Say once that a step is late, show it, and end the start only if that is configured."""
    now = host.clock.monotonic()
    told = lateness.look(watch.startup, now)
    if lateness.step is None:
        return
    if host.config.limits.end_start:
        watch.failure = replace(lateness.failure(), stage=watch.stages.doing)
        raise StartFailed(watch.failure)
    if told is not None:
        age = duration(now - (watch.last_line_at if watch.last_line_at is not None else now))
        feed.emit(
            "late",
            f"{watch.record.name}: {told} (last line of its log {age} ago); it may be slow and "
            "goes on: l shows the log, X cancels",
        )
    doing = next((s for s in watch.stages.items if s.name == watch.stages.doing), None)
    if doing is not None:
        detail = "; ".join(filter(None, (doing.detail, lateness.told(now))))
        watch.stages.set(doing.name, detail=detail)


def _raise_if_dead(host: Host, watch: ServerWatch) -> None:
    if is_detached(host, watch):
        return
    if watch.exit_code() is None and watch.is_alive() is not False:
        return
    watch.tick()
    _show_stages(watch)
    failure = watch.failure or watch.silent_end()
    at = watch.stages.doing or "process"
    elapsed = host.clock.monotonic() - (_started_at(watch) or host.clock.monotonic())
    watch.failure = replace(failure, stage=at, after_s=elapsed)
    watch.stages.fail(at, failure.headline)
    raise StartFailed(watch.failure)


def _started_at(watch: ServerWatch) -> float | None:
    return next((s.started_at for s in watch.stages.items if s.name == "process"), None)


def _show_stages(watch: ServerWatch) -> None:
    """Show the stages as the log tells them; the first token is proven by asking."""
    for stage in stages_of(watch.startup):
        if stage.name in _TOLD_BY_LOG:
            watch.stages.replace(stage)


def _close_stages(watch: ServerWatch) -> None:
    _show_stages(watch)
    for stage in list(watch.stages.items):
        if stage.name in _TOLD_BY_LOG and stage.state is StageState.TODO:
            watch.stages.skip(stage.name, "the log told nothing of it")


async def _first_token(host: Host, watch: ServerWatch) -> None:
    """Prove that this server makes a token, not only that it says it is ready."""
    generator = host.open_generator(watch.record.url, watch.api_key)
    request = GenerateRequest(
        "kvctl-first-token.", None, (1,), {"max_new_tokens": 1, "temperature": 0}
    )
    problem: str | None = "no answer"
    with watch.stages.step("first token") as proof:
        try:
            for _ in range(FIRST_TOKEN_TRIES):
                _raise_if_dead(host, watch)
                problem = await _ask_for_token(host, generator, request)
                if problem is None:
                    _raise_if_another_answers(watch)
                    proof.append(f"a token from pid {watch.record.pid}")
                    return
                await host.clock.sleep(FIRST_TOKEN_AGAIN_S)
            raise _no_token(problem)
        finally:
            await generator.close()


def _raise_if_another_answers(watch: ServerWatch) -> None:
    """Refuse a token from whoever else has the port. Raises StartFailed.

    Source: a server that could not bind says that it is ready all the same, then ends (0.5.23).
    """
    watch.read_log()
    if (failure := watch.causes.port_failure()) is not None:
        raise StartFailed(failure)


async def _ask_for_token(host: Host, generator: Generator, request: GenerateRequest) -> str | None:
    """Return why no token came, None if one did. Raises StartFailed if nothing came at all."""
    try:
        reply = await within(
            host.clock, host.config.limits.first_token_s, generator.generate(request)
        )
    except TransportFailed as failed:
        return str(failed)
    except TimeoutError as silence:
        raise _no_token(str(silence)) from None
    is_made = reply.status == 200 and reply.output_ids
    return None if is_made else reply.error or f"HTTP {reply.status}"


def _no_token(problem: str | None) -> StartFailed:
    advice = ("l shows its log",)
    return StartFailed(Failure(f"The server is up but makes no token: {problem}", advice))


def took_s(watch: ServerWatch, wall: float) -> float | None:
    """Return how long a launch took that serves now; None where nobody saw when it was ready."""
    launched = watch.record.launched_wall
    until = watch.record.ready_wall if watch.has_missed_ready else wall
    return None if launched is None or until is None else until - launched


def told_ready(watch: ServerWatch, wall: float) -> str:
    """Return in one line what a launch that serves (at this wall time) has come to."""
    record, startup = watch.record, watch.startup
    took = took_s(watch, wall)
    after = "" if took is None else f" after {duration(took)}"
    parts = [f"{record.preset} at {record.url} serves as {record.name}{after}"]
    if startup.pool_tokens is not None:
        parts.append(f"pool {thousands(startup.pool_tokens)} tokens")
    if startup.available_gpu_memory_gb is not None:
        parts.append(f"{startup.available_gpu_memory_gb:.2f} GB free after graphs")
    return ", ".join(parts)
