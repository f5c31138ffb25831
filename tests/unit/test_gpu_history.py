"""The history of each GPU: evenly spaced, bounded, with gaps where nothing was read."""

from dataclasses import replace

from tests.nvml.cases import device, figure

from kvctl.core.controller.gpus.history import LENGTH, STEP_S, GpuHistory
from kvctl.core.domain.gpus.devices import GpuView


def view(at: float, used: float | None, busy: float | None) -> GpuView:
    one = replace(
        device(0, used, 100), utilisation_ratio=figure(busy, "x" if busy is None else None)
    )
    return GpuView((one,), at=at)


def test_a_point_is_the_mean_of_its_step() -> None:
    history = GpuHistory()
    for at, used, busy in ((0.0, 10, 0.2), (5.0, 30, 0.4), (STEP_S, 50, 1.0)):
        history.take(view(at, used, busy))
    series = history.series()["GPU-0"]
    assert series.memory.values == (0.2, 0.5)
    assert series.utilisation.values == (0.3, 1.0)


def test_a_step_without_a_reading_is_a_gap() -> None:
    history = GpuHistory()
    history.take(view(0.0, 10, 0.5))
    history.take(view(3 * STEP_S, 20, None))
    series = history.series()["GPU-0"]
    assert series.memory.values == (0.1, None, None, 0.2)
    assert series.utilisation.values == (0.5, None, None, None)


def test_it_never_grows_beyond_its_length_and_forgets_a_gpu_that_is_gone() -> None:
    history = GpuHistory()
    for step in range(3 * LENGTH):
        history.take(view(step * STEP_S, 10, 0.5))
    assert len(history.series()["GPU-0"].memory.values) == LENGTH
    for step in range(3 * LENGTH, 5 * LENGTH):
        history.take(GpuView((), at=step * STEP_S))
    assert history.series() == {}
