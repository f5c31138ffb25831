"""The verdict: what is the matter now, in one sentence, and the lever that would move it.

Rules stand in order of urgency and look at the parts of a snapshot only; every number in a
sentence is one of theirs. `diagnose` returns every rule that holds, the most urgent first.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvctl.core.domain.figures import Figure
from kvctl.core.domain.gpus import GpuDevice, GpuView
from kvctl.core.domain.run import Run, RunState
from kvctl.core.domain.server import Server, ServerState, StageState
from kvctl.core.domain.snapshot import PresetSummary
from kvctl.core.domain.units import day_time, duration, gib, kilo_tokens, mib, thousands
from kvctl.core.domain.verdict import Verdict, VerdictWord, Why

STALE_AFTER_S = 15.0
FULL_USAGE = 0.85
ROOMY_USAGE = 0.85
UNEXPLAINED_BYTES = 2 << 30
FAILED_SHARE = 0.05
RETRACTED_PER_MIN = 6.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What the rules look at."""

    at: float
    wall: float
    server: Server | None
    gpus: GpuView
    run: Run | None
    presets: tuple[PresetSummary, ...] = ()

    @property
    def is_sending(self) -> bool:
        """Whether a run sends now."""
        return self.run is not None and self.run.state is RunState.RUNNING

    def number(self, figure: Figure) -> float | None:
        """Return a figure's value if it is fresh enough to build a sentence on."""
        age = figure.age_s(self.at)
        fresh = age is not None and age <= STALE_AFTER_S
        return figure.value if fresh else None


Rule = Callable[[Scene], Verdict | None]


def diagnose(scene: Scene) -> tuple[Verdict, ...]:
    """Return what holds, most urgent first; never empty."""
    found = [verdict for rule in _RULES if (verdict := rule(scene)) is not None]
    return tuple(found) or (_all_well(scene),)


def _failed(scene: Scene) -> Verdict | None:
    server = scene.server
    if server is None or server.state is not ServerState.FAILED:
        return None
    failure = server.failure
    headline = failure.headline if failure else server.state_reason or "the server ended"
    lever = failure.advice[0] if failure and failure.advice else "l shows the log at the cause"
    age = duration(scene.at - server.state_since)
    why = tuple(Why("evidence", line, "log") for line in (failure.evidence if failure else ()))
    return Verdict(VerdictWord.FAILED, f"{headline} ({age} ago).", lever, why)


def _stalled(scene: Scene) -> Verdict | None:
    server = scene.server
    if server is None or server.state is not ServerState.STALLED:
        return None
    sentence = f"{server.state_reason or 'No token is being made'}; HTTP answers prove nothing."
    return Verdict(
        VerdictWord.STALLED, sentence, "R restart (a stalled engine cannot harvest), l log"
    )


def _leftovers(scene: Scene) -> Verdict | None:
    if not scene.gpus.leftovers or _is_changing(scene):
        return None  # a stop or start in progress frees them itself
    first = scene.gpus.leftovers[0]
    more = len(scene.gpus.leftovers) - 1
    sentence = (
        f"GPU {first.gpu_index} is not clean: leftover {_short(first.title)} pid {first.pid} "
        f"({first.evidence}) holds {mib(first.memory_bytes)}"
    )
    sentence += f", and {more} more." if more else "."
    why = tuple(
        Why(f"GPU {h.gpu_index}", f"{h.pid} {_short(h.title)} {mib(h.memory_bytes)}", h.evidence)
        for h in scene.gpus.leftovers
    )
    return Verdict(VerdictWord.ACT, sentence, "K kill it and prove clean", why)


def _unexplained(scene: Scene) -> Verdict | None:
    held = {h.gpu_uuid for h in scene.gpus.holders}
    for device in scene.gpus.devices:
        used = device.memory_used_bytes.value
        if device.uuid in held or device.is_unified or used is None:
            continue
        if used > UNEXPLAINED_BYTES and device.processes_problem is None:
            return _unexplained_on(device, used)
    return None


def _unexplained_on(device: GpuDevice, used: float) -> Verdict:
    sentence = (
        f"GPU {device.index} holds {gib(used)} and no process here explains it: "
        "other PID namespace or driver. KILL cannot help."
    )
    return Verdict(VerdictWord.ACT, sentence, "look in containers; else GPU reset or reboot")


