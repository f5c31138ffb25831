"""Verdict rules about what runs, what is held and what is wrong; none about throughput."""

from kvctl.core.domain.diagnosis.scene import STALE_AFTER_S, Scene, done_at, is_changing, load_of
from kvctl.core.domain.gpus.devices import GpuDevice, GpuView, short_title
from kvctl.core.domain.runs.run import RunState
from kvctl.core.domain.servers.server import Server, ServerState, StageState
from kvctl.core.domain.units import duration, gib, mib, thousands
from kvctl.core.domain.verdict import Verdict, VerdictWord, Why

UNEXPLAINED_BYTES = 2 << 30
FAILED_SHARE = 0.05


def failed(scene: Scene) -> Verdict | None:
    """The server failed; first cause and what to do."""
    server = scene.server
    if server is None or server.state is not ServerState.FAILED:
        return None
    failure = server.failure
    headline = failure.headline if failure else server.state_reason or "the server ended"
    lever = failure.advice[0] if failure and failure.advice else _where_to_look(scene, server)
    age = duration(scene.at - server.state_since)
    why = tuple(Why("evidence", line, "log") for line in (failure.evidence if failure else ()))
    return Verdict(VerdictWord.FAILED, f"{headline} ({age} ago).", lever, why)


def _where_to_look(scene: Scene, server: Server) -> str:
    """Return the next steps for a failure without advice: only what is there to look at."""
    looks = []
    failure = server.failure
    if failure is not None and failure.evidence and not failure.is_silent:
        looks.append("l shows the log at the cause")
    elif server.log_path:
        looks.append("l shows its log")
    if scene.last_good_preset:
        return ", ".join([f"b goes back to {scene.last_good_preset}", *looks])
    return ", ".join([*looks, "S starts it again"])


def stalled(scene: Scene) -> Verdict | None:
    """No token is made while requests run or wait."""
    server = scene.server
    if server is None or server.state is not ServerState.STALLED:
        return None
    sentence = f"{server.state_reason or 'No token is being made'}; HTTP answers prove nothing."
    return Verdict(
        VerdictWord.STALLED, sentence, "R restart (a stalled engine cannot harvest), l log"
    )


def leftovers(scene: Scene) -> Verdict | None:
    """Processes of a server that is gone hold memory."""
    if not scene.gpus.leftovers or is_changing(scene):
        return None  # a stop or start in progress frees them itself
    first = scene.gpus.leftovers[0]
    more = len(scene.gpus.leftovers) - 1
    sentence = (
        f"GPU {first.gpu_index} is not clean: leftover {short_title(first.title, 40)} "
        f"pid {first.pid} ({first.evidence}) holds {mib(first.memory_bytes)}"
    )
    sentence += f", and {more} more." if more else "."
    why = tuple(
        Why(
            f"GPU {h.gpu_index}",
            f"{h.pid} {short_title(h.title, 40)} {mib(h.memory_bytes)}",
            h.evidence,
        )
        for h in scene.gpus.leftovers
    )
    return Verdict(VerdictWord.ACT, sentence, "K kill it and prove clean", why)


def unexplained(scene: Scene) -> Verdict | None:
    """Memory is held and no process here explains it."""
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


def failing_rows(scene: Scene) -> Verdict | None:
    """A good part of the answers failed for good."""
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


def holding(scene: Scene) -> Verdict | None:
    """The run does not send, by itself or by the operator."""
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


def starting(scene: Scene) -> Verdict | None:
    """A start, stop or restart is in progress."""
    server = scene.server
    if server is None or not is_changing(scene):
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


def draining(scene: Scene) -> Verdict | None:
    """The server was told to end, by kvctl or by another, and works on."""
    server = scene.server
    if server is None or server.state is not ServerState.DRAINING:
        return None
    sentence = f"Server {server.name} drains: {server.state_reason}."
    return Verdict(VerdictWord.WAIT, sentence, "none; it takes new requests until it ends")


def stale(scene: Scene) -> Verdict | None:
    """Figures are old, or the server does not answer."""
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


def foreign(scene: Scene) -> Verdict | None:
    """Requests on the server are not this run's."""
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


def finished(scene: Scene) -> Verdict | None:
    """The run is through."""
    run = scene.run
    if run is None or run.state is not RunState.FINISHED:
        return None
    sentence = (
        f"Run {run.name} finished: {thousands(run.done)} answers, {run.failed} failed, "
        f"{run.skipped} skipped, {thousands(run.tokens)} tokens."
    )
    return Verdict(VerdictWord.NOTE, sentence, "kvctl run verify, kvctl run export")


def all_well(scene: Scene) -> Verdict:
    """Say what goes on where no rule has anything to say."""
    server = scene.server
    if server is None or server.state is ServerState.STOPPED:
        return Verdict(
            VerdictWord.OK,
            f"No server runs here. {_gpu_words(scene.gpus)}",
            "S start a preset, A adopt",
        )
    load = load_of(scene)
    if load is None or load.running + load.queued == 0:
        return Verdict(VerdictWord.OK, "Server ready: nothing runs or waits.", "s start a run")
    steady = "Steady" if server.decode.steady_since is not None else "Decoding"
    sentence = f"{steady}: {load.running:.0f} decode, {load.queued:.0f} wait, nothing is lost."
    done = done_at(scene).removeprefix(": ")
    ending = f" {done[0].upper()}{done[1:]}" if len(done) > 1 else ""
    return Verdict(VerdictWord.OK, sentence + ending, "none needed")


def _gpu_words(gpus: GpuView) -> str:
    if gpus.problem:
        return gpus.problem
    usable = [device for device in gpus.devices if device.problem is None]
    held = {holder.gpu_index for holder in gpus.holders}
    clean = len([device for device in usable if device.index not in held])
    return f"{clean} of {len(gpus.devices)} GPUs without a holder."
