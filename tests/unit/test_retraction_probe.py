"""The retraction probe: fewer slots are tried where retractions cost much, kept if they pay."""

from dataclasses import replace

from kvctl.core.domain.throttle.parameters import ServerSample, ThrottleParameters
from kvctl.core.domain.throttle.retraction_probe import RetractionProbe

PLAIN = ServerSample(
    0.0, 100, 10, 0.95, 0, generated_per_s=1000.0, ended_total=0, recompute_ratio=0.2
)
HOUR = 3600
"""The first trial begins then …"""
JUDGED = HOUR + 1810
"""… and is over by then."""


def watch(probe: RetractionProbe, begin: int, end: int, **figures: float) -> None:
    """Feed a sample every 10 s: 3 retractions for 10 answers a minute unless told otherwise."""
    share = figures.pop("share", 0.3)
    for at in range(begin, end, 10):
        ended = at / 6
        sample = replace(PLAIN, at=float(at), ended_total=ended, retracted_total=int(share * ended))
        probe.observe(replace(sample, **figures))  # type: ignore[arg-type]


def tried() -> RetractionProbe:
    """A probe whose first trial has begun."""
    probe = RetractionProbe(ThrottleParameters())
    watch(probe, 0, HOUR + 10)
    return probe


def test_many_retractions_start_a_trial_of_nine_tenths_after_an_hour() -> None:
    probe = RetractionProbe(ThrottleParameters())
    watch(probe, 0, HOUR)
    assert probe.cap is None
    watch(probe, HOUR, HOUR + 10)
    assert probe.cap == 90.0
    (told,) = probe.notes()
    assert "45 retractions for 150 answers in 15 min at 1,000 tok/s: trying 90 slots" in told


def test_few_or_cheap_retractions_start_none() -> None:
    few, cheap, uncounted = (RetractionProbe(ThrottleParameters()) for _ in range(3))
    watch(few, 0, 2 * HOUR, share=0.1)
    watch(cheap, 0, 2 * HOUR, recompute_ratio=0.03)
    for at in range(0, 2 * HOUR, 10):
        uncounted.observe(replace(PLAIN, at=float(at), retracted_total=None))
    assert few.cap is cheap.cap is uncounted.cap is None


def test_a_trial_that_makes_more_is_kept_and_told() -> None:
    probe = tried()
    watch(probe, HOUR + 10, JUDGED, generated_per_s=1050.0, share=0.0)
    assert probe.cap == 90.0
    assert list(probe.notes())[-1] == "90 slots make 1,050 tok/s, 1,000 before: kept"


def test_a_kept_step_is_followed_by_another_while_retractions_go_on() -> None:
    probe = tried()
    watch(probe, HOUR + 10, JUDGED, generated_per_s=1050.0, running=90)
    assert probe.cap == 81.0


def test_a_trial_that_does_not_pay_is_lifted_and_tried_later_and_later() -> None:
    probe = tried()
    watch(probe, HOUR + 10, JUDGED, generated_per_s=1020.0)
    assert probe.cap is None
    assert "lifted, not tried again for 1 h" in list(probe.notes())[-1]
    watch(probe, JUDGED, JUDGED + HOUR - 10)
    assert probe.cap is None
    watch(probe, JUDGED + HOUR - 10, JUDGED + HOUR + 1810)
    assert "not tried again for 2 h" in list(probe.notes())[-1]


def test_a_kept_cap_is_lifted_when_what_runs_holds_much_less() -> None:
    probe = tried()
    watch(probe, HOUR + 10, JUDGED, generated_per_s=1050.0, share=0.0)
    watch(probe, JUDGED, JUDGED + 1000, usage=0.6, queued=0, share=0.0)
    assert probe.cap is None
    assert "usage 0.83 under 90 slots, 0.95 when they were kept: lifted" in list(probe.notes())[-1]


def test_a_gap_in_the_figures_voids_the_trial() -> None:
    probe = tried()
    watch(probe, HOUR + 80, HOUR + 90)
    assert probe.cap is None


def test_a_trial_is_compared_with_the_waves_before_it_not_with_their_crest() -> None:
    probe = RetractionProbe(ThrottleParameters())
    watch(probe, 0, HOUR - 900, generated_per_s=900.0)
    watch(probe, HOUR - 900, HOUR + 10, generated_per_s=1200.0)
    watch(probe, HOUR + 10, JUDGED, generated_per_s=1100.0, share=0.0)
    assert list(probe.notes())[-1] == "90 slots make 1,100 tok/s, 1,001 before: kept"


def test_usage_under_a_trial_that_was_lifted_does_not_lift_what_was_kept_before() -> None:
    probe = tried()
    watch(probe, HOUR + 10, JUDGED, generated_per_s=1050.0, running=90)
    watch(probe, JUDGED, JUDGED + 1800, generated_per_s=1050.0, running=81, usage=0.8)
    assert probe.cap == 90.0
    watch(probe, JUDGED + 1800, JUDGED + 2400, generated_per_s=1050.0, running=90)
    assert probe.cap == 90.0