def _failing_rows(scene: Scene) -> Verdict | None:
    run = scene.run
    if run is None or run.failed < 10 or run.failed < FAILED_SHARE * (run.done + run.failed):
        return None
    worst = max(run.partitions, key=lambda part: part.failed)
    share = run.failed / (run.done + run.failed)
    sentence = (
        f"{share:.0%} of the answers failed for good ({thousands(run.failed)}), "
        f"most in {worst.name}."
    )
    lever = "errors.jsonl in the output folder names each; :retry-failed queues them again"
    return Verdict(VerdictWord.ACT, sentence, lever)


def _holding(scene: Scene) -> Verdict | None:
    run = scene.run
    if run is None or run.state not in (RunState.HOLDING, RunState.PAUSED, RunState.FAILED):
        return None
    age = duration(scene.at - run.state_since)
    if run.state is RunState.FAILED:
        return Verdict(
            VerdictWord.FAILED, f"Run {run.name} ended: {run.reason}", "s start it again"
        )
    if run.state is RunState.PAUSED:
        sentence = f"{run.reason or 'Paused by you'} {age} ago: {run.in_flight} in flight."
        return Verdict(VerdictWord.HOLD, sentence, "p send again")
    sentence = f"Not sending for {age}: {run.reason}. {run.in_flight} in flight; nothing aborted."
    return Verdict(VerdictWord.HOLD, sentence, "goes on by itself; p overrides")


def _is_changing(scene: Scene) -> bool:
    """Whether a start, stop or restart is in progress."""
    server = scene.server
    return server is not None and server.state in (ServerState.STARTING, ServerState.STOPPING)


def _starting(scene: Scene) -> Verdict | None:
    server = scene.server
    if server is None or not _is_changing(scene):
        return None
    doing = next((s for s in server.stages if s.state is StageState.DOING), None)
    step = doing.name if doing else server.state.value
    ratio = f", {doing.progress_ratio:.0%}" if doing and doing.progress_ratio is not None else ""
    age = duration(scene.at - server.state_since)
    run = scene.run
    resumes = " The run resumes by itself." if run and run.state is RunState.HOLDING else ""
    verb = "starts" if server.state is ServerState.STARTING else "stops"
    return Verdict(
        VerdictWord.WAIT, f"Server {verb}: {step}{ratio}, {age}.{resumes}", "w stages, X cancel"
    )


def _stale(scene: Scene) -> Verdict | None:
    server = scene.server
    if server is None or server.state in (ServerState.STOPPED, ServerState.FAILED):
        return None
    if server.state is ServerState.UNREACHABLE:
        return Verdict(
            VerdictWord.WAIT, f"{server.url} does not answer: {server.state_reason}.", "l log"
        )
    age = server.decode.running.age_s(scene.at)
    if server.state.is_ready and age is not None and age > STALE_AFTER_S:
        sentence = f"Figures are {duration(age)} old: {server.state_reason or 'no new sample'}."
        return Verdict(VerdictWord.WAIT, sentence, "none; they come back by themselves")
    return None


@dataclass(frozen=True, slots=True)
class _Load:
    """Fresh decode figures of a scene that has them."""

    running: float
    queued: float
    usage: float
    pool: float


def _load_of(scene: Scene) -> _Load | None:
    if scene.server is None or not scene.server.state.is_ready:
        return None
    decode = scene.server.decode
    running, queued = scene.number(decode.running), scene.number(decode.queued)
    usage, pool = scene.number(decode.token_usage), decode.pool_tokens.value
    if running is None or queued is None or usage is None or pool is None:
        return None
    return _Load(running, queued, usage, pool)


def _ceiling(scene: Scene) -> Verdict | None:
    """KV-bound: a lever while slots are set too high by hand, else the limit itself."""
    load = _load_of(scene)
    if load is None or load.usage < FULL_USAGE or load.queued < 1 or scene.server is None:
        return None
    run = scene.run
    why = _ceiling_why(scene, load)
    surplus = load.queued > max(8.0, 0.5 * load.running)
    if run is not None and not run.is_auto and surplus:
        return _too_many_slots(run, load, why)
    return _limit(scene, load, why)


