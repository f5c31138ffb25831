"""The start of one server: preflight, spawn, stages until a first token, or the failure card."""

from dataclasses import dataclass, replace

from kvctl.core.clock import within
from kvctl.core.controller.host import Host
from kvctl.core.controller.keys import note_key
from kvctl.core.controller.server_watch import ServerWatch
from kvctl.core.controller.state import ServerRecord
from kvctl.core.domain.errors import CommandRefused, KvctlError, UsageError
from kvctl.core.domain.gpus import GpuView
from kvctl.core.domain.launch_plan import LaunchPlan
from kvctl.core.domain.membership import LAUNCH_MARK
from kvctl.core.domain.presets import Preset
from kvctl.core.domain.server import Failure, ServerState, StageState
from kvctl.core.domain.startup import launched as begin_startup
from kvctl.core.domain.startup import stages_of
from kvctl.core.domain.units import duration, thousands
from kvctl.core.ports import GenerateRequest, Generator, TransportFailed
from kvctl.core.servers.flag_catalogue import CatalogueCache
from kvctl.core.servers.launch import Launched, new_log_path
from kvctl.core.servers.ledger import LaunchRecord, Ledger
from kvctl.core.servers.preflight import check, may_start
from kvctl.core.servers.preflight_facts import Surroundings, gather_facts
from kvctl.core.servers.preflight_types import Check, PreflightLine, Replaced

POLL_S = 0.5
FIRST_TOKEN_TRIES = 20
FIRST_TOKEN_S = 300.0
"""A first request may compile kernels; an engine that says nothing for so long hangs."""
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
        super().__init__(" ".join((failure.headline, *failure.advice[:1])))
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
    around = Surroundings(gpus, host.log_folder, host.presets.environment, replaced, managed_ports)
    facts = await gather_facts(plan, around, host.processes)
    catalogue = catalogues.of(facts.installed) if facts.installed is not None else None
    return Prepared(preset, plan, check(preset, plan, host.config.rules, catalogue, facts))


def refuse_if_failed(prepared: Prepared) -> None:
    """Raise CommandRefused with every failed check; nothing was touched."""
    failed = [f"{line.name}: {line.text}" for line in prepared.lines if line.ok is Check.FAIL]
    if failed:
        raise CommandRefused(
            f"preset {prepared.preset.name} is not started, nothing was touched: "
            + "; ".join(failed)
        )


def spawn(host: Host, prepared: Prepared, name: str, gpu_uuids: tuple[str, ...]) -> ServerRecord:
    """Start the process of a checked preset and return what must be remembered of it."""
    log_path = new_log_path(host.log_folder, host.clock.wall())
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


async def until_ready(host: Host, watch: ServerWatch) -> None:
    """Wait until the server serves a first token, showing each stage. Raises StartFailed."""
    watch.startup = begin_startup(host.clock.monotonic())
    while not (watch.startup.is_ready and watch.last_answer_at is not None):
        _raise_if_dead(host, watch)
        _show_stages(watch)
        if watch.tail is None and watch.last_answer_at is not None:
            break
        await host.clock.sleep(POLL_S)
        if watch.startup.is_ready and watch.last_answer_at is None:
            await watch.refresh()  # the loop's own next question may be far off by now
    _close_stages(watch)
    await _first_token(host, watch)


def _raise_if_dead(host: Host, watch: ServerWatch) -> None:
    identity = watch.identity
    code = host.launcher.exit_of(identity) if identity is not None else None
    if code is None and watch.is_alive() is not False:
        return
    watch.tick()
    _show_stages(watch)
    said = f" (exit status {code})" if code is not None else ""
    failure = watch.failure or Failure(
        f"The server process ended{said}; its log names no cause",
        ("l shows its log",),
        tuple(filter(None, [watch.last_line])),
    )
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
                    proof.append(f"a token from pid {watch.record.pid}")
                    return
                await host.clock.sleep(POLL_S * 2)
            raise _no_token(problem)
        finally:
            await generator.close()


async def _ask_for_token(host: Host, generator: Generator, request: GenerateRequest) -> str | None:
    """Return why no token came, None if one did. Raises StartFailed if nothing came at all."""
    try:
        reply = await within(host.clock, FIRST_TOKEN_S, generator.generate(request))
    except TransportFailed as failed:
        return str(failed)
    except TimeoutError as silence:
        raise _no_token(str(silence)) from None
    is_made = reply.status == 200 and reply.output_ids
    return None if is_made else reply.error or f"HTTP {reply.status}"


def _no_token(problem: str | None) -> StartFailed:
    advice = ("l shows its log",)
    return StartFailed(Failure(f"The server is up but makes no token: {problem}", advice))


def told_ready(watch: ServerWatch, wall: float) -> str:
    """Return in one line what a launch that serves (at this wall time) has come to."""
    record, startup = watch.record, watch.startup
    took = wall - (record.launched_wall or wall)
    parts = [f"{record.preset} at {record.url} serves after {duration(took)}"]
    if startup.pool_tokens is not None:
        parts.append(f"pool {thousands(startup.pool_tokens)} tokens")
    if startup.available_gpu_memory_gb is not None:
        parts.append(f"{startup.available_gpu_memory_gb:.2f} GB free after graphs")
    return ", ".join(parts)


def is_lost(state: ServerState) -> bool:
    """Return whether a server in this state serves nothing and will not by itself."""
    return state in (ServerState.FAILED, ServerState.STOPPED)
