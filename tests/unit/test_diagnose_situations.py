"""Situations and what is said of them: the first verdict, its lever and the arithmetic behind it.

Figures are the mission's own, those of the recorded H200 server, or worked out from them.
"""

from dataclasses import dataclass, field, replace

import pytest
from tests.unit.test_diagnose import NOW, fig, run, scene, server

from kvctl.core.domain.diagnosis.diagnose import diagnose
from kvctl.core.domain.diagnosis.scene import Scene
from kvctl.core.domain.launches.operating_point import OperatingPoint
from kvctl.core.domain.runs.run import Partition, PartitionState, Run, RunState
from kvctl.core.domain.servers.server import LaunchFlag, Server, ServerState
from kvctl.core.domain.snapshot import PresetSummary
from kvctl.core.domain.verdict import Verdict, VerdictWord
from kvctl.core.runs.driving.descriptors import why_capped

W = VerdictWord


def point(running: float, rate: float) -> OperatingPoint:
    """A steady window measured under this launch."""
    return OperatingPoint("B1", "p", running, 0, 0.5, rate, None, 300.0, True)


STEEP = (point(24, 3540.0), point(72, 6381.0))
"""Recorded: 24 and 72 clients on one H200."""
FLAT = (point(150, 1444.0), point(300, 1490.0))
"""A step that takes nearly twice as long for twice the requests."""


def at(running: float, queued: float, usage: float, pool: int = 159_277, **decode: float) -> Server:
    made = server(running, queued, usage, pool=pool)
    figures = {name: fig(value) for name, value in decode.items()}
    return replace(made, decode=replace(made.decode, **figures))  # type: ignore[arg-type]


def part(limit: int | None, mean: float, p95: float) -> Partition:
    return Partition(
        "B2", PartitionState.OPEN, 5600, 1604, 0, 0, 40, 0, 0, mean, p95, 0, max_new_tokens=limit
    )


def by_hand(slots: int, **more: object) -> Run:
    return replace(run(is_auto=False, in_flight=slots), **more)  # type: ignore[arg-type]


def auto(slots: int, **more: object) -> Run:
    return replace(run(in_flight=slots), **more)  # type: ignore[arg-type]


BF16 = PresetSummary("hicache-bf16", "", pool_tokens=159_277, generation_tokens_per_s=930.0)
FP8 = PresetSummary("hicache-fp8", "", refused='rule "no fp8 KV"', pool_tokens=376_029)
SAME_POOL = PresetSummary("hicache-more", "256 GiB of host memory", pool_tokens=159_277)
STARTED = replace(at(28, 8, 0.93, 116_000, generation_tokens_per_s=604.0), ready_after_s=630.0)
CAPPED = replace(at(8, 42, 0.12), live_cap=8)
FEW_FLAGS = (LaunchFlag("schedule-conservativeness", "0.3", "preset p"),)


@dataclass(frozen=True)
class Situation:
    """What is seen, and what has to be said of it."""

    name: str
    seen: Scene
    word: VerdictWord
    says: tuple[str, ...]
    lever: str
    why: tuple[str, ...] = field(default=())
    """Values that the arithmetic has to contain."""