def _too_many_slots(run: Run, load: _Load, why: tuple[Why, ...]) -> Verdict:
    sentence = (
        f"KV-bound: {run.in_flight} sent, {load.running:.0f} decode, {load.queued:.0f} only wait. "
        "Tokens a second will not change; answers would come sooner with fewer slots."
    )
    auto = f" (~{run.auto_target} slots)" if run.auto_target else ""
    counts = f"{run.in_flight} sent, {load.running:.0f} decode, {load.queued:.0f} only wait"
    short = f"KV-bound: {counts}."
    return Verdict(VerdictWord.LEVER, sentence, f"a AUTO{auto}", why, short, f"a AUTO{auto}")


def _limit(scene: Scene, load: _Load, why: tuple[Why, ...]) -> Verdict:
    run, held = scene.run, load.usage * load.pool / max(1.0, load.running)
    where = _open_partitions(run)
    fit = run.fit_at_mean if run and run.fit_at_mean else load.running / max(load.usage, 0.01)
    sentence = (
        f"KV-bound{where}: {thousands(load.pool)} tokens hold ~{fit:.0f} requests of "
        f"{kilo_tokens(held)} each, {load.running:.0f} decode. More slots would only wait."
    )
    short = f"KV-bound{where}: {thousands(load.pool)} tokens hold ~{fit:.0f}; {load.running:.0f} decode."
    lever = _better_preset(scene) + _done_at(scene)
    return Verdict(VerdictWord.LIMIT, sentence, lever, why, short, "More slots only wait.")


def _open_partitions(run: Run | None) -> str:
    names = [p.name for p in run.partitions if p.in_flight] if run else []
    return f" on {'+'.join(names)}" if 0 < len(names) <= 3 else ""


def _better_preset(scene: Scene) -> str:
    """Name the preset with a larger pool, or the rule that forbids it."""
    pool = scene.server.decode.pool_tokens.value if scene.server else None
    larger = [p for p in scene.presets if p.pool_tokens and pool and p.pool_tokens > 1.1 * pool]
    allowed = [p for p in larger if p.refused is None]
    if allowed:
        best = max(allowed, key=lambda preset: preset.pool_tokens or 0)
        return f"R {best.name} holds {thousands(best.pool_tokens)} tokens. "
    if larger:
        return f"No allowed lever left ({larger[0].name}: {larger[0].refused}). Let it run"
    return "No lever known here. Let it run"


def _done_at(scene: Scene) -> str:
    if scene.run is None or scene.run.done_wall is None:
        return "."
    return f": done ~{day_time(scene.run.done_wall, scene.wall)}."


def _ceiling_why(scene: Scene, load: _Load) -> tuple[Why, ...]:
    assert scene.server is not None
    decode = scene.server.decode
    held = load.usage * load.pool / max(1.0, load.running)
    lines = [
        Why("KV pool", f"{thousands(load.pool)} tokens", decode.pool_tokens.source),
        Why("token usage", f"{load.usage:.2f}", decode.token_usage.source),
        Why("running", f"{load.running:.0f}", decode.running.source),
        Why("queued", f"{load.queued:.0f}", decode.queued.source),
        Why(
            "held by a request",
            f"{load.usage:.2f} x {thousands(load.pool)} / {load.running:.0f} = {thousands(held)}",
            "computed",
        ),
    ]
    run = scene.run
    if run is not None and run.held_tokens_mean and run.fit_at_mean:
        arithmetic = f"pool x u / k = {run.fit_at_mean:.0f}, k = {thousands(run.held_tokens_mean)}"
        lines.append(Why("fit at these lengths", arithmetic, "journal, throttle law"))
    return tuple(lines)


def _retractions(scene: Scene) -> Verdict | None:
    load = _load_of(scene)
    if load is None or scene.server is None:
        return None
    rate = scene.number(scene.server.decode.retracted_per_min)
    if rate is None or rate < RETRACTED_PER_MIN:
        return None
    redone = scene.number(scene.server.decode.recomputed_tokens_per_min)
    cost = f", {thousands(redone)} tokens a minute computed twice" if redone else ""
    return Verdict(
        VerdictWord.LEVER,
        f"Retractions redo work: {rate:.0f} a minute{cost}.",
        "- slots, or a AUTO",
    )


