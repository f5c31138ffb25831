"""Turns what a server says of itself into the throttle law's sample.

Source: /v1/loads counts and timestamps a rank; /metrics num_retracted_requests_total, which is
absent until the first retraction (0.5.10 and later).
"""

from kvctl.core.domain.telemetry.readings import LoadsReading, MetricsReading
from kvctl.core.domain.throttle.parameters import ServerSample


def sample_of(
    loads: LoadsReading, metrics: MetricsReading | None = None, launch: str | None = None
) -> ServerSample | None:
    """Return the sample of a reading, dated when the scheduler wrote it; None if counts lack.

    Counts and pool are summed over DP ranks, usage is that of the fullest. `launch` identifies
    this start of the server.
    """
    ranks = loads.ranks
    running = [rank.running for rank in ranks if rank.running is not None]
    queued = [rank.queued for rank in ranks if rank.queued is not None]
    usage = [rank.token_usage for rank in ranks if rank.token_usage is not None]
    if not ranks or len(running) < len(ranks) or len(queued) < len(ranks) or not usage:
        return None
    pools = [rank.pool_tokens for rank in ranks if rank.pool_tokens is not None]
    return ServerSample(
        at=loads.at - _age_s(loads),
        running=sum(running),
        queued=sum(queued),
        usage=max(usage),
        retracted_total=_retracted(metrics),
        pool_tokens=sum(pools) if len(pools) == len(ranks) else None,
        launch=launch,
    )


def _age_s(loads: LoadsReading) -> float:
    """Return how old the oldest rank's counts are: it stands still while paused or hung."""
    taken = [rank.taken_wall for rank in loads.ranks if rank.taken_wall is not None]
    return max(0.0, loads.wall - min(taken)) if taken else 0.0


def _retracted(metrics: MetricsReading | None) -> int | None:
    if metrics is None:
        return None
    return int(metrics.counters.get("num_retracted_requests_total", 0.0))
