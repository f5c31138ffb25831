"""Which row goes next: partials, retries whose time has come, scouts, then the partitions."""

from kvctl.core.domain.runs.run_file import Order
from kvctl.core.runs.opening.schedule import Job, PartialAt, Schedule


def taken(schedule: Schedule, count: int, now: float = 0.0) -> list[tuple[int, int]]:
    found = []
    for _ in range(count):
        job = schedule.next(now)
        assert job is not None
        found.append((job.partition, job.row))
    return found


def test_every_row_comes_exactly_once() -> None:
    schedule = Schedule({"A": 30, "B": 20, "C": 0}, Order.LONGEST, 3)
    assert sorted(taken(schedule, 50)) == [(0, n) for n in range(30)] + [(1, n) for n in range(20)]
    assert schedule.next(0.0) is None and schedule.is_empty


def test_rows_that_are_done_are_never_given() -> None:
    schedule = Schedule({"A": 5}, Order.FILE, 0)
    for row in (0, 2, 4):
        schedule.mark_done(0, row)
    assert taken(schedule, 2) == [(0, 1), (0, 3)]
    assert schedule.is_empty


def test_scouts_of_all_partitions_come_before_the_rest_of_any() -> None:
    schedule = Schedule({"A": 50, "B": 50, "C": 1}, Order.FILE, 2)
    assert taken(schedule, 5) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0)]
    assert taken(schedule, 1) == [(0, 2)]


def test_answers_that_were_there_count_as_scouts() -> None:
    schedule = Schedule({"A": 50, "B": 50}, Order.FILE, 2)
    for row in range(2):
        schedule.mark_done(1, row)
        schedule.mark_scouted(1, 1)
    assert taken(schedule, 3) == [(0, 0), (0, 1), (0, 2)]


def test_the_longest_partition_goes_first_and_is_not_left_half_way() -> None:
    schedule = Schedule({"A": 3, "B": 3}, Order.LONGEST, 0)
    means = [100.0, 4000.0]
    for number, lane in enumerate(schedule.lanes):
        lane.mean_tokens = lambda n=number: means[n]  # type: ignore[misc]
    assert taken(schedule, 1) == [(1, 0)]
    means[0] = 9000.0
    assert taken(schedule, 5) == [(1, 1), (1, 2), (0, 0), (0, 1), (0, 2)]


def test_weights_share_rows_in_proportion_and_zero_stops_a_partition() -> None:
    schedule = Schedule({"A": 90, "B": 90, "C": 90}, Order.FILE, 0)
    schedule.set_weights({"A": 2.0, "B": 1.0, "C": 0.0})
    first = [partition for partition, _ in taken(schedule, 30)]
    assert (first.count(0), first.count(1), first.count(2)) == (20, 10, 0)


def test_a_partition_opened_late_does_not_catch_up_with_the_past() -> None:
    schedule = Schedule({"A": 90, "B": 90}, Order.FILE, 0)
    schedule.set_weights({"A": 1.0, "B": 0.0})
    taken(schedule, 40)
    schedule.set_weights({"A": 1.0, "B": 1.0})
    later = [partition for partition, _ in taken(schedule, 20)]
    assert later.count(1) == 10


def test_a_retry_waits_for_its_time_and_then_goes_first() -> None:
    schedule = Schedule({"A": 9}, Order.FILE, 0)
    first = schedule.next(0.0)
    assert first is not None
    schedule.requeue(first, not_before=5.0)
    assert schedule.wake_at() == 5.0
    assert schedule.retrying(0) == 1
    assert taken(schedule, 1, now=4.0) == [(0, 1)]
    assert taken(schedule, 1, now=5.0) == [(0, 0)]


def test_a_run_is_not_through_while_a_retry_waits() -> None:
    schedule = Schedule({"A": 1}, Order.FILE, 0)
    job = schedule.next(0.0)
    assert job is not None and schedule.is_empty
    schedule.requeue(job, not_before=9.0)
    assert not schedule.is_empty and schedule.next(1.0) is None


def partial(row: int, numerics: str | None) -> Job:
    return Job(0, row, partial=PartialAt("f", 0, 100, numerics))


def test_partials_go_first_and_only_to_a_server_that_computes_alike() -> None:
    schedule = Schedule({"A": 5}, Order.FILE, 0)
    schedule.add_partial(partial(3, "bf16"))
    assert taken(schedule, 1) == [(0, 0)]
    job = schedule.next(0.0, "bf16")
    assert job is not None and (job.row, job.partial is not None) == (3, True)


def test_failed_rows_that_are_queued_again_come_back() -> None:
    schedule = Schedule({"A": 2}, Order.FILE, 0)
    schedule.mark_done(0, 0)
    taken(schedule, 1)
    schedule.add_failed([Job(0, 0)])
    assert taken(schedule, 1) == [(0, 0)]