def _client_bound(scene: Scene) -> Verdict | None:
    load, run = _load_of(scene), scene.run
    if load is None or run is None or not scene.is_sending or run.is_auto:
        return None
    if load.queued > 0 or load.usage > ROOMY_USAGE or run.in_flight < run.target:
        return None
    remaining = run.total - run.done - run.failed - run.skipped
    if remaining <= run.in_flight:
        return None
    sentence = (
        f"Server waits for the client: queue 0, pool {load.usage:.2f}, "
        f"{run.in_flight} of {run.target} slots used."
    )
    return Verdict(VerdictWord.LEVER, sentence, "a AUTO, or +")


def _admission(scene: Scene) -> Verdict | None:
    load = _load_of(scene)
    if load is None or load.queued < 8 or load.usage > 0.75 or scene.server is None:
        return None
    cap = scene.number(scene.server.decode.max_running)
    if cap is not None and load.running >= cap:
        sentence = f"Running stands at its cap of {cap:.0f} with the pool at {load.usage:.2f}."
        return Verdict(VerdictWord.LEVER, sentence, "raise max-running-requests at a restart")
    since = scene.server.decode.steady_since
    if since is None:
        return None
    sentence = (
        f"Queue {load.queued:.0f} at pool {load.usage:.2f}: admission reserves more than "
        "answers use."
    )
    return Verdict(
        VerdictWord.LEVER, sentence, "lower max_new_tokens, or schedule-conservativeness 0.3"
    )


def _burst(scene: Scene) -> Verdict | None:
    load = _load_of(scene)
    if load is None or scene.server is None or scene.server.decode.steady_since is not None:
        return None
    rate = scene.number(scene.server.decode.generation_tokens_per_s)
    if rate is None or load.running < 2 or (load.usage >= FULL_USAGE and load.queued >= 1):
        return None
    sentence = f"Not steady yet: {rate:,.0f} tok/s at pool {load.usage:.2f} is a burst figure."
    return Verdict(VerdictWord.NOTE, sentence, "do not quote yet")


def _foreign(scene: Scene) -> Verdict | None:
    if scene.server is None or scene.run is None:
        return None
    foreign = scene.number(scene.server.foreign_requests)
    if not foreign or foreign < 1:
        return None
    return Verdict(
        VerdictWord.NOTE,
        f"{foreign:.0f} requests here are not this run's; they are never aborted unasked.",
        "A adopt, to count another client's output",
    )


def _finished(scene: Scene) -> Verdict | None:
    run = scene.run
    if run is None or run.state is not RunState.FINISHED:
        return None
    sentence = (
        f"Run {run.name} finished: {thousands(run.done)} answers, {run.failed} failed, "
        f"{run.skipped} skipped, {thousands(run.tokens)} tokens."
    )
    return Verdict(VerdictWord.NOTE, sentence, "kvctl run verify, kvctl run export")


def _all_well(scene: Scene) -> Verdict:
    server = scene.server
    if server is None or server.state is ServerState.STOPPED:
        return Verdict(
            VerdictWord.OK,
            f"No server runs here. {_gpu_words(scene.gpus)}",
            "S start a preset, A adopt",
        )
    load = _load_of(scene)
    if load is None or load.running + load.queued == 0:
        return Verdict(
            VerdictWord.OK, f"Server {server.state.value}: nothing to do.", "s start a run"
        )
    steady = "Steady" if server.decode.steady_since is not None else "Decoding"
    sentence = f"{steady}: {load.running:.0f} decode, {load.queued:.0f} wait, nothing is lost."
    done = _done_at(scene).removeprefix(": ")
    ending = f" {done[0].upper()}{done[1:]}" if len(done) > 1 else ""
    return Verdict(VerdictWord.OK, sentence + ending, "none needed")


def _gpu_words(gpus: GpuView) -> str:
    if gpus.problem:
        return gpus.problem
    usable = [device for device in gpus.devices if device.problem is None]
    held = {holder.gpu_index for holder in gpus.holders}
    clean = len([device for device in usable if device.index not in held])
    return f"{clean} of {len(gpus.devices)} GPUs without a holder."


def _short(title: str) -> str:
    return title if len(title) <= 40 else title[:39] + "…"


_RULES: tuple[Rule, ...] = (
    _failed,
    _stalled,
    _leftovers,
    _unexplained,
    _failing_rows,
    _starting,
    _holding,
    _stale,
    _ceiling,
    _retractions,
    _client_bound,
    _admission,
    _burst,
    _foreign,
    _finished,
)
