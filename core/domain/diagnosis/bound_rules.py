"""Verdict rules for a server that could take more: what keeps it from it, and what would help.

None of them holds at the KV ceiling, so none can ask for more requests there.
"""

from kvctl.core.domain.diagnosis.gains import WORTH, gain_of, gain_words
from kvctl.core.domain.diagnosis.scene import Load, Scene, load_of
from kvctl.core.domain.runs.run import Run
from kvctl.core.domain.units import thousands
from kvctl.core.domain.verdict import Verdict, VerdictWord, Why
from kvctl.core.domain.versions import is_at_least

ROOMY_USAGE = 0.85
QUEUE_USAGE = 0.75
"""A queue below this usage is not the pool's."""
FULL_USAGE = 0.93
"""Where a pool is full in practice."""
LEAST_QUEUE = 8
LEAST_QUEUE_SHARE = 0.25
"""Of what runs: the queue that AUTO keeps is smaller at a small pool …"""
_FEWEST = 2
"""… and one that waits is on its way in."""
PREFILL_SHARE = 0.35
UNUSED_SLOTS = 0.8
LONG_LIMIT = 2.0
"""max_new_tokens above this many times the length that nearly all answers keep within."""
LOWER_CONSERVATIVENESS = 0.3
OPEN_FILES = "may open no more than"
"""In the reason of a run whose slots are capped by the limit of open files."""


def open_files(scene: Scene) -> Verdict | None:
    """The host lets kvctld open fewer files than it has slots."""
    run = scene.run
    if run is None or OPEN_FILES not in run.reason:
        return None
    return Verdict(
        VerdictWord.LEVER, f"Client-bound: {run.reason}.", "ulimit -Hn, then kvctld again"
    )


