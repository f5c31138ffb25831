"""What the operator sets on the rows of an open run: weights, and failed rows again."""

from collections.abc import Mapping

from kvctl.core.domain.errors import CommandRefused
from kvctl.core.runs.driving.pump import Pump


def set_weights(pump: Pump, weights: Mapping[str, float]) -> None:
    """Share the slots among partitions in proportion; 0 stops a partition.

    Raises:
        CommandRefused: A name is not a partition, or a weight is negative.
    """
    names = [lane.name for lane in pump.opened.schedule.lanes]
    if unknown := sorted(set(weights) - set(names)):
        raise CommandRefused(f"no partition {unknown[0]}: there are {', '.join(names)}")
    if any(weight < 0 for weight in weights.values()):
        raise CommandRefused("a weight is 0 or more")
    pump.opened.schedule.set_weights(weights)
    pump.opened.settings.weights.update(weights)


def retry_failed(pump: Pump) -> int:
    """Queue the rows that had failed for good again; return how many."""
    jobs = [pump.opened.failed[place] for place in sorted(pump.opened.failed)]
    pump.opened.failed.clear()
    for job in jobs:
        pump.sender.attempts.retry_again(job)
    pump.opened.schedule.add_failed(jobs)
    if jobs:
        pump.gate.is_finished = False
    pump.wake()
    return len(jobs)
