"""Verdict rules about throughput: what bounds it now, and the lever that would move it."""

from kvctl.core.domain.diagnosis.gains import is_worth, larger_preset, larger_presets
from kvctl.core.domain.diagnosis.scene import Load, Scene, done_at, load_of
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.units import kilo_tokens, thousands
from kvctl.core.domain.verdict import Verdict, VerdictWord, Why

FULL_USAGE = 0.85
RETRACTED_PER_MIN = 6.0
"""What a full pool retracts a minute without harm."""
REDONE_SHARE = 0.05
"""Tokens computed twice, of all that are computed, worth a word …"""
THRASH_SHARE = 0.15
"""… and more urgent than the ceiling itself."""


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
    found = larger_preset(scene, load, fit)
    if found is not None and is_worth(scene, found):
        offered = f"R {found.preset.name}: ~{found.at_once:.0f} at once"
        return Verdict(VerdictWord.LEVER, sentence, found.words(scene, fit), why, short, offered)
    lever = _no_lever(scene, load) + done_at(scene)
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


def _no_lever(scene: Scene, load: Load) -> str:
    """Say what binds: a rule, the end of the run, or the hardware."""
    larger = larger_presets(scene, load)
    barred = [preset for preset in larger if preset.refused is not None]
    if barred:
        return f"No allowed lever left ({barred[0].name}: {barred[0].refused}). Let it run"
    if [preset for preset in larger if preset.problem is None]:
        return "A restart with a larger pool would not pay before the end. Let it run"
    return "Hardware limit for this model, GPU and length. Let it run"


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


def thrash(scene: Scene) -> Verdict | None:
    """Retractions take a large part of the work."""
    share = _redone_share(scene)
    return _redone(scene, share) if share is not None and share >= THRASH_SHARE else None


def retractions(scene: Scene) -> Verdict | None:
    """Retractions compute tokens twice."""
    load, share = load_of(scene), _redone_share(scene)
    if load is None or scene.server is None:
        return None
    rate = scene.number(scene.server.decode.retracted_per_min)
    if rate is None or rate < RETRACTED_PER_MIN:
        return None
    if share is not None and not REDONE_SHARE <= share < THRASH_SHARE:
        return None
    return _redone(scene, share)


def _redone_share(scene: Scene) -> float | None:
    """Return the share of all computed tokens that retractions had computed before."""
    if load_of(scene) is None or scene.server is None:
        return None
    decode = scene.server.decode
    again, rate = scene.number(decode.recomputed_tokens_per_min), decode.retracted_per_min
    made = scene.number(decode.generation_tokens_per_s)
    if again is None or made is None or not scene.number(rate):
        return None
    whole = 60.0 * (made + (scene.number(decode.prefill_tokens_per_s) or 0.0))
    return again / whole if whole > 0 else None


def _redone(scene: Scene, share: float | None) -> Verdict:
    assert scene.server is not None
    decode, run = scene.server.decode, scene.run
    rate = scene.number(decode.retracted_per_min) or 0.0
    redone = scene.number(decode.recomputed_tokens_per_min)
    cost = f", {share:.0%} of all tokens computed twice" if share is not None else ""
    if share is None and redone:
        cost = f", {thousands(redone)} tokens a minute computed twice"
    lever = "a AUTO, or - slots"
    if run is None or run.is_auto:
        lever = "none needed: AUTO tries fewer slots by itself where this costs much"
    if share is not None and run is not None and not run.is_auto:
        lever += f": up to {share:+.0%} tok/s"
    why: tuple[Why, ...] = ()
    if share is not None and redone is not None:
        value = f"{thousands(redone)} tokens a minute = {share:.1%} of all computed"
        why = (Why("computed twice", value, decode.recomputed_tokens_per_min.source),)
    return Verdict(
        VerdictWord.LEVER, f"Retractions redo work: {rate:.0f} a minute{cost}.", lever, why
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
