"""The throttle law's sample from a server's own figures."""

from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading, RankLoad
from kvctl.core.domain.throttle.samples import sample_of


def rank(number: int, running: int | None, usage: float, taken: float | None = 995.0) -> RankLoad:
    return RankLoad(number, taken, running, 3, 900, 1000, usage, None, None, None)


def loads(*ranks: RankLoad) -> LoadsReading:
    return LoadsReading(at=50.0, wall=1000.0, source="/v1/loads", version=None, ranks=ranks)


def test_ranks_are_summed_and_the_fullest_counts() -> None:
    found = sample_of(loads(rank(0, 10, 0.4), rank(1, 12, 0.9)), launch="x")
    assert found is not None
    assert (found.running, found.queued, found.usage) == (22, 6, 0.9)
    assert (found.pool_tokens, found.launch) == (2000, "x")


def test_it_is_dated_when_the_scheduler_wrote_it() -> None:
    found = sample_of(loads(rank(0, 10, 0.4), rank(1, 12, 0.9, taken=990.0)))
    assert found is not None and found.at == 40.0
    undated = sample_of(loads(rank(0, 10, 0.4, taken=None)))
    assert undated is not None and undated.at == 50.0


def test_no_retraction_counted_yet_is_zero_and_no_metrics_is_unknown() -> None:
    metrics = MetricsReading(at=50.0, counters={}, gauges={}, histograms={})
    with_metrics = sample_of(loads(rank(0, 1, 0.1)), metrics)
    without = sample_of(loads(rank(0, 1, 0.1)))
    assert with_metrics is not None and with_metrics.retracted_total == 0
    assert without is not None and without.retracted_total is None


def test_a_rank_without_counts_gives_no_sample() -> None:
    assert sample_of(loads(rank(0, 10, 0.4), rank(1, None, 0.5))) is None
    assert sample_of(loads()) is None