SITUATIONS = (
    Situation(
        "150 fixed slots, 35 decode (the mission)",
        scene(at(35, 115, 0.94), by_hand(150)),
        W.LEVER,
        ("150 sent, 35 decode, 115 only wait", "will not change"),
        "a AUTO (~42 slots)",
        ("0.94 x 159,277 / 35 = 4,278",),
    ),
    Situation(
        "150 fixed slots, 72 decode (the mission)",
        scene(at(72, 79, 0.96), by_hand(150)),
        W.LEVER,
        ("72 decode, 79 only wait",),
        "a AUTO",
        ("0.96 x 159,277 / 72 = 2,124",),
    ),
    Situation(
        "AUTO at the ceiling, nothing larger known",
        scene(at(38, 8, 0.93), auto(46)),
        W.LIMIT,
        ("KV-bound on B2", "More slots would only wait"),
        "Hardware limit for this model, GPU and length",
        ("pool x u / k = 39, k = 3,900",),
    ),
    Situation(
        "AUTO at the ceiling, fp8 ruled out",
        scene(at(38, 8, 0.93), auto(46), presets=(FP8,)),
        W.LIMIT,
        ("~39 requests",),
        'No allowed lever left (hicache-fp8: rule "no fp8 KV")',
    ),
    Situation(
        "a measured larger preset, paid back",
        scene(STARTED, auto(36, fit_at_mean=28.0, remaining_s=4e5), presets=(BF16,)),
        W.LEVER,
        ("116,000 tokens hold ~28",),
        "R hicache-bf16: ~38 at once instead of ~28 (+54 % tok/s, measured);"
        " the ~11 m 00 s restart is paid back 20 m 23 s later",
    ),
    Situation(
        "the same, but the run ends before it pays",
        scene(STARTED, auto(36, fit_at_mean=28.0, remaining_s=1500.0), presets=(BF16,)),
        W.LIMIT,
        ("KV-bound",),
        "A restart with a larger pool would not pay before the end",
    ),
    Situation(
        "more hicache, the same pool",
        scene(at(38, 8, 0.93), auto(46), presets=(SAME_POOL,)),
        W.LIMIT,
        ("159,277 tokens",),
        "Hardware limit",
    ),
    Situation(
        "a queue at a roomy pool, limits far too large",
        scene(at(60, 79, 0.71), auto(72, partitions=(part(8192, 1100.0, 1500.0),))),
        W.LEVER,
        ("Queue 79 at pool 0.71", "max_new_tokens 8,192; answers end at 1,500"),
        "max_new_tokens ~1,664 in the run file (~79 at once instead of 60)",
        ("1,500 tokens",),
    ),
    Situation(
        "a queue at a roomy pool, limits as long as the answers",
        scene(at(60, 79, 0.71), auto(72, partitions=(part(4096, 3800.0, 4096.0),))),
        W.LEVER,
        ("admission reserves more than answers use",),
        "schedule-conservativeness 0.3 at the next restart (~79 at once",
    ),
    Situation(
        "the same at a small pool, where AUTO keeps a small queue",
        scene(at(11, 4, 0.53, 4096), auto(15, partitions=(part(420, 240.0, 404.0),))),
        W.LEVER,
        ("Queue 4 at pool 0.53: admission reserves more than answers use",),
        "schedule-conservativeness 0.3 at the next restart (~19 at once",
    ),
    Situation(
        "lengths that are fixed, seen on SGLang 0.5.23",
        scene(
            replace(at(11, 4, 0.53, 4096), version="0.5.23"),
            auto(15, in_flight_fixed=15, partitions=(part(420, 240.0, 404.0),)),
        ),
        W.LIMIT,
        ("reserves the whole of each answer, for with ignore_eos none ends early",),
        "Only a larger pool, or answers that may end before max_new_tokens",
    ),
    Situation(
        "lengths that are fixed, of which SGLang 0.5.17 charges a part",
        scene(
            replace(at(11, 4, 0.53, 4096), version="0.5.17"),
            auto(15, in_flight_fixed=15, partitions=(part(420, 240.0, 404.0),)),
        ),
        W.LEVER,
        ("admission reserves more than answers use",),
        "schedule-conservativeness 0.3 at the next restart",
    ),
    Situation(
        "the same with conservativeness low already",
        scene(
            replace(at(60, 79, 0.71), flags=FEW_FLAGS),
            auto(72, partitions=(part(4096, 3800.0, 4096.0),)),
        ),
        W.NOTE,
        ("admission reserves",),
        "none known here",
    ),
    Situation(
        "running at max-running-requests",
        scene(at(48, 30, 0.41, max_running=48.0), auto(58), points=STEEP),
        W.LEVER,
        ("cap of 48 with the pool at 0.41", "30 wait, ~109 would fit"),
        "max-running-requests 109 at the next restart, +",
    ),
    Situation(
        "running at kvctl's own live cap",
        scene(CAPPED, auto(16)),
        W.LEVER,
        ("cap of 8 with the pool at 0.12",),
        "kvctl server cap off",
    ),
    Situation(
        "max-running reached, but a step is compute already",
        scene(
            at(300, 60, 0.60, 900_000, max_running=300.0, generation_tokens_per_s=1490.0),
            auto(360),
            points=FLAT,
        ),
        W.LIMIT,
        ("Compute-bound: a step of 300 takes 201 ms", "465 at once"),
        "Hardware limit for this model, GPU and length",
    ),
    Situation(
        "too few slots by hand",
        scene(
            at(24, 0, 0.34, generation_tokens_per_s=3540.0),
            by_hand(24, fit_at_mean=72.0),
            points=STEEP,
        ),
        W.LEVER,
        ("queue 0, pool 0.34, 24 of 24 slots",),
        "a AUTO (~72 at once, +80 % tok/s), or +",
        ("24 x 0.93 / 0.34 = 66",),
    ),
    Situation(
        "few slots by hand, but more would bring nothing",
        scene(
            at(150, 0, 0.50, 900_000, generation_tokens_per_s=1444.0),
            by_hand(150, fit_at_mean=280.0),
            points=FLAT,
        ),
        W.LIMIT,
        ("Compute-bound", "280 at once would make +3 % tok/s"),
        "Hardware limit",
    ),
    Situation(
        "AUTO at its own upper end",
        scene(at(400, 0, 0.40, 900_000), auto(400, fit_at_mean=900.0)),
        W.LEVER,
        ("400 of 400 slots",),
        "t 900 by hand: AUTO goes to 400 at most",
    ),
    Situation(
        "a client that does not use its slots",
        scene(at(46, 0, 0.61), auto(84, in_flight=46)),
        W.LEVER,
        ("only 46 of 84 slots used though 3,950 rows wait",),
        "kvctl doctor",
    ),
    Situation(
        "too few open files",
        scene(at(46, 0, 0.61), by_hand(46, reason=why_capped(150, 46))),
        W.LEVER,
        ("Client-bound: 46 of 150 slots are used", "files"),
        "ulimit -Hn",
    ),
    Situation(
        "a slow output disk",
        scene(at(30, 0, 0.50), auto(46, in_flight=20, unwritten=26, journal_at=NOW - 23)),
        W.LEVER,
        ("26 answers wait for the output disk; the last was safe 23 s ago",),
        "a faster disk",
    ),
    Situation(
        "long prompts for short answers",
        scene(
            at(40, 10, 0.80, prefill_share=0.55, prefill_tokens_per_s=9000.0, cache_hit_ratio=0.02),
            auto(50),
        ),
        W.LIMIT,
        ("Prefill-bound: 55 % of the time", "9,000 tokens a second", "2 %"),
        "Hardware limit for prompts",
    ),
    Situation(
        "retraction thrash at the ceiling by hand",
        scene(
            at(
                44,
                106,
                0.99,
                retracted_per_min=60.0,
                recomputed_tokens_per_min=13_000.0,
                prefill_tokens_per_s=300.0,
            ),
            by_hand(150),
        ),
        W.LEVER,
        ("60 a minute, 23 % of all tokens computed twice",),
        "a AUTO, or - slots: up to +23 % tok/s",
        ("13,000 tokens a minute = 23.0 %",),
    ),
    Situation(
        "retractions that cost next to nothing (recorded H200)",
        scene(
            at(
                76,
                15,
                0.92,
                retracted_per_min=6.8,
                recomputed_tokens_per_min=13_600.0,
                generation_tokens_per_s=7344.0,
            ),
            auto(92),
        ),
        W.LIMIT,
        ("KV-bound",),
        "Hardware limit",
    ),
    Situation(
        "a stalled engine",
        scene(
            replace(at(38, 8, 0.93), state=ServerState.STALLED, state_reason="no token for 45 s"),
            auto(46),
        ),
        W.STALLED,
        ("45 s",),
        "R",
    ),
    Situation(
        "load of others at an otherwise fed server",
        scene(replace(at(77, 0, 0.70), foreign_requests=fig(31.0)), auto(46)),
        W.NOTE,
        ("31 requests here are not this run's",),
        "A adopt",
    ),
    Situation(
        "a pool that is still filling",
        scene(server(150, 0, 0.61, pool=376_029, steady=False), auto(150)),
        W.NOTE,
        ("640 tok/s at pool 0.61 is a burst figure",),
        "do not quote yet",
    ),
    Situation(
        "HOLD at a full pool",
        scene(at(38, 30, 0.98), auto(46, state=RunState.HOLDING, reason="KV-bound: usage 0.98")),
        W.HOLD,
        ("Not sending for 1 m 00 s: KV-bound",),
        "goes on by itself",
    ),
    Situation(
        "all is well under AUTO",
        scene(at(74, 3, 0.80), auto(90)),
        W.OK,
        ("Steady: 74 decode, 3 wait, nothing is lost",),
        "none needed",
    ),
    Situation(
        "the last rows of a run",
        scene(at(12, 0, 0.10), by_hand(46, in_flight=12, done=5588)),
        W.OK,
        ("12 decode",),
        "none needed",
    ),
)
AT_THE_CEILING = [
    s
    for s in SITUATIONS
    if (d := s.seen.server.decode if s.seen.server else None)  # every one has a server
    and (d.token_usage.value or 0) >= 0.85
    and d.queued.value
]


def first_of(seen: Scene) -> Verdict:
    return diagnose(seen)[0]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_a_situation_is_named_with_its_lever(situation: Situation) -> None:
    verdict = first_of(situation.seen)
    assert verdict.word is situation.word, verdict
    for words in situation.says:
        assert words.replace(" %", "%") in verdict.sentence.replace(" %", "%")
    assert situation.lever.replace(" %", "%") in verdict.lever.replace(" %", "%")
    values = [line.value.replace(" %", "%") for line in verdict.why]
    for value in situation.why:
        assert any(value.replace(" %", "%") in told for told in values), values


@pytest.mark.parametrize("situation", AT_THE_CEILING, ids=lambda s: s.name)
def test_nobody_is_told_to_send_more_at_the_ceiling(situation: Situation) -> None:
    for verdict in diagnose(situation.seen):
        assert "or +" not in verdict.lever and "by hand" not in verdict.lever
        assert "max-running" not in verdict.lever and "conservativeness" not in verdict.lever


def test_the_situations_are_many_and_all_different() -> None:
    assert len({situation.name for situation in SITUATIONS}) == len(SITUATIONS) >= 20
    assert len(AT_THE_CEILING) >= 8