def slow_disk(scene: Scene) -> Verdict | None:
    """Answers come faster than the disk takes them."""
    run = scene.run
    if run is None or not scene.is_sending or run.unwritten < max(LEAST_QUEUE, run.target // 4):
        return None
    age = (
        ""
        if run.journal_at is None
        else f"; the last was safe {scene.at - run.journal_at:.0f} s ago"
    )
    sentence = f"Client-bound: {run.unwritten} answers wait for the output disk{age}."
    return Verdict(VerdictWord.LEVER, sentence, "a faster disk under the output folder")


def client_bound(scene: Scene) -> Verdict | None:
    """A number of slots starves the server, or the client does not use the slots that it has."""
    load, run = load_of(scene), scene.run
    if load is None or run is None or not scene.is_sending:
        return None
    if load.queued > 0 or load.usage > ROOMY_USAGE or _remaining(run) <= run.target:
        return None
    if run.in_flight < UNUSED_SLOTS * run.target:
        return _slots_unused(scene, run, load)
    if run.in_flight < run.target:
        return None
    if run.is_auto and run.target < scene.most_slots:
        return None  # AUTO is still growing
    return _too_few_slots(scene, run, load)


def _remaining(run: Run) -> int:
    return run.total - run.done - run.failed - run.skipped - run.in_flight


def _slots_unused(scene: Scene, run: Run, load: Load) -> Verdict | None:
    if scene.server is None or scene.server.decode.steady_since is None:
        return None
    sentence = (
        f"Server waits for the client: queue 0, pool {load.usage:.2f}, only {run.in_flight} of "
        f"{run.target} slots used though {thousands(_remaining(run))} rows wait."
    )
    return Verdict(VerdictWord.LEVER, sentence, "kvctl doctor: CPU, disk and limits of this client")


def _too_few_slots(scene: Scene, run: Run, load: Load) -> Verdict:
    room = run.target * FULL_USAGE / max(load.usage, 0.05)
    fit = run.fit_at_mean or room
    gain = gain_of(scene, load.running, max(fit, load.running))
    if gain is not None and gain < WORTH:
        return _compute_bound(scene, load, fit, gain)
    sentence = (
        f"Server waits for the client: queue 0, pool {load.usage:.2f}, "
        f"{run.in_flight} of {run.target} slots used."
    )
    lever = f"a AUTO (~{fit:.0f} at once{gain_words(gain)}), or +"
    if run.is_auto:
        lever = f"t {fit:.0f} by hand: AUTO goes to {run.target} at most{gain_words(gain)}"
    room_line = Why(
        "room", f"{run.target} x {FULL_USAGE} / {load.usage:.2f} = {room:.0f}", "computed"
    )
    return Verdict(VerdictWord.LEVER, sentence, lever, (*_load_lines(scene, load), room_line))


def _compute_bound(scene: Scene, load: Load, more: float, gain: float) -> Verdict:
    assert scene.server is not None
    rate = scene.number(scene.server.decode.generation_tokens_per_s)
    step = (
        f"a step of {load.running:.0f} takes {1000 * load.running / rate:.0f} ms; " if rate else ""
    )
    sentence = (
        f"Compute-bound: {step}{more:.0f} at once would make {gain - 1:+.0%} tok/s"
        " and slower answers."
    )
    lever = "Hardware limit for this model, GPU and length. Let it run"
    return Verdict(VerdictWord.LIMIT, sentence, lever, _load_lines(scene, load))


def admission(scene: Scene) -> Verdict | None:
    """Requests wait although the pool has room."""
    load = load_of(scene)
    if (
        load is None
        or load.queued < max(_FEWEST, min(LEAST_QUEUE, LEAST_QUEUE_SHARE * load.running))
        or load.usage > QUEUE_USAGE
        or scene.server is None
    ):
        return None
    cap = scene.number(scene.server.decode.max_running)
    if scene.server.live_cap is not None:
        cap = min(cap or scene.server.live_cap, scene.server.live_cap)
    if cap is not None and load.running >= cap:
        return _running_cap(scene, load, cap)
    if scene.server.decode.steady_since is None:
        return None
    if _is_exact(scene):
        return _reserves_all(scene, load)
    return _reserves_too_much(scene, load)


def _running_cap(scene: Scene, load: Load, cap: float) -> Verdict:
    assert scene.server is not None
    room = load.running * FULL_USAGE / max(load.usage, 0.05)
    gain = gain_of(scene, load.running, room)
    if gain is not None and gain < WORTH:
        return _compute_bound(scene, load, room, gain)
    sentence = (
        f"Running stands at its cap of {cap:.0f} with the pool at {load.usage:.2f}: "
        f"{load.queued:.0f} wait, ~{room:.0f} would fit."
    )
    lever = f"max-running-requests {room:.0f} at the next restart{gain_words(gain)}"
    if scene.server.live_cap is not None:
        lever = f"kvctl server cap off: the cap is kvctl's own{gain_words(gain)}"
    return Verdict(VerdictWord.LEVER, sentence, lever, _load_lines(scene, load))


def _is_exact(scene: Scene) -> bool:
    """Whether most of what is admitted is charged its full length, whatever the ratio.

    Source: SGLang 0.5.23 (0.5.17 charges `ignore_eos` by the ratio too), both seen under load.
    """
    run, server = scene.run, scene.server
    if run is None or server is None or not is_at_least(server.version, (0, 5, 23)):
        return False
    return 2 * run.in_flight_fixed > run.in_flight


def _reserves_all(scene: Scene, load: Load) -> Verdict:
    sentence = (
        f"Queue {load.queued:.0f} at pool {load.usage:.2f}: admission reserves the whole of each "
        "answer, for with ignore_eos none ends early."
    )
    lever = "Only a larger pool, or answers that may end before max_new_tokens"
    return Verdict(VerdictWord.LIMIT, sentence, lever, _load_lines(scene, load))


def _reserves_too_much(scene: Scene, load: Load) -> Verdict:
    room = load.running * FULL_USAGE / max(load.usage, 0.05)
    gain = gain_of(scene, load.running, room)
    more = f" (~{room:.0f} at once instead of {load.running:.0f}{gain_words(gain)})"
    head = f"Queue {load.queued:.0f} at pool {load.usage:.2f}: admission reserves"
    limit, length = _longest_limit(scene.run)
    lines = _load_lines(scene, load)
    if limit is not None and length is not None and limit > LONG_LIMIT * length:
        sentence = f"{head} for max_new_tokens {limit:,}; answers end at {thousands(length)}."
        lever = f"max_new_tokens ~{_rounded(1.1 * length):,} in the run file{more}"
        lines = (*lines, Why("longest answers (p95)", f"{thousands(length)} tokens", "journal"))
        return Verdict(VerdictWord.LEVER, sentence, lever, lines)
    known = _conservativeness(scene)
    if known is not None and known <= LOWER_CONSERVATIVENESS:
        lever = "none known here: conservativeness is low already"
        return Verdict(VerdictWord.NOTE, f"{head} more than answers use.", lever, lines)
    lever = f"schedule-conservativeness {LOWER_CONSERVATIVENESS} at the next restart{more}"
    return Verdict(VerdictWord.LEVER, f"{head} more than answers use.", lever, lines)


def _longest_limit(run: Run | None) -> tuple[int | None, float | None]:
    """Return max_new_tokens and the p95 length of the open partition that reserves most."""
    found = [
        (p.max_new_tokens, p.p95_tokens or p.mean_tokens)
        for p in (run.partitions if run is not None else ())
        if p.in_flight and p.max_new_tokens and (p.p95_tokens or p.mean_tokens)
    ]
    return max(found, key=lambda pair: (pair[0] or 0) / (pair[1] or 1), default=(None, None))


def _conservativeness(scene: Scene) -> float | None:
    flags = scene.server.flags if scene.server is not None else ()
    found = next((f.value for f in flags if f.name == "schedule-conservativeness"), None)
    try:
        return None if found is None else float(found)
    except ValueError:
        return None


def _rounded(tokens: float) -> int:
    return max(64, round(tokens / 64) * 64)


def prefill_bound(scene: Scene) -> Verdict | None:
    """Prompts take the time that answers would need."""
    load = load_of(scene)
    if load is None or scene.server is None or scene.server.decode.steady_since is None:
        return None
    decode = scene.server.decode
    share, rate = scene.number(decode.prefill_share), scene.number(decode.prefill_tokens_per_s)
    if share is None or share < PREFILL_SHARE:
        return None
    again = scene.number(decode.recomputed_tokens_per_min) or 0.0
    if rate and again / 60.0 > 0.5 * rate:
        return None  # retractions, not prompts
    hit = scene.number(decode.cache_hit_ratio)
    cached = "" if hit is None else f", {hit:.0%} of prompts came from the prefix cache"
    speed = f" ({rate:,.0f} tokens a second)" if rate else ""
    sentence = f"Prefill-bound: {share:.0%} of the time goes to prompts{speed}{cached}."
    lever = "Hardware limit for prompts of this length; only shared prefixes would help"
    return Verdict(VerdictWord.LIMIT, sentence, lever, _load_lines(scene, load))


def _load_lines(scene: Scene, load: Load) -> tuple[Why, ...]:
    assert scene.server is not None
    decode = scene.server.decode
    return (
        Why("KV pool", f"{thousands(load.pool)} tokens", decode.pool_tokens.source),
        Why("token usage", f"{load.usage:.2f}", decode.token_usage.source),
        Why("running", f"{load.running:.0f}", decode.running.source),
        Why("queued", f"{load.queued:.0f}", decode.queued.source),
    )
