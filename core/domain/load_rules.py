"""Verdict rules about throughput: what bounds it now, and the lever that would move it."""

from kvctl.core.domain.run import Run
from kvctl.core.domain.scene import Load, Scene, done_at, load_of
from kvctl.core.domain.units import kilo_tokens, thousands
from kvctl.core.domain.verdict import Verdict, VerdictWord, Why

FULL_USAGE = 0.85
ROOMY_USAGE = 0.85
RETRACTED_PER_MIN = 6.0


def ceiling(scene: Scene) -> Verdict | None:
    """KV-bound: a lever while slots are set too high by hand, else the limit itself."""
    load = load_of(scene)
    if load is None or load.usage < FULL_USAGE or load.queued < 1 or scene.server is None:
        return None
    run = scene.run
    why = _ceiling_why(scene, load)
    surplus = load.queued > max(8.0, 0.5 * load.running)
    if run is not None and not run.is_auto and surplus:
        return _too_many_slots(run, load, why)
    return _limit(scene, load, why)


def _too_many_slots(run: Run, load: Load, why: tuple[Why, ...]) -> Verdict:
    sentence = (
        f"KV-bound: {run.in_flight} sent, {load.running:.0f} decode, {load.queued:.0f} only wait. "
        "Tokens a second will not change; answers would come sooner with fewer slots."
    )
    auto = f" (~{run.auto_target} slots)" if run.auto_target else ""
    short = f"{sentence.partition('. ')[0]}."
    return Verdict(VerdictWord.LEVER, sentence, f"a AUTO{auto}", why, short, f"a AUTO{auto}")


def _limit(scene: Scene, load: Load, why: tuple[Why, ...]) -> Verdict:
    run, held = scene.run, load.usage * load.pool / max(1.0, load.running)
    where = _open_partitions(run)
    fit = _fit_now(scene, load)
    sentence = (
        f"KV-bound{where}: {thousands(load.pool)} tokens hold ~{fit:.0f} requests of "
        f"{kilo_tokens(held)} each, {load.running:.0f} decode. More slots would only wait."
    )
    pool = thousands(load.pool)
    short = f"KV-bound{where}: {pool} tokens hold ~{fit:.0f}; {load.running:.0f} decode."
    lever = _better_preset(scene) + done_at(scene)
    return Verdict(VerdictWord.LIMIT, sentence, lever, why, short, "More slots only wait.")


def _fit_now(scene: Scene, load: Load) -> float:
    """Return how many fit: by the lengths seen once it is steady, else by what is held now."""
    run, server = scene.run, scene.server
    is_steady = server is not None and server.decode.steady_since is not None
    if is_steady and run is not None and run.fit_at_mean:
        return run.fit_at_mean
    return load.running / max(load.usage, 0.01)


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


def _ceiling_why(scene: Scene, load: Load) -> tuple[Why, ...]:
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


def retractions(scene: Scene) -> Verdict | None:
    """Retractions compute tokens twice."""
    load = load_of(scene)
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


def client_bound(scene: Scene) -> Verdict | None:
    """A number set by hand starves the server."""
    load, run = load_of(scene), scene.run
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


def admission(scene: Scene) -> Verdict | None:
    """Requests wait although the pool has room."""
    load = load_of(scene)
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


def burst(scene: Scene) -> Verdict | None:
    """Figures of a pool that is still filling."""
    load = load_of(scene)
    if load is None or scene.server is None or scene.server.decode.steady_since is not None:
        return None
    rate = scene.number(scene.server.decode.generation_tokens_per_s)
    if rate is None or load.running < 2 or (load.usage >= FULL_USAGE and load.queued >= 1):
        return None
    sentence = f"Not steady yet: {rate:,.0f} tok/s at pool {load.usage:.2f} is a burst figure."
    return Verdict(VerdictWord.NOTE, sentence, "do not quote yet")
